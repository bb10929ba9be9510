"""Rows of Bases."""

from sqlalchemy import Column, String, Table

from store.tables.metadata import METADATA, noun_columns

BASES = Table("bases", METADATA, Column("name", String, primary_key=True), *noun_columns())
