"""Child processes for programs that test what SIGKILL leaves: forked, so that each need not import everything again.

Only for a parent that runs no threads and has joined no process group.
"""

import importlib
import json
import os
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

_PACKAGES = ("deepspeed", "torch", "transformers", "peft", "networkx", "sympy")


def in_child(work: Callable[[], None]) -> int:
    """How a process of its own ended: 0, 1 for an error (on stderr), or minus the signal."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
        except BaseException as error:
            sys.stderr.write(f"{type(error).__name__}: {error}\n")
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def import_what(work: Callable[[], None]) -> None:
    """Import here what ``work`` imports while it runs: in a child, whose threads and groups are not wanted here."""
    with tempfile.NamedTemporaryFile() as file:
        before = set(sys.modules)

        def named() -> None:
            work()
            Path(file.name).write_text(json.dumps(sorted(set(sys.modules) - before)))

        if in_child(named) != 0:
            sys.exit("what was to be imported failed")
        for name in json.loads(Path(file.name).read_text()):
            if name.split(".")[0] in _PACKAGES:
                with suppress(Exception):
                    importlib.import_module(name)
