"""Raw ASGI for the hot path: types, headers, bodies, and a watch on the client's connection."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any, TypeAlias

from gateway.errors import BodyTooLarge
from gateway.http.base import ClientLeft, RawHeaders

Scope: TypeAlias = MutableMapping[str, Any]
Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
AsgiApp: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]


MAX_BODY_BYTES = 32 * 1024 * 1024
"""Longest request body."""


def header_map(scope: Scope) -> Mapping[bytes, bytes]:
    """The request's headers by lower-case name; the last of several equal names wins."""
    return dict(scope["headers"])


async def read_body(receive: Receive) -> bytes:
    """The whole request body. Raises ClientLeft if the client goes away before its end."""
    message = await receive()
    if message["type"] == "http.request" and not message.get("more_body", False):
        return bytes(message.get("body", b""))
    parts = []
    while message["type"] == "http.request":
        parts.append(message.get("body", b""))
        if not message.get("more_body", False):
            return b"".join(parts)
        message = await receive()
    raise ClientLeft


def bounded(scope: Scope, receive: Receive) -> Receive:
    """``receive`` that raises BodyTooLarge instead of handing out more than MAX_BODY_BYTES of a body.

    A body whose declared length is above that is refused before its first byte is taken.
    """
    declared = header_map(scope).get(b"content-length", b"")
    taken = int(declared) if declared.isdigit() else 0
    known = taken > 0

    async def receive_bounded() -> Message:
        nonlocal taken
        if taken > MAX_BODY_BYTES:
            raise BodyTooLarge(f"the body is longer than {MAX_BODY_BYTES} bytes")
        message = await receive()
        if not known and message["type"] == "http.request":
            taken += len(message.get("body", b""))
            if taken > MAX_BODY_BYTES:
                raise BodyTooLarge(f"the body is longer than {MAX_BODY_BYTES} bytes")
        return message

    return receive_bounded


async def until_disconnected(receive: Receive) -> None:
    """Return when the client's connection closes. To be called once the body was read."""
    while (await receive())["type"] != "http.disconnect":
        continue


async def send_answer(send: Send, status: int, headers: RawHeaders, body: bytes) -> None:
    """A whole answer with its length."""
    length = (b"content-length", str(len(body)).encode())
    await send({"type": "http.response.start", "status": status, "headers": [*headers, length]})
    await send({"type": "http.response.body", "body": body})


class ClientWatch:
    """Cancels the task that entered it when the client's connection closes; leaving it then raises ClientLeft.

    To be entered after the whole request body was read: the next message can only be the disconnect. A server
    reports the disconnect also after the last byte of the answer, so ``stop`` comes before that byte.
    """

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._task: asyncio.Task[Any] | None = None
        self._watch: asyncio.Future[Message] | None = None
        self._left = False

    def __enter__(self) -> "ClientWatch":
        self._task = asyncio.current_task()
        self._watch = asyncio.ensure_future(self._receive())
        self._watch.add_done_callback(self._on_message)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        self.stop()
        if self._left and isinstance(error, asyncio.CancelledError):
            if self._task is not None:
                self._task.uncancel()
            raise ClientLeft from None

    @property
    def left(self) -> bool:
        """Whether the client's connection closed while it was watched."""
        return self._left

    def stop(self) -> None:
        """Watch no more: the answer is as good as sent."""
        if self._watch is not None:
            self._watch.remove_done_callback(self._on_message)
            self._watch.cancel()
            self._watch = None

    def _on_message(self, watch: "asyncio.Future[Message]") -> None:
        if watch.cancelled() or self._task is None:
            return
        self._left = True
        self._task.cancel()
