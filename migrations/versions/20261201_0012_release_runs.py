"""Releases under way.

Revision: 20261201_0012, after 20261201_0011.
"""

revision = "20261201_0012"
down_revision = "20261201_0011"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Go forward from ``down_revision``."""


def downgrade() -> None:
    """Go back to ``down_revision``."""
