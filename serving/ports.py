"""TCP ports of this machine: bound with a clear error, or tried before somebody else binds them."""

import socket

from core.errors import MachineError


def bound(host: str, port: int, *, hint: str, shared: bool = False) -> socket.socket:
    """A socket bound to the port (0: one that is free). Raises MachineError with ``hint`` where that cannot be.

    ``shared``: other processes of the same user may bind it too, and the system spreads connections over them.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if shared:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise MachineError(f"port {port} on {host} is not free: {error.strerror}", hint=hint) from error
    return listener


def free_port(host: str) -> int:
    """A port that nobody listens on at the moment."""
    with bound(host, 0, hint="set fleet.host to an address of this machine") as probe:
        return int(probe.getsockname()[1])


def check_port(host: str, port: int) -> None:
    """MachineError when an engine's ``port`` is taken: vLLM would find out a minute later."""
    bound(host, port, hint="end what listens there, or set fleet.first_port (0: free ports)").close()
