"""Fake providers of outside models, one that speaks OpenAI's API and one that speaks Anthropic's, for tests."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

USAGE = {"prompt_tokens": 11, "completion_tokens": 3, "total_tokens": 14}


@dataclass
class FakeProvider:
    """What it was asked, how it shall answer, and what became of its streams."""

    url: str = ""
    requests: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    refuse: tuple[int, dict[str, Any], dict[str, str]] | None = None
    """Status, body, headers of every answer."""
    break_after: int | None = None
    """Chunks after which a stream's connection is cut."""
    end_early: bool = False
    """The stream ends in good order after ``break_after`` chunks, without saying that the answer is whole."""
    forever: bool = False
    """A stream that never ends, and an answer that never comes."""
    tool: bool = False
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    """The client closed a connection before the answer was whole."""
    begun: asyncio.Event = field(default_factory=asyncio.Event)

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """Either API, by path."""
        body = await request.json()
        self.requests.append(body)
        self.headers.append(dict(request.headers))
        self.begun.set()
        if self.refuse is not None:
            status, error, headers = self.refuse
            return web.json_response(error, status=status, headers=headers)
        shapes = _anthropic if request.path.endswith("/messages") else _openai
        whole, events = shapes(body, tool=self.tool)
        try:
            if body.get("stream"):
                return await self._stream(request, events)
            if self.forever:
                await asyncio.sleep(3600)
        except (asyncio.CancelledError, ConnectionResetError):
            self.ended.set()
            raise
        return web.json_response(whole)

    async def _stream(self, request: web.Request, events: list[bytes]) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        for number, event in enumerate(events):
            if number == self.break_after:
                if self.end_early:
                    await response.write_eof()
                elif request.transport is not None:
                    request.transport.abort()
                return response
            await response.write(event)
            while self.forever and number == 2:
                await asyncio.sleep(0.02)
                await response.write(events[1])
        await response.write_eof()
        return response


@asynccontextmanager
async def fake_provider() -> AsyncIterator[FakeProvider]:
    """A running provider; its ``url`` has no path."""
    provider = FakeProvider()
    app = web.Application()
    for path in ("/v1/chat/completions", "/chat/completions", "/v1/messages"):
        app.router.add_post(path, provider.answer)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    provider.url = f"http://127.0.0.1:{site._server.sockets[0].getsockname()[1]}"
    try:
        yield provider
    finally:
        await runner.cleanup()


def _openai(body: dict[str, Any], *, tool: bool) -> tuple[dict[str, Any], list[bytes]]:
    base = {"id": "chatcmpl-1", "created": 1, "model": "gpt-from-provider"}
    call = {"id": "call_1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
    said = {"role": "assistant", "content": None, "tool_calls": [call]} if tool else None
    finish = "tool_calls" if tool else "stop"
    message = said or {"role": "assistant", "content": "four, five"}
    choice = {"index": 0, "message": message, "finish_reason": finish}
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
    if tool:
        deltas += [
            {"tool_calls": [{"index": 0} | call | {"function": {"name": "add", "arguments": ""}}]},
            {"tool_calls": [{"index": 0, "function": {"arguments": '{"a":'}}]},
            {"tool_calls": [{"index": 0, "function": {"arguments": " 1}"}}]},
        ]
    else:
        deltas += [{"content": "four"}, {"content": ", five"}]
    chunk = base | {"object": "chat.completion.chunk"}
    events = [_data(chunk | {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]}) for delta in deltas]
    events.append(_data(chunk | {"choices": [{"index": 0, "delta": {}, "finish_reason": finish}]}))
    if (body.get("stream_options") or {}).get("include_usage"):
        events.append(_data(chunk | {"choices": [], "usage": USAGE}))
    events.append(b"data: [DONE]\n\n")
    return base | {"object": "chat.completion", "choices": [choice], "usage": USAGE}, events


def _anthropic(body: dict[str, Any], *, tool: bool) -> tuple[dict[str, Any], list[bytes]]:
    block = (
        {"type": "tool_use", "id": "toolu_1", "name": "add", "input": {"a": 1}}
        if tool
        else {"type": "text", "text": "four, five"}
    )
    message = {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": body["model"],
        "content": [block],
        "stop_reason": "tool_use" if tool else "end_turn",
        "stop_sequence": None,
        "usage": {"input_tokens": 11, "output_tokens": 3},
    }
    start = block | ({"input": {}} if tool else {"text": ""})
    kind = "input_json_delta" if tool else "text_delta"
    name, parts = ("partial_json", ['{"a":', " 1}"]) if tool else ("text", ["four", ", five"])
    events = [
        {"type": "message_start", "message": message | {"content": [], "stop_reason": None}},
        {"type": "content_block_start", "index": 0, "content_block": start},
        *({"type": "content_block_delta", "index": 0, "delta": {"type": kind, name: part}} for part in parts),
        {"type": "content_block_stop", "index": 0},
        {
            "type": "message_delta",
            "delta": {"stop_reason": message["stop_reason"], "stop_sequence": None},
            "usage": {"output_tokens": 3},
        },
        {"type": "message_stop"},
    ]
    return message, [f"event: {event['type']}\n".encode() + _data(event) for event in events]


def _data(body: dict[str, Any]) -> bytes:
    return f"data: {json.dumps(body)}\n\n".encode()
