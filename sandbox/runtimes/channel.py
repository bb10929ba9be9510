"""The host's end of the socket to the agent inside a box. Whatever comes from there is not trusted."""

import asyncio
import fcntl
import json
import os
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

MOST_REPLY_BYTES = 65_536
_ADD_SEALS = 1033
_ALL_SEALS = 0x1 | 0x2 | 0x4 | 0x8
"""F_SEAL_SEAL, SHRINK, GROW and WRITE (linux/fcntl.h): the box can only read what it is handed."""


class ChannelClosed(Exception):
    """The agent is gone, or what it sent is not a reply."""


class Channel:
    """Requests to one agent, one at a time."""

    def __init__(self, control: socket.socket) -> None:
        control.setblocking(False)
        self._control = control

    def send(self, request: dict[str, Any], descriptors: Sequence[int] = ()) -> None:
        """Send a request with what the operation needs; raises ChannelClosed."""
        with sealed(json.dumps(request).encode()) as message:
            try:
                socket.send_fds(self._control, [b"r"], [message, *descriptors])
            except OSError as error:
                raise ChannelClosed(f"the agent does not listen: {error}") from error

    def interrupt(self) -> None:
        """Ask the agent to kill the running command; one that is gone needs no asking."""
        try:
            self._control.send(b"k")
        except OSError:
            return  # the pending receive() tells

    async def receive(self) -> dict[str, Any]:
        """The next reply; raises ChannelClosed."""
        try:
            packet = await asyncio.get_running_loop().sock_recv(self._control, MOST_REPLY_BYTES)
        except OSError as error:
            raise ChannelClosed(str(error)) from error
        if not packet:
            raise ChannelClosed("the agent is gone")
        try:
            reply = json.loads(packet)
        except ValueError as error:
            raise ChannelClosed("the agent sent no JSON") from error
        if not isinstance(reply, dict):
            raise ChannelClosed("the agent sent no object")
        return reply

    def shut(self) -> None:
        """End the conversation; a pending receive() raises ChannelClosed, and the agent ends itself."""
        try:
            self._control.shutdown(socket.SHUT_RDWR)
        except OSError:
            return  # the other end was already gone

    def close(self) -> None:
        """Free the socket; only when nobody waits in receive()."""
        self._control.close()


@contextmanager
def sealed(data: bytes) -> Iterator[int]:
    """A memory file with ``data`` that its receiver can read and not change; closed on exit."""
    descriptor = os.memfd_create("hone", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(descriptor, view) :]
        os.lseek(descriptor, 0, os.SEEK_SET)
        fcntl.fcntl(descriptor, _ADD_SEALS, _ALL_SEALS)
        yield descriptor
    finally:
        os.close(descriptor)
