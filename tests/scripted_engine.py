"""An engine that says exactly what a test wants: calls, reasoning, stop strings, errors, silence."""

import asyncio
import json
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

USAGE = {
    "prompt_tokens": 20,
    "completion_tokens": 5,
    "total_tokens": 25,
    "prompt_tokens_details": {"cached_tokens": 8},
}


@dataclass
class ScriptedEngine:
    """Answers chat completions with ``message`` whole, and cut into ``deltas`` in a stream, as vLLM's shapes are."""

    message: dict[str, Any] = field(default_factory=lambda: {"role": "assistant", "content": "four"})
    deltas: list[dict[str, Any]] = field(default_factory=lambda: [{"content": "fo"}, {"content": "ur"}])
    finish_reason: str = "stop"
    stop_reason: str | int | None = None
    break_after: int | None = None
    """Chunks after which a stream's connection is cut."""
    forever: bool = False
    """A stream that never ends, and an answer that never comes."""
    logprob: float | None = -0.1
    """Of the sampled token, in whole answers."""
    counts: bool = True
    """It has the route ``/tokenize``."""
    requests: list[dict[str, Any]] = field(default_factory=list)
    left: asyncio.Event = field(default_factory=asyncio.Event)
    begun: asyncio.Event = field(default_factory=asyncio.Event)
    adapters: dict[str, str] = field(default_factory=dict)
    url: str = ""

    async def start(self) -> None:
        """Listen on a free port."""
        app = web.Application()
        app.router.add_post("/v1/chat/completions", self._chat)
        app.router.add_post("/tokenize", self._tokenize)
        app.router.add_get("/health", self._health)
        self._runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"

    async def stop(self) -> None:
        """Close."""
        await self._runner.cleanup()

    async def _health(self, _request: web.Request) -> web.Response:
        return web.Response()

    async def _tokenize(self, request: web.Request) -> web.Response:
        if not self.counts:
            raise web.HTTPNotFound
        body = await request.json()
        self.requests.append(body)
        words = sum(len(str(message.get("content")).split()) for message in body["messages"])
        return web.json_response({"count": words, "max_model_len": 100, "tokens": list(range(words))})

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        self.requests.append(body)
        self.begun.set()
        base = {"id": "chatcmpl-1", "created": 1, "model": body["model"], "prompt_token_ids": [1, 2]}
        last = {"index": 0, "finish_reason": self.finish_reason, "stop_reason": self.stop_reason}
        try:
            if body.get("stream"):
                return await self._stream(request, body, base, last)
            if self.forever:
                await asyncio.sleep(3600)
        except (asyncio.CancelledError, ConnectionResetError):
            self.left.set()
            raise
        logprobs = {"content": [{"token": "four", "logprob": self.logprob, "bytes": None, "top_logprobs": []}]}
        choice = last | {"message": self.message, "token_ids": [3], "logprobs": logprobs}
        return web.json_response(base | {"object": "chat.completion", "choices": [choice], "usage": USAGE})

    async def _stream(
        self, request: web.Request, body: dict[str, Any], base: dict[str, Any], last: dict[str, Any]
    ) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        chunk = base | {"object": "chat.completion.chunk"}
        options = body.get("stream_options") or {}
        if options.get("continuous_usage_stats"):
            chunk["usage"] = USAGE | {"completion_tokens": 0}
        for number, delta in enumerate([{"role": "assistant", "content": ""}, *self.deltas]):
            if number == self.break_after and request.transport is not None:
                request.transport.abort()
                return response
            await _write(response, chunk | {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]})
        while self.forever:
            await asyncio.sleep(0.02)
            await _write(response, chunk | {"choices": [{"index": 0, "delta": {"content": "x"}}]})
        await _write(response, chunk | {"choices": [last | {"delta": {}}]})
        if options.get("include_usage"):
            await _write(response, chunk | {"choices": [], "usage": USAGE})
        await response.write(b"data: [DONE]\n\n")
        await response.write_eof()
        return response


async def _write(response: web.StreamResponse, chunk: dict[str, Any]) -> None:
    await response.write(b"data: " + json.dumps(chunk).encode() + b"\n\n")
