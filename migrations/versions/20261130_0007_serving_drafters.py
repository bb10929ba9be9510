"""Drafters by Policy, number and status.

Revision: 20261130_0007, after 20261130_0006.
"""
import sqlalchemy as sa
from alembic import op

revision = "20261130_0007"
down_revision = "20261130_0006"
branch_labels = None
depends_on = None

_NUMBERED = """
UPDATE drafters SET number = (
    SELECT COUNT(*) FROM drafters AS earlier
    WHERE earlier.base = drafters.base
    AND (earlier.created_at < drafters.created_at
         OR (earlier.created_at = drafters.created_at AND earlier.id <= drafters.id))
)
"""


def upgrade() -> None:
    """Go forward from ``down_revision``."""
    if op.get_bind().dialect.name == "postgresql":
        # Rather fail than hold up every query behind a lock that a long transaction does not give.
        op.execute("SET LOCAL lock_timeout = '5s'")
    with op.batch_alter_table("drafters") as table:
        table.add_column(sa.Column("policy", sa.String(), nullable=True))
        table.add_column(sa.Column("number", sa.Integer(), nullable=False, server_default="0"))
        table.add_column(sa.Column("status", sa.String(), nullable=False, server_default="candidate"))
    op.execute(_NUMBERED)
    with op.batch_alter_table("drafters") as table:
        table.alter_column("number", existing_type=sa.Integer(), existing_nullable=False, server_default=None)
        table.alter_column("status", existing_type=sa.String(), existing_nullable=False, server_default=None)
        table.create_unique_constraint(op.f("uq_drafters_base_number"), ["base", "number"])
        table.drop_index(op.f("ix_drafters_base"))
        table.create_index(op.f("ix_drafters_base_status"), ["base", "status"], unique=False)


def downgrade() -> None:
    """Go back to ``down_revision``."""
    with op.batch_alter_table("drafters") as table:
        table.drop_index(op.f("ix_drafters_base_status"))
        table.create_index(op.f("ix_drafters_base"), ["base"], unique=False)
        table.drop_constraint(op.f("uq_drafters_base_number"), type_="unique")
        table.drop_column("status")
        table.drop_column("number")
        table.drop_column("policy")
