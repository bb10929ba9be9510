"""Locks on files: held by a process until it closes the file or ends."""

import fcntl
import os
from pathlib import Path


def try_lock(path: Path) -> int | None:
    """The open file that now holds the lock; None where another one does. Raises OSError."""
    lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        return None
    return lock
