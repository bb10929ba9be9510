"""Aliases and notes of versions.

Revision: 20261201_0013, after 20261201_0012.
"""

revision = "20261201_0013"
down_revision = "20261201_0012"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Go forward from ``down_revision``."""


def downgrade() -> None:
    """Go back to ``down_revision``."""
