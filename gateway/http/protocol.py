"""uvicorn's HTTP protocol with a way past ASGI: hot routes are parsed, run and answered on the connection itself."""

import asyncio
import contextlib
import contextvars
import socket
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Final, cast

import httptools
import structlog
from uvicorn._types import ASGI3Application
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from core import ids
from core.errors import EngineUnavailable, HoneError, InvalidRequest
from gateway.asgi import MAX_BODY_BYTES
from gateway.errors import JSON_HEADER, encode, error_body, error_headers, internal_error_body
from gateway.http.base import ClientLeft, HeaderMap, HotHandler
from gateway.http.errors import body_too_large, head_too_large, request_timed_out
from gateway.http.hot_request import HotRequest
from gateway.http.known_head import KnownHead, learn

log = structlog.get_logger(__name__)

MAX_HEADERS: Final = 100
MAX_HEADER_BYTES: Final = 64 * 1024
REQUEST_READ_SECONDS: Final = 60.0
_LINGER_SECONDS: Final = 2.0
"""A refused client may go on sending for so long; closing at once would destroy the answer on its way."""
_MOST_LESSONS: Final = 3  # heads to be learned: a client that sends another one each time teaches nothing
_CONTINUE: Final = b"HTTP/1.1 100 Continue\r\n\r\n"


class _Refused(Exception):
    """Stops the parser; the reason stands in ``_refusal``."""


