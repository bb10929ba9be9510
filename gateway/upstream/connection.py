"""One kept-alive HTTP/1.1 connection to an engine: bytes out in one write, an answer's head and body in."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Final, cast

import httptools

from core.errors import EngineError, HoneError
from gateway.upstream.base import Unreachable, too_slow

UNREAD_BYTES: Final = 256 * 1024
"""Above this many body bytes that nobody has read, nothing more is read from the network."""
LARGEST_HEAD_BYTES: Final = 64 * 1024
"""Longest head of an answer, interim answers included; also the longest framing between two body parts."""

LARGEST_ANSWER_BYTES: Final = 512 * 1024 * 1024
"""Longest body that is read whole: an engine that never ends one must not fill the memory."""

_HEAD: Final = 0
_PART: Final = 1
_WHOLE: Final = 2
_BODILESS: Final = frozenset({204, 304})


class _Headers:
    """Takes the headers from the head of an answer, and drops those of interim ones."""

    def __init__(self) -> None:
        self.found: dict[bytes, bytes] = {}
        self.complete = False
        self.parser = httptools.HttpResponseParser(self)

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header, or a trailer, which nobody wants."""
        if not self.complete:
            self.found[name.lower()] = value

    def on_headers_complete(self) -> None:
        """The head of an answer, or of an interim one."""
        if self.complete:
            return
        if 100 <= self.parser.get_status_code() < 200:
            self.found = {}
        else:
            self.complete = True


def headers_in(data: Sequence[bytes]) -> dict[bytes, bytes]:
    """The headers, by lower-case name, of an answer whose head is complete in ``data``."""
    # Parsed when somebody asks: few do, and a call per header is most of what an answer costs.
    headers = _Headers()
    try:
        for piece in data:
            headers.parser.feed_data(piece)
    except (httptools.HttpParserError, httptools.HttpParserUpgrade):
        if not headers.complete:
            raise
    del headers.parser  # breaks the cycle of parser and callbacks
    return headers.found


