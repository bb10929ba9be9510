"""Private unprivileged user ids: each live box has one that no other box on the machine has."""

import os
import socket

from core.errors import SandboxError

_SPAN = 4_096
"""How many ids from ``first_uid`` on may be taken."""


class Identity:
    """A user id, held until ``release``; None stands for running as the service's own user."""

    def __init__(self, uid: int | None, lock: socket.socket | None) -> None:
        self.uid = uid
        self._lock = lock

    def release(self) -> None:
        """Let another box have the id; call it only when every process of the box is gone."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None


def lease_identity(first_uid: int) -> Identity:
    """The first free id from ``first_uid`` on; the own user when this process is not root.

    The lock is an abstract unix socket: shared by all services on the machine, and let go by the kernel when
    its holder dies. Raises SandboxError when none is free.
    """
    if os.getuid() != 0:
        return Identity(None, None)
    for uid in range(first_uid, first_uid + _SPAN):
        lock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            lock.bind(f"\0hone-sandbox-uid-{uid}")
        except OSError:
            lock.close()
            continue
        return Identity(uid, lock)
    raise SandboxError(f"no free user id between {first_uid} and {first_uid + _SPAN}")
