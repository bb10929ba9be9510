"""Usage counters of Tenants and keys, and the hash of a rotated key that is still valid.

Revision: 20261130_0002, after 20261130_0001.
"""

import sqlalchemy as sa
from alembic import op

revision = "20261130_0002"
down_revision = "20261130_0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Go forward from ``down_revision``."""
    if op.get_bind().dialect.name == "postgresql":
        # Rather fail than hold up every query behind a lock that a long transaction does not give.
        op.execute("SET LOCAL lock_timeout = '5s'")
    op.create_table(
        "usage",
        sa.Column("tenant_id", sa.String(), nullable=False),
        sa.Column("month", sa.String(), nullable=False),
        sa.Column("key_id", sa.String(), nullable=False),
        sa.Column("requests", sa.BigInteger(), nullable=False),
        sa.Column("prompt_tokens", sa.BigInteger(), nullable=False),
        sa.Column("completion_tokens", sa.BigInteger(), nullable=False),
        sa.Column("cost_microdollars", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("tenant_id", "month", "key_id", name=op.f("pk_usage")),
    )
    op.add_column("api_keys", sa.Column("previous_hash", sa.String(), nullable=True))
    op.create_index(op.f("ix_api_keys_previous_hash"), "api_keys", ["previous_hash"], unique=True)


def downgrade() -> None:
    """Go back to ``down_revision``."""
    if op.get_bind().dialect.name == "postgresql":
        op.execute("SET LOCAL lock_timeout = '5s'")
    op.drop_index(op.f("ix_api_keys_previous_hash"), table_name="api_keys")
    op.drop_column("api_keys", "previous_hash")
    op.drop_table("usage")
