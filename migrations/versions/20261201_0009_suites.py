"""Suites and their results.

Revision: 20261201_0009, after 20261130_0008.
"""

revision = "20261201_0009"
down_revision = "20261130_0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Go forward from ``down_revision``."""


def downgrade() -> None:
    """Go back to ``down_revision``."""
