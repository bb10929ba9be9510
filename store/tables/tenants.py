"""Rows of Tenants."""

from sqlalchemy import Column, String, Table

from store.tables.metadata import METADATA, noun_columns

TENANTS = Table("tenants", METADATA, Column("id", String, primary_key=True), *noun_columns())
