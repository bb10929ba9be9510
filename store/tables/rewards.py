"""Rows of Rewards, one for each scored Episode."""

from sqlalchemy import Column, String, Table

from store.tables.metadata import METADATA, noun_columns

REWARDS = Table("rewards", METADATA, Column("episode_id", String, primary_key=True), *noun_columns())
