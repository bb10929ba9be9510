"""What serving learned of itself.

Revision: 20261130_0008, after 20261130_0007.
"""

revision = "20261130_0008"
down_revision = "20261130_0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Go forward from ``down_revision``."""


def downgrade() -> None:
    """Go back to ``down_revision``."""
