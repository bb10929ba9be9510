"""Outcomes of A/B Experiments.

Revision: 20261201_0011, after 20261201_0010.
"""

revision = "20261201_0011"
down_revision = "20261201_0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Go forward from ``down_revision``."""


def downgrade() -> None:
    """Go back to ``down_revision``."""
