"""Rows of EpisodeGroups."""

from sqlalchemy import Column, String, Table

from store.tables.metadata import METADATA, noun_columns

EPISODE_GROUPS = Table("episode_groups", METADATA, Column("id", String, primary_key=True), *noun_columns())
