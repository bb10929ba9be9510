"""Learning from live traffic.

Revision: 20261201_0015, after 20261201_0014.
"""

revision = "20261201_0015"
down_revision = "20261201_0014"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Go forward from ``down_revision``."""


def downgrade() -> None:
    """Go back to ``down_revision``."""
