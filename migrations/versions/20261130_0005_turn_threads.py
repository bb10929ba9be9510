"""What the conversation of a Turn is known by.

Revision: 20261130_0005, after 20261130_0004.
"""
import sqlalchemy as sa
from alembic import op

revision = "20261130_0005"
down_revision = "20261130_0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Go forward from ``down_revision``."""
    if op.get_bind().dialect.name == "postgresql":
        # Rather fail than hold up every query behind a lock that a long transaction does not give.
        op.execute("SET LOCAL lock_timeout = '5s'")
    with op.batch_alter_table("turns") as table:
        table.add_column(sa.Column("thread", sa.String(), nullable=True))
        table.create_index(op.f("ix_turns_tenant_id_thread"), ["tenant_id", "thread"], unique=False)


def downgrade() -> None:
    """Go back to ``down_revision``."""
    with op.batch_alter_table("turns") as table:
        table.drop_index(op.f("ix_turns_tenant_id_thread"))
        table.drop_column("thread")
