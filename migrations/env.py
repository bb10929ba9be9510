"""Alembic's environment: runs revisions on the connection that ``store.migrate`` hands over.

On the command line (to write a new revision) the database comes from ``-x url=…``.
"""

from alembic import context
from sqlalchemy import Connection

from store.migrate import run_in_transaction
from store.tables import METADATA


def run(connection: Connection) -> None:
    """Run the revisions in the transaction of ``connection``."""
    context.configure(connection=connection, target_metadata=METADATA)
    with context.begin_transaction():
        context.run_migrations()


given = context.config.attributes.get("connection")
if given is not None:
    run(given)
else:
    run_in_transaction(context.get_x_argument(as_dictionary=True)["url"], run)
