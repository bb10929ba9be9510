"""Suites and their results.

Revision: 20261201_0009, after 20261130_0008.
"""

import sqlalchemy as sa
from alembic import op

revision = "20261201_0009"
down_revision = "20261130_0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Go forward from ``down_revision``."""
    if op.get_bind().dialect.name == "postgresql":
        # Rather fail than hold up every query behind a lock that a long transaction does not give.
        op.execute("SET LOCAL lock_timeout = '5s'")
    op.create_table(
        "suites",
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("tenant_id", sa.String(), nullable=True),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("payload", sa.Text(), nullable=False),
        sa.Column("schema_version", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("name", "version", name=op.f("pk_suites")),
    )
    op.create_index(op.f("ix_suites_tenant_id"), "suites", ["tenant_id"], unique=False)
    op.create_table(
        "suite_results",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("suite", sa.String(), nullable=False),
        sa.Column("suite_version", sa.Integer(), nullable=False),
        sa.Column("policy", sa.String(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("variant", sa.String(), nullable=False),
        sa.Column("status", sa.String(), nullable=False),
        sa.Column("tenant_id", sa.String(), nullable=True),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("payload", sa.Text(), nullable=False),
        sa.Column("schema_version", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_suite_results")),
    )
    op.create_index(op.f("ix_suite_results_tenant_id"), "suite_results", ["tenant_id"], unique=False)
    op.create_index(
        op.f("ix_suite_results_policy_version_suite"), "suite_results", ["policy", "version", "suite"], unique=False
    )
    op.create_table(
        "asked_prompts",
        sa.Column("fingerprint", sa.String(), nullable=False),
        sa.Column("use", sa.String(), nullable=False),
        sa.Column("task_id", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("fingerprint", "use", "task_id", name=op.f("pk_asked_prompts")),
    )
    op.create_index(op.f("ix_asked_prompts_task_id"), "asked_prompts", ["task_id"], unique=False)


def downgrade() -> None:
    """Go back to ``down_revision``."""
    op.drop_table("asked_prompts")
    op.drop_table("suite_results")
    op.drop_table("suites")
