"""Rows of ArmOutcomes: one for each Episode of an Experiment."""

from sqlalchemy import Boolean, Column, Double, ForeignKey, Index, String, Table

from store.tables.metadata import METADATA, noun_columns

ARM_OUTCOMES = Table(
    "arm_outcomes",
    METADATA,
    Column("experiment_id", String, ForeignKey("experiments.id"), primary_key=True),
    Column("episode_id", String, primary_key=True),
    Column("key", String, nullable=False),
    Column("arm", String, nullable=False),
    Column("mixed", Boolean, nullable=False),
    Column("updated_at", Double, nullable=False),
    *noun_columns(),
    Index(None, "experiment_id", "updated_at", "episode_id"),
    Index(None, "episode_id"),
    Index(None, "key"),
)
