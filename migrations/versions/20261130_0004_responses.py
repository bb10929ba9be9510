"""Stored responses.

Revision: 20261130_0004, after 20261130_0003.
"""

import sqlalchemy as sa
from alembic import op

revision = "20261130_0004"
down_revision = "20261130_0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Go forward from ``down_revision``."""
    if op.get_bind().dialect.name == "postgresql":
        # Rather fail than hold up every query behind a lock that a long transaction does not give.
        op.execute("SET LOCAL lock_timeout = '5s'")
    op.create_table(
        "stored_responses",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("tenant_id", sa.String(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("payload", sa.Text(), nullable=False),
        sa.Column("schema_version", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_stored_responses")),
    )
    op.create_index(
        op.f("ix_stored_responses_tenant_id_created_at"),
        "stored_responses",
        ["tenant_id", "created_at"],
        unique=False,
    )


def downgrade() -> None:
    """Go back to ``down_revision``."""
    if op.get_bind().dialect.name == "postgresql":
        # Rather fail than hold up every query behind a lock that a long transaction does not give.
        op.execute("SET LOCAL lock_timeout = '5s'")
    op.drop_index(op.f("ix_stored_responses_tenant_id_created_at"), table_name="stored_responses")
    op.drop_table("stored_responses")