class EngineConnection(asyncio.Protocol):
    """One exchange at a time: ``begin``, ``head``, then ``part`` or ``whole``. The pool decides what comes after.

    Only one task may wait on a connection at any time; instead of a task a function can be told (``listen``).
    """

    __slots__ = (
        "_asking",
        "_broken",
        "_chunks",
        "_error",
        "_framing_bytes",
        "_gone",
        "_head_done",
        "_headless",
        "_listener",
        "_loop",
        "_on_lost",
        "_parser",
        "_paused",
        "_surplus",
        "_transport",
        "_waiter",
        "_wanted",
        "answered",
        "ended",
        "head_data",
        "keep_alive",
        "kept_at",
        "key",
        "silent_sweeps",
        "status",
        "touched",
        "unread",
    )

    def __init__(
        self,
        key: tuple[str, int, bool],
        *,
        loop: asyncio.AbstractEventLoop,
        on_lost: "Callable[[EngineConnection], None]",
    ) -> None:
        self.key = key
        self.kept_at = 0.0
        self.silent_sweeps = 0
        self._loop = loop
        self._on_lost = on_lost
        self._parser: httptools.HttpResponseParser | None = httptools.HttpResponseParser(self)
        self._transport: asyncio.Transport | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._listener: Callable[[], None] | None = None
        self._wanted = _HEAD
        self._gone = False
        self._asking = False
        self._headless = False
        self._surplus = False
        self._paused = False
        self._error: HoneError | None = None
        self._broken: str | None = None
        self._chunks: list[bytes] = []
        self.keep_alive = False
        self._reset()

    def _reset(self) -> None:
        # What makes a connection useless for a further exchange need not be reset.
        self.status = 0
        self.head_data: list[bytes] = []
        """What arrived until the head was complete."""
        self.answered = False
        self.ended = False
        self.touched = False
        self._head_done = False
        self._framing_bytes = 0
        self.unread = 0
        """Body bytes that nobody has taken."""

    # What the pool and the response call

    @property
    def usable(self) -> bool:
        """Whether another request may be written to it."""
        return not self._gone and self._transport is not None and not self._transport.is_closing()

    @property
    def waiting(self) -> bool:
        """Whether somebody waits for the engine."""
        return self._listener is not None or (self._waiter is not None and not self._waiter.done())

    def begin(self, request: bytes, *, headless: bool = False) -> None:
        """Write a whole request.

        ``headless``: the answer has no body, whatever its head says (HEAD).
        """
        self._reset()
        self._headless = headless
        self._asking = True
        if self._transport is not None:
            self._transport.write(request)

    async def head(self) -> None:
        """Wait for the answer's head. Raises Unreachable or EngineError."""
        while not self._head_done:
            self._raise_failure(EngineError if self._error is not None else Unreachable)
            await self._news(_HEAD)

    def listen(self, listener: Callable[[], None] | None, *, whole: bool = False) -> None:
        """Have ``listener`` called whenever body bytes have arrived, or with ``whole`` when all have; at the end and
        at a failure in any case. None: no more. It must not raise, and is not called for what has arrived before.
        """
        self._listener = listener
        self._wanted = _WHOLE if whole else _PART
        self.silent_sweeps = 0

    def take(self) -> bytes | None:
        """All body bytes that arrived since the last call; empty at the end, None: wait for more.

        Raises EngineError.
        """
        chunks = self._chunks
        if not chunks:
            if self.ended:
                return b""
            self._raise_failure(EngineError)
            return None
        data = chunks[0] if len(chunks) == 1 else b"".join(chunks)
        chunks.clear()
        self.unread = 0
        if self._paused:
            self._resume()
        return data

    async def part(self) -> bytes:
        """What ``take`` gives, once there is something."""
        while (data := self.take()) is None:
            await self._news(_PART)
        return data

    async def whole(self) -> bytes:
        """The rest of the body. Raises Unreachable when the connection breaks first, EngineError otherwise."""
        while not self.ended:
            self._raise_failure(Unreachable)
            self._resume()
            await self._news(_WHOLE)
        chunks = self._chunks
        data = chunks[0] if len(chunks) == 1 else b"".join(chunks)
        chunks.clear()
        self.unread = 0
        return data

    def keep(self) -> bool:
        """End the exchange; False where the next one may not follow on this connection.

        Until the next ``ask`` the engine has nothing to say.
        """
        transport = self._transport
        if (
            not self.ended
            or not self.keep_alive
            or self._surplus
            or self._gone
            or transport is None
            or transport.is_closing()
            or transport.get_write_buffer_size() != 0
        ):
            return False
        self._asking = False
        self._listener = None
        self.kept_at = self._loop.time()
        if self._paused:
            self._resume()
        self._chunks.clear()
        self.head_data = []
        return True

    def time_out(self, seconds: float) -> None:
        """The engine was silent for too long: fail the task that waits."""
        self._fail(too_slow(seconds))

    def abort(self) -> None:
        """Close at once: only that stops the engine's sampling."""
        self._gone = True
        self._listener = None
        if self._transport is not None:
            self._transport.abort()

    def _raise_failure(self, kind: type[EngineError] | type[Unreachable]) -> None:
        if self._error is not None:
            raise self._error
        if self._broken is not None:
            if kind is Unreachable:
                raise Unreachable(f"{self.key[0]}:{self.key[1]} {self._broken}")
            raise EngineError(f"the engine {self._broken}", hint="send the request again")

    def _news(self, wanted: int) -> asyncio.Future[None]:
        """Done when what is wanted has arrived, or will not arrive any more."""
        self._wanted = wanted
        self.silent_sweeps = 0
        self._waiter = waiter = self._loop.create_future()
        return waiter

    def _wake(self) -> None:
        if self._listener is not None:
            self._listener()
            return
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    def _resume(self) -> None:
        if self._paused and self._transport is not None:
            self._paused = False
            self._transport.resume_reading()

    def _fail(self, error: HoneError | None = None, *, broken: str | None = None) -> None:
        if self._error is None and self._broken is None and not self.ended:
            self._error, self._broken = error, broken
        listener = self._listener
        self.abort()
        self._listener = listener
        self._wake()

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Remember the transport."""
        # uvloop's transports are no subclasses of asyncio's.
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        """Parse, and wake the task that waits when there is what it waits for."""
        parser = self._parser
        if not self._asking or parser is None:
            # Nothing was asked: whatever this is, it must not become the answer to the next request.
            self.abort()
            return
        self.touched = True
        self.silent_sweeps = 0
        unread = self.unread
        if not self._head_done:
            self.head_data.append(data)
        try:
            parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self._on_garbage(error)
            return
        if self.unread == unread:
            self._framing_bytes += len(data)
            if self._framing_bytes > LARGEST_HEAD_BYTES and not self.ended:
                self._fail(EngineError(f"the engine's answer has more than {LARGEST_HEAD_BYTES} bytes of head"))
                return
        if self.ended or (self._wanted == _PART and self._chunks) or (self._wanted == _HEAD and self._head_done):
            self._wake()

    def eof_received(self) -> bool:
        """The end of a body without a length; the transport closes itself."""
        if self._head_done and not self.ended and self._lasts_until_close():
            self.ended = True
        self._gone = True
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail the exchange unless it has ended."""
        self._gone = True
        self._parser = None  # breaks the cycle of parser and callbacks
        if self._asking and not self.ended and self._error is None and self._broken is None:
            self._broken = "closed the connection" if exc is None else f"broke the connection: {exc}"
        self._on_lost(self)
        self._wake()

    # httptools callbacks

    def on_message_begin(self) -> None:
        """A message after the one that was asked for is a fault of the engine's."""
        if self.ended:
            self._surplus = True

    def on_status(self, _reason: bytes) -> None:
        """A status line was read."""
        self.answered = True

    def on_headers_complete(self) -> None:
        """The head of an answer, or of an interim one."""
        parser = self._parser
        if self.ended or parser is None:
            return
        self.answered = True
        status = parser.get_status_code()
        if 100 <= status < 200:
            return
        self.status = status
        self._head_done = True
        if self._headless:
            # The parser waits for the body that the head announces: the connection is of no further use.
            self.ended = True
            self._surplus = True

    def on_body(self, body: bytes) -> None:
        """A part of the body."""
        if self.ended:
            self._surplus = True
            return
        self._chunks.append(body)
        self.unread += len(body)
        if self.unread > UNREAD_BYTES and self._wanted != _WHOLE and not self._paused and self._transport is not None:
            self._paused = True
            self._transport.pause_reading()
        if self.unread > LARGEST_ANSWER_BYTES:
            self._fail(EngineError(f"the engine's answer has more than {LARGEST_ANSWER_BYTES} bytes"))

    def on_message_complete(self) -> None:
        """The end of the body, or of an interim answer."""
        if self._head_done and not self.ended and self._parser is not None:
            self.ended = True
            self.keep_alive = self._parser.should_keep_alive()

    def _lasts_until_close(self) -> bool:
        headers = headers_in(self.head_data)
        return (
            self.status not in _BODILESS
            and b"content-length" not in headers
            and b"chunked" not in headers.get(b"transfer-encoding", b"").lower()
        )

    def _on_garbage(self, error: Exception) -> None:
        self._surplus = True
        if self.ended:
            self._wake()
        elif self.answered:
            self._fail(EngineError(f"the engine's answer is not HTTP: {error}"))
        else:
            self._fail(broken=f"does not speak HTTP: {error}")
