"""Learning from live traffic: Tasks mined from Episodes, and Feedback by the time at which it came.

Revision: 20261201_0015, after 20261201_0014.
"""

import sqlalchemy as sa
from alembic import op

revision = "20261201_0015"
down_revision = "20261201_0014"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Go forward from ``down_revision``."""
    if op.get_bind().dialect.name == "postgresql":
        # Rather fail than hold up every query behind a lock that a long transaction does not give.
        op.execute("SET LOCAL lock_timeout = '5s'")
    op.create_table(
        "mined_tasks",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("tenant_id", sa.String(), nullable=False),
        sa.Column("episode_id", sa.String(), nullable=False),
        sa.Column("digest", sa.String(), nullable=False),
        sa.Column("status", sa.String(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("payload", sa.Text(), nullable=False),
        sa.Column("schema_version", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_mined_tasks")),
        sa.UniqueConstraint("tenant_id", "digest", name=op.f("uq_mined_tasks_tenant_id_digest")),
    )
    op.create_index(op.f("ix_mined_tasks_episode_id"), "mined_tasks", ["episode_id"], unique=False)
    op.create_index(op.f("ix_mined_tasks_status_created_at"), "mined_tasks", ["status", "created_at"], unique=False)
    op.create_index(op.f("ix_feedback_created_at"), "feedback", ["created_at"], unique=False)


def downgrade() -> None:
    """Go back to ``down_revision``."""
    op.drop_index(op.f("ix_feedback_created_at"), table_name="feedback")
    op.drop_table("mined_tasks")
