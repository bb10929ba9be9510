"""Leases: who leads.

Revision: 20261130_0006, after 20261130_0005.
"""

revision = "20261130_0006"
down_revision = "20261130_0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Go forward from ``down_revision``."""


def downgrade() -> None:
    """Go back to ``down_revision``."""
