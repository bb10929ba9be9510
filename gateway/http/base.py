"""The port between an HTTP server and a hot route's handler."""

from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, Protocol

RawHeader = tuple[bytes, bytes]
RawHeaders = Sequence[RawHeader]


class HeaderMap(dict[bytes, bytes]):
    """A request's headers by lower-case name. One object serves all requests of a connection that send the same."""

    __slots__ = ("key_hash", "memo")

    def __init__(self, headers: RawHeaders) -> None:
        super().__init__(headers)
        self.key_hash: str | None = None
        """Of the API key in them, once it has been computed."""
        self.memo: object = None
        """What the handler made of them and wants to find again; nothing that depends on content-length."""


class ClientLeft(Exception):
    """The client closed its connection before its answer was complete. Never leaves the gateway."""


class Watcher(Protocol):
    """Answers a request without a task of its own, and is told what a task would be told by cancelling or waking it.

    Neither function may raise.
    """

    def client_left(self) -> None:
        """The client closed its connection before its answer was complete."""

    def client_reads(self) -> None:
        """The client has caught up: more may be written."""


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

    @property
    def slow(self) -> bool:
        """Whether the client reads too slowly for more to be written."""

    def watch(self, watcher: Watcher | None) -> bool:
        """Let the handler return before the answer is complete; None: no more. False: this server cannot.

        While a task of the handler's runs, that is cancelled and the watcher is not told.
        """

    def go_on(self, work: Coroutine[Any, Any, None]) -> None:
        """Run the rest of the handler as a task, which is dropped if the client leaves before its first step."""


HotHandler = Callable[[IncomingRequest], Coroutine[Any, Any, None] | None]
"""Answers a request, or begins to: what it returns is run as a task, and for None it has answered or watches."""
