"""What was withdrawn or erased.

Revision: 20261201_0014, after 20261201_0013.
"""

import sqlalchemy as sa
from alembic import op

revision = "20261201_0014"
down_revision = "20261201_0013"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Go forward from ``down_revision``."""
    if op.get_bind().dialect.name == "postgresql":
        # Rather fail than hold up every query behind a lock that a long transaction does not give.
        op.execute("SET LOCAL lock_timeout = '5s'")
    op.create_table(
        "tombstones",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("tenant_id", sa.String(), nullable=False),
        sa.Column("subject", sa.String(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("payload", sa.Text(), nullable=False),
        sa.Column("schema_version", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_tombstones")),
    )
    op.create_index(op.f("ix_tombstones_tenant_id_subject"), "tombstones", ["tenant_id", "subject"], unique=False)
    op.create_index(op.f("ix_tombstones_created_at"), "tombstones", ["created_at"], unique=False)
    op.create_table(
        "withdrawals",
        sa.Column("episode_id", sa.String(), nullable=False),
        sa.Column("tenant_id", sa.String(), nullable=False),
        sa.Column("tombstone_id", sa.String(), nullable=False),
        sa.Column("payload", sa.Text(), nullable=False),
        sa.Column("schema_version", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("episode_id", name=op.f("pk_withdrawals")),
    )
    op.create_index(op.f("ix_withdrawals_tenant_id"), "withdrawals", ["tenant_id"], unique=False)


def downgrade() -> None:
    """Go back to ``down_revision``."""
    op.drop_table("withdrawals")
    op.drop_table("tombstones")
