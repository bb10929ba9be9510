"""Runs inside a vLLM server: writes down the token ids of every chat answer as the server hands them to its socket.

It is what a benchmark compares received streams with, and knows nothing of Hone. vLLM adds it with ``--middleware
engine_record.EngineRecord``; ``ENGINE_RECORD_FOLDER`` says where one file per server process is written, a JSON
object per line: ``id`` (of the answer), ``model`` (as asked for), ``ids``, ``finished``.
"""

import json
import os
from collections.abc import Awaitable, Callable, MutableMapping
from pathlib import Path
from typing import Any

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]

_PATH = "/v1/chat/completions"


class EngineRecord:
    """ASGI middleware: every message passes on at once, and is read when the answer has ended."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._file = Path(os.environ["ENGINE_RECORD_FOLDER"]) / f"engine-{os.getpid()}.jsonl"

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http" or scope["path"] != _PATH:
            await self._app(scope, receive, send)
            return
        asked = bytearray()
        sent = bytearray()
        ended = False

        async def receive_and_keep() -> Message:
            message = await receive()
            asked.extend(message.get("body", b""))
            return message

        async def send_and_keep(message: Message) -> None:
            nonlocal ended
            if message["type"] == "http.response.body":
                sent.extend(message.get("body", b""))
                ended = ended or not message.get("more_body", False)
            await send(message)

        try:
            await self._app(scope, receive_and_keep, send_and_keep)
        finally:
            line = json.dumps(record(bytes(asked), bytes(sent), finished=ended))
            with self._file.open("a") as file:
                file.write(line + "\n")


def record(asked: bytes, sent: bytes, *, finished: bool) -> dict[str, Any]:
    """What is written down about one answer, streamed or whole; the first choice only."""
    found: dict[str, Any] = {"id": None, "model": _json(asked).get("model"), "ids": [], "finished": finished}
    for payload in _payloads(sent):
        found["id"] = payload.get("id") or found["id"]
        for choice in payload.get("choices") or []:
            found["ids"] += choice.get("token_ids") or []
    return found


def _payloads(sent: bytes) -> list[dict[str, Any]]:
    if not sent.startswith(b"data:"):
        return [_json(sent)]
    lines = (line.removeprefix(b"data:").strip() for line in sent.split(b"\n") if line.startswith(b"data:"))
    return [_json(line) for line in lines if line != b"[DONE]"]


def _json(text: bytes) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
