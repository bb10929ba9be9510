"""Stored completions and feedback.

Revision: 20261130_0003, after 20261130_0002.
"""

import sqlalchemy as sa
from alembic import op

revision = "20261130_0003"
down_revision = "20261130_0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Go forward from ``down_revision``."""
    if op.get_bind().dialect.name == "postgresql":
        op.execute("SET LOCAL lock_timeout = '5s'")
    op.create_table(
        "stored_completions",
        sa.Column("tenant_id", sa.String(), nullable=False),
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("model", sa.String(), nullable=False),
        sa.Column("asked_model", sa.String(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("messages", sa.Text(), nullable=False),
        sa.Column("payload", sa.Text(), nullable=False),
        sa.Column("schema_version", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("tenant_id", "id", name=op.f("pk_stored_completions")),
    )
    op.create_index(
        op.f("ix_stored_completions_tenant_id_created_at_id"),
        "stored_completions",
        ["tenant_id", "created_at", "id"],
        unique=False,
    )
    op.create_table(
        "stored_completion_metadata",
        sa.Column("tenant_id", sa.String(), nullable=False),
        sa.Column("completion_id", sa.String(), nullable=False),
        sa.Column("key", sa.String(), nullable=False),
        sa.Column("value", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("tenant_id", "completion_id", "key", name=op.f("pk_stored_completion_metadata")),
    )
    op.create_index(
        op.f("ix_stored_completion_metadata_tenant_id_key_value"),
        "stored_completion_metadata",
        ["tenant_id", "key", "value"],
        unique=False,
    )
    op.create_table(
        "feedback",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("tenant_id", sa.String(), nullable=False),
        sa.Column("episode_id", sa.String(), nullable=False),
        sa.Column("turn_id", sa.String(), nullable=True),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("idempotency_key", sa.String(), nullable=True),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("payload", sa.Text(), nullable=False),
        sa.Column("schema_version", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_feedback")),
        sa.UniqueConstraint("tenant_id", "idempotency_key", name=op.f("uq_feedback_tenant_id_idempotency_key")),
    )
    op.create_index(
        op.f("ix_feedback_episode_id_created_at_id"), "feedback", ["episode_id", "created_at", "id"], unique=False
    )
    op.create_index(
        op.f("ix_feedback_tenant_id_created_at_id"), "feedback", ["tenant_id", "created_at", "id"], unique=False
    )


def downgrade() -> None:
    """Go back to ``down_revision``."""
    op.drop_index(op.f("ix_feedback_tenant_id_created_at_id"), table_name="feedback")
    op.drop_index(op.f("ix_feedback_episode_id_created_at_id"), table_name="feedback")
    op.drop_table("feedback")
    op.drop_index(op.f("ix_stored_completion_metadata_tenant_id_key_value"), table_name="stored_completion_metadata")
    op.drop_table("stored_completion_metadata")
    op.drop_index(op.f("ix_stored_completions_tenant_id_created_at_id"), table_name="stored_completions")
    op.drop_table("stored_completions")
