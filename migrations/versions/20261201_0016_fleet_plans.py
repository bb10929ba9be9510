"""Wanted replicas that an operator asked for.

Revision: 20261201_0016, after 20261201_0015.
"""

import sqlalchemy as sa
from alembic import op

revision = "20261201_0016"
down_revision = "20261201_0015"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Go forward from ``down_revision``."""
    if op.get_bind().dialect.name == "postgresql":
        # Rather fail than hold up every query behind a lock that a long transaction does not give.
        op.execute("SET LOCAL lock_timeout = '5s'")
    op.create_table(
        "fleet_plans",
        sa.Column("base", sa.String(), nullable=False),
        sa.Column("payload", sa.Text(), nullable=False),
        sa.Column("schema_version", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("base", name=op.f("pk_fleet_plans")),
    )


def downgrade() -> None:
    """Go back to ``down_revision``."""
    op.drop_table("fleet_plans")
