"""Rows of what shadows left out: requests by Experiment and reason. Counts alone: nothing here is a client's."""

from sqlalchemy import Column, ForeignKey, Integer, String, Table

from store.tables.metadata import METADATA

SHADOW_SKIPS = Table(
    "shadow_skips",
    METADATA,
    Column("experiment_id", String, ForeignKey("experiments.id"), primary_key=True),
    Column("reason", String, primary_key=True),
    Column("requests", Integer, nullable=False),
)
