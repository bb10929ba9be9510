"""Usage counters of Tenants and keys.

Revision: 20261130_0002, after 20261130_0001.
"""

revision = "20261130_0002"
down_revision = "20261130_0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Go forward from ``down_revision``."""


def downgrade() -> None:
    """Go back to ``down_revision``."""
