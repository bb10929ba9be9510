"""Rows of Turns: the token arrays apart from the payload, in the row or in a blob."""

from sqlalchemy import Column, Double, Index, Integer, LargeBinary, String, Table, UniqueConstraint

from store.tables.metadata import METADATA, noun_columns

TURNS = Table(
    "turns",
    METADATA,
    Column("id", String, primary_key=True),
    Column("tenant_id", String, nullable=False),
    Column("episode_id", String, nullable=False),
    Column("index", Integer, nullable=False),
    Column("choice", Integer, nullable=False),
    Column("idempotency_key", String),
    Column("created_at", Double, nullable=False),
    Column("thread", String),
    Column("tokens", LargeBinary),
    Column("tokens_blob", String),
    *noun_columns(),
    # A repeated request adds no second Turn; rows without a key never clash.
    UniqueConstraint("tenant_id", "idempotency_key", "choice"),
    Index(None, "episode_id", "index"),
    Index(None, "tenant_id", "thread"),
)