class HotProtocol(HttpToolsProtocol):
    """One client connection. Subclasses made by ``gateway.http.bound.hot_protocol`` carry the routes and the limits.

    Requests are answered in the order of their arrival, hot and ASGI ones alike. ``cycle`` is the newest request,
    ``_turn`` the one that may be answered now, ``pipeline`` holds those between. A client that closes its sending
    side has left: a half-closed connection cannot be told from a closed one before something is written.
    """

    # uvicorn's class has so many attributes that the interpreter finds them slowly: the busy ones stand in slots.
    __slots__ = (
        "_body_bytes",
        "_default_head",
        "_default_headers",
        "_due",
        "_expects_continue",
        "_idle_since",
        "_in_body",
        "_in_head",
        "_known",
        "_lessons",
        "_longest_head",
        "_partial_head_bytes",
        "_parts",
        "_read_timer",
        "_receiving",
        "_refusal",
        "_refused",
        "_turn",
        "cycle",
        "flow",
        "headers",
        "loop",
        "parser",
        "pipeline",
        "server_state",
        "tasks",
        "timeout_keep_alive_task",
        "transport",
        "url",
    )

    routes: Mapping[bytes, tuple[HotHandler, str]]
    """Path → handler of its POST requests, and the path as text."""
    on_refused: Callable[[int], None]
    max_body_bytes = MAX_BODY_BYTES
    max_headers = MAX_HEADERS
    max_header_bytes = MAX_HEADER_BYTES
    request_read_seconds = REQUEST_READ_SECONDS

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._turn: HotRequest | RequestResponseCycle | None = None
        self._receiving: HotRequest | None = None
        """The hot request whose body is not complete."""
        self._due: HotRequest | None = None
        """The hot request whose handler is to be started."""
        self._known: KnownHead | None = None
        self._lessons = _MOST_LESSONS
        self._parts: list[bytes] = []
        self._body_bytes = 0
        """Of what is being received."""
        self._expects_continue = False
        self._in_head = False
        self._in_body = False
        self._partial_head_bytes = 0
        self._longest_head = 0
        """A head that ends in the data that is being parsed has at most so many bytes."""
        self._refusal: HoneError | None = None
        self._refused = False
        self._idle_since: float | None = None
        self._read_timer: asyncio.TimerHandle | None = None
        self._default_headers: list[tuple[bytes, bytes]] | None = None
        self._default_head = b""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Bound the wait for the first byte."""
        super().connection_made(transport)
        opened = transport.get_extra_info("socket")
        if opened is not None and opened.family in (socket.AF_INET, socket.AF_INET6):
            with contextlib.suppress(OSError):
                opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._idle_since = self.loop.time()
        self.timeout_keep_alive_task = self.loop.call_later(
            self.request_read_seconds, self.timeout_keep_alive_handler
        )

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell every request that is not answered yet."""
        self._stop_read_timer()
        waiting = [entry[0] for entry in self.pipeline]
        self.pipeline.clear()
        for request in cast("list[HotRequest | RequestResponseCycle | None]", [self._turn, *waiting]):
            if isinstance(request, HotRequest):
                request.leave()
            elif request is not None and not request.response_complete:
                request.disconnected = True
                request.message_event.set()
        self._receiving = None
        if isinstance(cast(object, self.cycle), HotRequest):
            self.cycle = cast(RequestResponseCycle, None)
        super().connection_lost(exc)
        self._unset_keepalive_if_required()

    def data_received(self, data: bytes) -> None:
        """Parse; what did not arrive whole is waited for a bounded time."""
        if self._refused or self.parser is None:
            return
        self._idle_since = None
        known = self._known
        if known is not None and not self._in_head and self._receiving is None and self.cycle.response_complete:
            body = known.body_of(data, self.max_body_bytes)
            if body is not None:
                self._take_known(known, body)
                return
        if self._turn is None:
            self._unset_keepalive_if_required()
        in_head = self._in_head
        self._longest_head = self.max_header_bytes + 1 if in_head else len(data)
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._refuse(self._refusal or InvalidRequest(f"the request is not valid HTTP: {error}"))
            self._start_due()
            return
        except httptools.HttpParserUpgrade:
            if self._should_upgrade():
                self.handle_websocket_upgrade()
            else:
                self._unsupported_upgrade_warning()
            self._start_due()
            return
        # Not inside of the parser: an answer may be given at once, and with it the turn of the next request.
        if self._lessons and self._due is not None and not in_head:
            self._learn(data, self._due)
        self._start_due()
        if self._in_head or self._receiving is not None:
            self._wait_for_rest(len(data) if in_head and self._in_head else 0)

    def _learn(self, data: bytes, request: HotRequest) -> None:
        """Remember the head of a request that came alone and whole."""
        handler, headers, alone = request.handler, request.headers, not self._in_head and request.keep_alive
        self._lessons -= 1
        if handler is not None and isinstance(headers, HeaderMap) and alone and self.limit_concurrency is None:
            self._known = learn(data, request.body, handler=handler, path=request.path, headers=headers)

    def _take_known(self, known: KnownHead, body: bytes) -> None:
        """A whole request that needs no parser."""
        self._turn = request = HotRequest(self, known.handler, known.path, known.headers, keep_alive=True)
        request.body, request.received = body, True
        self.cycle = cast(RequestResponseCycle, request)
        self._start(request)

    def _wait_for_rest(self, more_head_bytes: int) -> None:
        self._partial_head_bytes += more_head_bytes
        if self._partial_head_bytes > self.max_header_bytes:
            self._refuse(head_too_large(self.max_headers, self.max_header_bytes))
            return
        request = self._receiving
        if request is not None:
            if self._turn is not request:
                return
            if self._expects_continue:
                self._expects_continue = False
                self.transport.write(_CONTINUE)
        if self._read_timer is None:
            self._read_timer = self.loop.call_later(self.request_read_seconds, self._on_read_timeout)

    def _stop_read_timer(self) -> None:
        if self._read_timer is not None:
            self._read_timer.cancel()
            self._read_timer = None

    def _on_read_timeout(self) -> None:
        self._read_timer = None
        if self.transport.is_closing() or not (self._in_head or self._receiving is not None):
            return
        self._refuse(request_timed_out(self.request_read_seconds))

    # Parser callbacks

    def on_message_begin(self) -> None:
        """A request begins; nothing is built for it yet."""
        self.url = b""
        self.headers = []
        self._in_head = True
        self._partial_head_bytes = 0

    def on_url(self, url: bytes) -> None:
        """A part of the request target."""
        self.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header; trailers are dropped."""
        if self._in_head:
            self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        """Route: a POST on a hot path stays here, everything else becomes ASGI."""
        # Until the request is routed it counts as head: a refusal of it is no business of the one before.
        parser, headers = self.parser, self.headers
        if len(headers) > self.max_headers or self._head_is_too_long():
            raise self._refused_for(head_too_large(self.max_headers, self.max_header_bytes))
        found = HeaderMap(headers)
        keep_alive = parser.should_keep_alive()
        # Only HTTP/1.1 keeps a connection without being told to; the parser is slow to say the version.
        modern = (keep_alive and b"connection" not in found) or parser.get_http_version() == "1.1"
        if not modern and b"transfer-encoding" in found:
            raise self._refused_for(InvalidRequest("HTTP/1.0 knows no transfer-encoding"))
        route = self.routes.get(self.url) or self.routes.get(self.url.partition(b"?")[0])
        if route is None or parser.get_method() != b"POST" or parser.should_upgrade():
            self._in_head, self._in_body = False, True
            self._begin_asgi(found)
            return
        self._check_limits(found)
        self._in_head, self._in_body = False, True
        handler, path = route
        request = HotRequest(self, handler, path, found, keep_alive=modern and keep_alive, chunked=modern)
        self._expects_continue = modern and found.get(b"expect", b"").lower() == b"100-continue"
        self._receiving = request
        self._body_bytes = 0
        idle = self.cycle is None or self.cycle.response_complete
        self.cycle = cast(RequestResponseCycle, request)
        if idle:
            self._turn = request
        else:
            self.flow.pause_reading()
            self.pipeline.appendleft((self.cycle, self.app))

    def on_body(self, body: bytes) -> None:
        """A part of the body."""
        if self._receiving is None:
            super().on_body(body)
            return
        self._parts.append(body)
        self._body_bytes += len(body)
        if self._body_bytes > self.max_body_bytes:
            raise self._refused_for(body_too_large(self.max_body_bytes))

    def on_message_complete(self) -> None:
        """A hot request has arrived whole: its handler runs as soon as it is its turn."""
        self._in_body = False
        request = self._receiving
        if request is None:
            super().on_message_complete()
            return
        self._receiving = None
        parts = self._parts
        request.body = parts[0] if len(parts) == 1 else b"".join(parts)
        parts.clear()
        request.received = True
        self._stop_read_timer()
        if self._turn is request:
            self._due = request

    def _head_is_too_long(self) -> bool:
        if self._longest_head <= self.max_header_bytes:
            return False
        return len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers) > self.max_header_bytes

    def _begin_asgi(self, found: Mapping[bytes, bytes]) -> None:
        self._stop_read_timer()
        url, headers = self.url, self.headers
        super().on_message_begin()
        self.url = url
        self.headers = headers
        self.scope["headers"] = headers
        self.expect_100_continue = found.get(b"expect", b"").lower() == b"100-continue"
        super().on_headers_complete()

    def _check_limits(self, found: Mapping[bytes, bytes]) -> None:
        length = found.get(b"content-length", b"")
        if length.isdigit() and int(length) > self.max_body_bytes:
            raise self._refused_for(body_too_large(self.max_body_bytes))
        limit = self.limit_concurrency
        if limit is not None and (len(self.connections) >= limit or len(self.tasks) >= limit):
            raise self._refused_for(EngineUnavailable("too many requests at once", hint="try again in a second"))

    # Turns

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        request = cast(object, cycle)
        if isinstance(request, HotRequest):
            self._take_turn(request)
            return
        self._turn = cycle
        super()._start_asgi_task(cycle, app)

    def _take_turn(self, request: HotRequest) -> None:
        self._turn = request
        if request.refusal is not None:
            self._answer_refusal(request)
        elif request.received:
            self.loop.call_soon(self._start, request)
        else:
            self._wait_for_rest(0)

    def _start_due(self) -> None:
        request, self._due = self._due, None
        if request is not None:
            self._start(request)

    def _start(self, request: HotRequest) -> None:
        """Run the handler; what it leaves to be awaited becomes a task."""
        if (handler := request.handler) is None or request.left:
            return
        try:
            work = handler(request)
        except Exception as error:  # noqa: BLE001 - a fault in a handler must not take the connection's order with it
            self._on_crash(request, error)
            return
        if work is not None:
            self.run(request, work)

    def run(self, request: HotRequest, work: Coroutine[Any, Any, None]) -> None:
        """Run a handler's work as a task; the client's leaving cancels it."""
        context = contextvars.Context() if self.config.reset_contextvars else None
        task = asyncio.Task(self._run(request, work), loop=self.loop, name="hot-request", context=context)
        request.task = task
        self.tasks.add(task)

    async def _run(self, request: HotRequest, work: Coroutine[Any, Any, None]) -> None:
        request.running = True
        try:
            if request.left:
                work.close()
            else:
                await work
        except asyncio.CancelledError:
            if not request.left and not request.response_complete:
                request.break_off()
            raise
        except ClientLeft:
            if not request.left:
                request.break_off()
        except Exception as error:  # noqa: BLE001 - a fault in a handler must not take the connection's order with it
            self._on_crash(request, error)
        else:
            if not request.response_complete and not request.left:
                self._on_crash(request, RuntimeError("the handler ended without a whole answer"))
        finally:
            request.body = b""
            if request.task is not None:
                self.tasks.discard(request.task)
                request.task = None

    def resume_writing(self) -> None:
        """The client has caught up."""
        super().resume_writing()
        turn = self._turn
        if isinstance(turn, HotRequest) and turn.watcher is not None:
            turn.watcher.client_reads()

    def _on_crash(self, request: HotRequest, error: Exception) -> None:
        request_id = ids.new_id(ids.REQUEST)
        log.error("request_crashed", request_id=request_id, path=request.path, error=repr(error), exc_info=error)
        if request.response_complete or request.left:
            return
        if request.started:
            request.break_off()
        else:
            head = [JSON_HEADER, (b"x-request-id", request_id.encode())]
            request.answer(500, head, encode(internal_error_body(request_id)))

    def on_response_complete(self) -> None:
        """Start the next request in line, or wait for one."""
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        if self.flow.read_paused:
            self.flow.resume_reading()
        if self.pipeline:
            cycle, app = self.pipeline.pop()
            self._start_asgi_task(cycle, app)
        elif self._refused:
            return
        elif self._in_head:
            self._wait_for_rest(0)
        else:
            self._idle_since = self.loop.time()
            if self.timeout_keep_alive_task is None:
                self.timeout_keep_alive_task = self.loop.call_later(
                    self.timeout_keep_alive, self.timeout_keep_alive_handler
                )

    def timeout_keep_alive_handler(self) -> None:
        """Close a connection that was idle for long enough; one timer serves many requests."""
        self.timeout_keep_alive_task = None
        if self._idle_since is None or self.transport.is_closing():
            return
        answered = self._turn is not None
        allowed = self.timeout_keep_alive if answered else self.request_read_seconds
        rest = self._idle_since + allowed - self.loop.time()
        if rest <= 0:
            self.transport.close()
        else:
            self.timeout_keep_alive_task = self.loop.call_later(rest, self.timeout_keep_alive_handler)

    # Refusals

    def _refused_for(self, error: HoneError) -> _Refused:
        self._refusal = error
        return _Refused()

    def _refuse(self, error: HoneError) -> None:
        """Answer the request that is arriving with an error, after those before it, and close."""
        self._refused = True
        self._stop_read_timer()
        self._parts.clear()
        request = HotRequest(self, None, "", {})
        request.refusal = error
        cycle = self.cycle
        receiving, self._receiving = self._receiving, None
        if cycle is None or cycle.response_complete:
            self._take_turn(request)
        elif self._in_head or not self._in_body:
            # What came before is complete; this one waits for its turn.
            self._queue(request)
        elif self._turn is not cycle:
            self.pipeline.popleft()
            self._queue(request)
        elif receiving is not None:
            self._take_turn(request)
        elif cycle.response_started:
            self.transport.close()
        else:
            cycle.disconnected = True
            cycle.message_event.set()
            self._take_turn(request)

    def _queue(self, request: HotRequest) -> None:
        self.cycle = cast(RequestResponseCycle, request)
        self.pipeline.appendleft((self.cycle, self.app))

    def _answer_refusal(self, request: HotRequest) -> None:
        error = request.refusal
        if error is None or self.transport.is_closing():
            return
        self.cycle = cast(RequestResponseCycle, request)
        request_id = ids.new_id(ids.REQUEST)
        log.info("request_refused", request_id=request_id, status=error.status, error=error.message)
        self.on_refused(error.status)
        head = [*error_headers(error), (b"x-request-id", request_id.encode())]
        request.answer(error.status, head, encode(error_body(error, request_id)))
        if self.transport.can_write_eof():
            self.transport.write_eof()
        self.loop.call_later(_LINGER_SECONDS, self.transport.close)

    def default_head(self) -> bytes:
        """The header lines that uvicorn adds to every answer; its list changes once a second."""
        headers = self.server_state.default_headers
        if headers is not self._default_headers:
            self._default_headers = headers
            self._default_head = b"".join([b"\r\n%b: %b" % header for header in headers])
        return self._default_head
