"""What was withdrawn or erased.

Revision: 20261201_0014, after 20261201_0013.
"""

revision = "20261201_0014"
down_revision = "20261201_0013"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Go forward from ``down_revision``."""


def downgrade() -> None:
    """Go back to ``down_revision``."""
