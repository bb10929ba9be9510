"""The tool service as an ASGI application: sessions of ``sandbox.service.sessions`` over HTTP.

Callers are gateways of the same installation: they authenticate with one shared key and name the tenant for whom
they call in ``x-hone-tenant``. Errors have the shape that the OpenAI API gives them.
"""

import asyncio
import hashlib
import hmac
import json
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Annotated, Any, TypeVar

import structlog
from fastapi import Depends, FastAPI, Header, Request
from fastapi.responses import JSONResponse, Response

from core.errors import AuthenticationFailed, HoneError, InvalidRequest
from sandbox.service.sessions import Session, ToolSessions
from sandbox.service.wire import MOST_BODY_BYTES, CreateSession, Load, RunCall, RunDone, SessionCreated

log = structlog.get_logger(__name__)

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]
Result = TypeVar("Result")

_LOOK_SECONDS = 0.2


def create_tool_app(sessions: ToolSessions, *, key: str, url: str, idle_seconds: float) -> App:
    """The application; ``url`` is the address under which gateways reach this very process."""
    app = FastAPI(title="Hone tools", openapi_url=None, docs_url=None, redoc_url=None)
    app.add_exception_handler(HoneError, _on_error)

    def find(session_id: str, x_hone_tenant: Annotated[str, Header()]) -> Session:
        return sessions.get(x_hone_tenant, session_id)

    Found = Annotated[Session, Depends(find)]

    @app.get("/load")
    async def load() -> Load:
        return sessions.load.model_copy(update={"url": url})

    @app.post("/sessions")
    async def create(body: CreateSession) -> SessionCreated:
        session = sessions.create(body.tenant, body.session_id)
        return SessionCreated(session_id=session.id, url=url, idle_seconds=idle_seconds)

    @app.get("/sessions/{session_id}")
    async def look(session: Found) -> SessionCreated:
        return SessionCreated(session_id=session.id, url=url, idle_seconds=idle_seconds)

    @app.post("/sessions/{session_id}/run")
    async def run(request: Request, session: Found, call: RunCall) -> RunDone:
        return await _while_wanted(request, sessions.run(session, call))

    @app.get("/sessions/{session_id}/files/{path:path}")
    async def read_file(session: Found, path: str) -> Response:
        return Response(await sessions.read_file(session, path), media_type="application/octet-stream")

    @app.put("/sessions/{session_id}/files/{path:path}", status_code=204)
    async def write_file(request: Request, session: Found, path: str) -> Response:
        await sessions.write_file(session, path, await request.body())
        return Response(status_code=204)

    @app.delete("/sessions/{session_id}", status_code=204)
    async def delete(session: Found) -> Response:
        await sessions.delete(session)
        return Response(status_code=204)

    return _Guard(app, key)


class _Guard:
    """Lets only callers with the key in, and only bodies of a sane size, before anything is read."""

    def __init__(self, app: App, key: str) -> None:
        if not key:
            raise AuthenticationFailed("the tool service needs a key", param="worker.tools_key")
        self._app = app
        self._digest = hashlib.sha256(key.encode()).digest()

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            headers = dict(scope["headers"])
            error = self._refusal(headers)
            if error is not None:
                await _send_error(send, error)
                return
        await self._app(scope, receive, send)

    def _refusal(self, headers: dict[bytes, bytes]) -> HoneError | None:
        kind, _, key = headers.get(b"authorization", b"").partition(b" ")
        given = hashlib.sha256(key.strip()).digest()
        if not hmac.compare_digest(given, self._digest) or kind.lower() != b"bearer":
            return AuthenticationFailed("the tool service does not know this key", hint="see worker.tools_key")
        length = headers.get(b"content-length", b"0")
        if b"transfer-encoding" in headers or not length.isdigit() or int(length) > MOST_BODY_BYTES:
            return InvalidRequest(f"a body needs a content-length of at most {MOST_BODY_BYTES}")
        return None


async def _while_wanted(request: Request, work: Awaitable[Result]) -> Result:
    """Await the work, and cancel it when the caller has left."""
    task = asyncio.ensure_future(work)
    try:
        while not task.done():
            await asyncio.wait({task}, timeout=_LOOK_SECONDS)
            if not task.done() and await request.is_disconnected():
                break
    finally:
        if not task.done():
            task.cancel()
            await asyncio.wait({task})
    if task.cancelled():
        raise InvalidRequest("the caller left")
    return task.result()


def _body(error: HoneError) -> dict[str, Any]:
    message = error.message if error.hint is None else f"{error.message}; {error.hint}"
    return {"error": {"message": message, "type": error.type, "param": error.param, "code": error.code}}


async def _on_error(_: Request, error: Exception) -> Response:
    if not isinstance(error, HoneError):
        raise error
    if error.status >= 500:
        log.error("tool_call_failed", error=str(error), code=error.code)
    return JSONResponse(_body(error), status_code=error.status)


async def _send_error(send: Send, error: HoneError) -> None:
    body = json.dumps(_body(error)).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": error.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
