"""Outcomes of A/B Experiments.

Revision: 20261201_0011, after 20261201_0010.
"""

import sqlalchemy as sa
from alembic import op

revision = "20261201_0011"
down_revision = "20261201_0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Go forward from ``down_revision``."""
    if op.get_bind().dialect.name == "postgresql":
        # Rather fail than hold up every query behind a lock that a long transaction does not give.
        op.execute("SET LOCAL lock_timeout = '5s'")
    op.create_table(
        "arm_outcomes",
        sa.Column("experiment_id", sa.String(), nullable=False),
        sa.Column("episode_id", sa.String(), nullable=False),
        sa.Column("key", sa.String(), nullable=False),
        sa.Column("arm", sa.String(), nullable=False),
        sa.Column("mixed", sa.Boolean(), nullable=False),
        sa.Column("updated_at", sa.Double(), nullable=False),
        sa.Column("payload", sa.Text(), nullable=False),
        sa.Column("schema_version", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(
            ["experiment_id"], ["experiments.id"], name=op.f("fk_arm_outcomes_experiment_id_experiments")
        ),
        sa.PrimaryKeyConstraint("experiment_id", "episode_id", name=op.f("pk_arm_outcomes")),
    )
    op.create_index(op.f("ix_arm_outcomes_episode_id"), "arm_outcomes", ["episode_id"], unique=False)
    op.create_index(op.f("ix_arm_outcomes_key"), "arm_outcomes", ["key"], unique=False)
    op.create_index(
        op.f("ix_arm_outcomes_experiment_id_updated_at_episode_id"),
        "arm_outcomes",
        ["experiment_id", "updated_at", "episode_id"],
        unique=False,
    )
    op.add_column("assignments", sa.Column("tenant_id", sa.String(), nullable=True))
    op.create_index(op.f("ix_assignments_tenant_id"), "assignments", ["tenant_id"], unique=False)


def downgrade() -> None:
    """Go back to ``down_revision``."""
    op.drop_index(op.f("ix_assignments_tenant_id"), table_name="assignments")
    op.drop_column("assignments", "tenant_id")
    op.drop_table("arm_outcomes")
