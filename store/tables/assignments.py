"""Rows of Assignments: one for each key of an Experiment."""

from sqlalchemy import Column, ForeignKey, String, Table

from store.tables.metadata import METADATA, noun_columns

ASSIGNMENTS = Table(
    "assignments",
    METADATA,
    Column("experiment_id", String, ForeignKey("experiments.id"), primary_key=True),
    Column("key", String, primary_key=True),
    Column("arm", String, nullable=False),
    Column("tenant_id", String, nullable=True, index=True),
    *noun_columns(),
)
