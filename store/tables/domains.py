"""Rows of Domains."""

from sqlalchemy import Column, String, Table

from store.tables.metadata import METADATA, noun_columns

DOMAINS = Table("domains", METADATA, Column("name", String, primary_key=True), *noun_columns())
