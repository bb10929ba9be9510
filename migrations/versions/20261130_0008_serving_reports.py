"""What serving learned of itself: comparisons of fast replicas with standard ones.

Revision: 20261130_0008, after 20261130_0007.
"""

import sqlalchemy as sa
from alembic import op

revision = "20261130_0008"
down_revision = "20261130_0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Go forward from ``down_revision``."""
    if op.get_bind().dialect.name == "postgresql":
        # Rather fail than hold up every query behind a lock that a long transaction does not give.
        op.execute("SET LOCAL lock_timeout = '5s'")
    op.create_table(
        "sameness_checks",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("base", sa.String(), nullable=False),
        sa.Column("fast_id", sa.String(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("payload", sa.Text(), nullable=False),
        sa.Column("schema_version", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_sameness_checks")),
    )
    op.create_index(
        op.f("ix_sameness_checks_base_created_at"), "sameness_checks", ["base", "created_at"], unique=False
    )
    op.create_index(
        op.f("ix_sameness_checks_fast_id_created_at"), "sameness_checks", ["fast_id", "created_at"], unique=False
    )


def downgrade() -> None:
    """Go back to ``down_revision``."""
    op.drop_table("sameness_checks")
