"""Mirrored requests.

Revision: 20261201_0010, after 20261201_0009.
"""

import sqlalchemy as sa
from alembic import op

revision = "20261201_0010"
down_revision = "20261201_0009"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Go forward from ``down_revision``."""
    if op.get_bind().dialect.name == "postgresql":
        # Rather fail than hold up every query behind a lock that a long transaction does not give.
        op.execute("SET LOCAL lock_timeout = '5s'")
    op.create_table(
        "shadow_pairs",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("experiment_id", sa.String(), nullable=False),
        sa.Column("episode_id", sa.String(), nullable=False),
        sa.Column("status", sa.String(), nullable=False),
        sa.Column("skipped_because", sa.String(), nullable=True),
        sa.Column("sequence", sa.BigInteger(), nullable=False),
        sa.Column("candidate_tokens", sa.Integer(), nullable=False),
        sa.Column("payload", sa.Text(), nullable=False),
        sa.Column("schema_version", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(
            ["experiment_id"], ["experiments.id"], name=op.f("fk_shadow_pairs_experiment_id_experiments")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_shadow_pairs")),
    )
    op.create_index(
        op.f("ix_shadow_pairs_experiment_id_sequence"),
        "shadow_pairs",
        ["experiment_id", "sequence"],
        unique=True,
    )
    op.create_index(op.f("ix_shadow_pairs_episode_id"), "shadow_pairs", ["episode_id"], unique=False)
    op.create_table(
        "shadow_skips",
        sa.Column("experiment_id", sa.String(), nullable=False),
        sa.Column("reason", sa.String(), nullable=False),
        sa.Column("requests", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(
            ["experiment_id"], ["experiments.id"], name=op.f("fk_shadow_skips_experiment_id_experiments")
        ),
        sa.PrimaryKeyConstraint("experiment_id", "reason", name=op.f("pk_shadow_skips")),
    )


def downgrade() -> None:
    """Go back to ``down_revision``."""
    op.drop_table("shadow_skips")
    op.drop_table("shadow_pairs")
