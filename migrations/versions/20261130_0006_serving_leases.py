"""Leases: who leads.

Revision: 20261130_0006, after 20261130_0005.
"""
import sqlalchemy as sa
from alembic import op

revision = "20261130_0006"
down_revision = "20261130_0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Go forward from ``down_revision``."""
    if op.get_bind().dialect.name == "postgresql":
        # Rather fail than hold up every query behind a lock that a long transaction does not give.
        op.execute("SET LOCAL lock_timeout = '5s'")
    op.create_table(
        "leases",
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("owner", sa.String(), nullable=False),
        sa.Column("token", sa.BigInteger(), nullable=False),
        sa.Column("until", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_leases")),
    )


def downgrade() -> None:
    """Go back to ``down_revision``."""
    op.drop_table("leases")
