"""Rows of Leases: every field is a column, because they are taken and renewed in SQL."""

from sqlalchemy import BigInteger, Column, Double, String, Table

from store.tables.metadata import METADATA

LEASES = Table(
    "leases",
    METADATA,
    Column("name", String, primary_key=True),
    Column("owner", String, nullable=False),
    Column("token", BigInteger, nullable=False),
    Column("until", Double, nullable=False),
)
