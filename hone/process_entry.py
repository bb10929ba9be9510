"""A command that turns into one of Hone's processes."""

import os
import sys


def become(name: str) -> None:
    """Run ``hone.processes.NAME`` in place of this process.

    A process entry point imports what it needs and no other: the CLI itself stays light.
    """
    os.execv(sys.executable, [sys.executable, "-m", f"hone.processes.{name}"])  # noqa: S606
