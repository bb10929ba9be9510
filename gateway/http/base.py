"""The port between an HTTP server and a hot route's handler."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Protocol

RawHeader = tuple[bytes, bytes]
RawHeaders = Sequence[RawHeader]


class ClientLeft(Exception):
    """The client closed its connection before its answer was complete. Never leaves the gateway."""


class IncomingRequest(Protocol):
    """One request whose body has been read whole, and the only way to answer it.

    When the client leaves before the end, the task that runs the handler is cancelled and ``left`` is true.
    """

    @property
    def path(self) -> str:
        """Path without the query."""

    @property
    def headers(self) -> Mapping[bytes, bytes]:
        """Lower-case names; of a repeated header the last."""

    @property
    def body(self) -> bytes:
        """The whole body."""

    @property
    def left(self) -> bool:
        """Whether the client has closed its connection."""

    @property
    def started(self) -> bool:
        """Whether a status line has been sent: from then on no other answer is possible."""

    def answer(self, status: int, headers: RawHeaders, body: bytes) -> None:
        """Send a whole answer with its length."""

    def start(self, status: int, headers: RawHeaders) -> None:
        """Begin an answer whose length is not known."""

    def write(self, data: bytes) -> None:
        """Send a part. Never waits; ``drain`` does."""

    def end(self) -> None:
        """Finish an answer that ``start`` began."""

    async def drain(self) -> None:
        """Wait until the client has read enough that more may be written."""


HotHandler = Callable[[IncomingRequest], Awaitable[None]]
