"""The port of the HTTP client that requests reach engines by."""

from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Protocol, Self

from core.config.schema import HoneConfig
from core.errors import EngineTimeout

NOT_HERE = frozenset({404, 502, 503, 504})
"""Answers by which a replica says that it is away, or that it has just unloaded the version."""


class Unreachable(Exception):
    """The engine gave no answer at all: the request may be sent to another replica. Never leaves the gateway."""


def too_slow(timeout_seconds: float) -> EngineTimeout:
    """The error for an engine that sent nothing for the configured time."""
    return EngineTimeout(
        f"the engine sent nothing for {timeout_seconds:g} s",
        hint="raise gateway.request_timeout_seconds or ask for fewer tokens",
    )


class UpstreamResponse(Protocol):
    """An engine's answer: its head has been read, its body comes as it comes.

    As a context manager it is closed at the end: after a body that was read whole the connection is kept for the
    next request, otherwise it is closed, because only that stops the engine's sampling.
    """

    @property
    def status(self) -> int:
        """HTTP status."""

    @property
    def headers(self) -> Mapping[bytes, bytes]:
        """Lower-case names."""

    async def read(self) -> bytes:
        """The whole body.

        Raises Unreachable when the connection breaks first, EngineError when the engine is silent for too long.
        """

    async def next(self) -> bytes:
        """All body bytes that have arrived since the last call, waiting for the first; empty at the end.

        A body that nobody reads is not read from the network either. Raises EngineError when the connection
        breaks before the end of the body or the engine is silent for too long.
        """

    def close(self) -> None:
        """Give the connection back, or close it. May be called twice."""

    async def __aenter__(self) -> Self:
        """Itself."""

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close."""


class BegunResponse(UpstreamResponse, Protocol):
    """The answer to a request that was written without waiting: a function is told when something of it arrives.

    Its status is 0 while it is not known.
    """

    @property
    def unread(self) -> int:
        """Body bytes to take."""

    @property
    def ended(self) -> bool:
        """Whether all of the body has arrived."""

    def listen(self, listener: Callable[[], None] | None, *, whole: bool = False) -> None:
        """Have ``listener`` called when body bytes have arrived (``whole``: all), at the end and at a failure.

        None: no more. ``listener`` must not raise.
        """

    def take(self) -> bytes | None:
        """All body bytes that arrived since the last call; empty at the end, None: wait for more.

        Raises EngineError when the connection broke before the end of the body or the engine is silent for too long.
        """


class Upstream(Protocol):
    """Sends requests to engines over kept-alive connections."""

    def __init__(self, *, config: HoneConfig) -> None: ...

    async def start(self) -> None:
        """Open the pool."""

    async def stop(self) -> None:
        """Close all connections."""

    def begin(self, method: bytes, url: str, body: bytes) -> BegunResponse | None:
        """Write a request at once to a connection that was kept alive; None where there is none.

        Whatever comes of it but an answer is for ``send`` to deal with. Raises Unreachable for what is no address.
        """

    async def send(
        self,
        method: bytes,
        url: str,
        body: bytes = b"",
        headers: tuple[tuple[bytes, bytes], ...] = (),
        begun: BegunResponse | None = None,
    ) -> UpstreamResponse:
        """Send a request and wait for the head of its answer.

        Connections are kept alive and bounded by nothing but the requests in flight. A kept connection that turns
        out to be closed is replaced once, unseen. With ``begun`` the same request has been written already, and
        nothing was taken of its answer. Raises Unreachable when nothing was answered (also for a status
        in ``NOT_HERE``), EngineError when the engine took too long.
        """
