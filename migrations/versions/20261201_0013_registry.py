"""Aliases and notes of versions.

Revision: 20261201_0013, after 20261201_0012.
"""

import sqlalchemy as sa
from alembic import op

revision = "20261201_0013"
down_revision = "20261201_0012"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Go forward from ``down_revision``."""
    if op.get_bind().dialect.name == "postgresql":
        # Rather fail than hold up every query behind a lock that a long transaction does not give.
        op.execute("SET LOCAL lock_timeout = '5s'")
    op.create_table(
        "aliases",
        sa.Column("policy", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("payload", sa.Text(), nullable=False),
        sa.Column("schema_version", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(["policy"], ["policies.name"], name=op.f("fk_aliases_policy")),
        sa.PrimaryKeyConstraint("policy", "name", name=op.f("pk_aliases")),
    )


def downgrade() -> None:
    """Go back to ``down_revision``."""
    op.drop_table("aliases")
