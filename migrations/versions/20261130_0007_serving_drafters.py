"""Drafters by Policy and number.

Revision: 20261130_0007, after 20261130_0006.
"""

revision = "20261130_0007"
down_revision = "20261130_0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Go forward from ``down_revision``."""


def downgrade() -> None:
    """Go back to ``down_revision``."""
