"""Releases under way.

Revision: 20261201_0012, after 20261201_0011.
"""

import sqlalchemy as sa
from alembic import op

revision = "20261201_0012"
down_revision = "20261201_0011"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Go forward from ``down_revision``."""
    if op.get_bind().dialect.name == "postgresql":
        # Rather fail than hold up every query behind a lock that a long transaction does not give.
        op.execute("SET LOCAL lock_timeout = '5s'")
    op.create_table(
        "release_runs",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("policy", sa.String(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("status", sa.String(), nullable=False),
        sa.Column("open_policy", sa.String(), nullable=True),
        sa.Column("started_at", sa.Double(), nullable=False),
        sa.Column("revision", sa.Integer(), nullable=False),
        sa.Column("payload", sa.Text(), nullable=False),
        sa.Column("schema_version", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_release_runs")),
        sa.UniqueConstraint("open_policy", name=op.f("uq_release_runs_open_policy")),
    )
    op.create_index(op.f("ix_release_runs_policy_started_at"), "release_runs", ["policy", "started_at"], unique=False)


def downgrade() -> None:
    """Go back to ``down_revision``."""
    op.drop_table("release_runs")
