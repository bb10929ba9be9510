"""Rows of Deployments."""

from sqlalchemy import Column, String, Table

from store.tables.metadata import METADATA, noun_columns

DEPLOYMENTS = Table(
    "deployments",
    METADATA,
    Column("id", String, primary_key=True),
    Column("base", String, nullable=False),
    *noun_columns(),
)
