"""Mirrored requests.

Revision: 20261201_0010, after 20261201_0009.
"""

revision = "20261201_0010"
down_revision = "20261201_0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Go forward from ``down_revision``."""


def downgrade() -> None:
    """Go back to ``down_revision``."""
