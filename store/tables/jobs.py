"""Rows of Jobs: every field is a column, because the queue works on them in SQL."""

from sqlalchemy import BigInteger, Column, Double, Index, Integer, String, Table, Text, UniqueConstraint

from store.tables.metadata import METADATA

JOBS = Table(
    "jobs",
    METADATA,
    # Order of arrival. SQLite counts up only a column that is INTEGER by name.
    Column("sequence", BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=True),
    Column("id", String, nullable=False),
    Column("kind", String, nullable=False),
    Column("payload", Text, nullable=False),
    Column("status", String, nullable=False),
    Column("priority", Integer, nullable=False),
    Column("attempts", Integer, nullable=False),
    Column("max_attempts", Integer, nullable=False),
    Column("token", Integer, nullable=False),
    Column("owner", String),
    Column("lease_until", Double),
    Column("run_after", Double, nullable=False),
    Column("result", Text),
    Column("error", Text),
    Column("idempotency_key", String),
    Column("created_at", Double, nullable=False),
    UniqueConstraint("id"),
    UniqueConstraint("idempotency_key"),
    Index(None, "status", "lease_until"),
)
# In the order in which a claim reads, so that it need not sort a long queue.
Index("ix_jobs_status_priority_sequence", JOBS.c.status, JOBS.c.priority.desc(), JOBS.c.sequence)
