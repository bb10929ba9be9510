"""${message}

Revision: ${up_revision}, after ${down_revision | comma,n}
"""

import sqlalchemy as sa
from alembic import op
${imports if imports else ""}
revision = ${repr(up_revision)}
down_revision = ${repr(down_revision)}
branch_labels = ${repr(branch_labels)}
depends_on = ${repr(depends_on)}


def upgrade() -> None:
    """Go forward from ``down_revision``."""
    if op.get_bind().dialect.name == "postgresql":
        # Rather fail than hold up every query behind a lock that a long transaction does not give.
        op.execute("SET LOCAL lock_timeout = '5s'")
    ${upgrades if upgrades else "pass"}


def downgrade() -> None:
    """Go back to ``down_revision``."""
    ${downgrades if downgrades else "pass"}
