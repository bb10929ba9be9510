"""Fingerprints of prompts: which are held out, and which were trained on. They must never meet."""

from sqlalchemy import Column, Index, String, Table

from store.tables.metadata import METADATA

ASKED_PROMPTS = Table(
    "asked_prompts",
    METADATA,
    Column("fingerprint", String, primary_key=True),
    # heldout or trained: the same fingerprint under both is a contamination.
    Column("use", String, primary_key=True),
    Column("task_id", String, primary_key=True),
    Index(None, "task_id"),
)
