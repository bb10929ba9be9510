"""What the conversation of a Turn is known by.

Revision: 20261130_0005, after 20261130_0004.
"""

revision = "20261130_0005"
down_revision = "20261130_0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Go forward from ``down_revision``."""


def downgrade() -> None:
    """Go back to ``down_revision``."""
