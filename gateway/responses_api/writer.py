"""The response object while it grows, and the events that say how. Source: OpenAI Responses API, streaming events."""

import re
import time
from collections.abc import Mapping
from typing import Any

import msgspec

from core import ids
from core.errors import HoneError, RateLimited
from gateway.responses_api.request import Item, ResponsesRequest
from gateway.responses_api.tools import public_tools

_encode = msgspec.json.Encoder().encode

_ITEM_PREFIXES = {
    "message": "msg",
    "reasoning": "rs",
    "function_call": "fc",
    "function_call_output": "fco",
    "code_interpreter_call": "ci",
    "shell_call": "sh",
    "shell_call_output": "sho",
    "local_shell_call": "lsh",
    "mcp_list_tools": "mcpl",
    "mcp_call": "mcp",
    "mcp_approval_request": "mcpr",
}
_ITEM_ID = re.compile(r"[a-z]+_([0-9a-z]{26})[io][0-9]{4,}")


def item_id(kind: str, response_id: str, number: int, *, given: bool = False) -> str:
    """An item's id. It holds the response's, so that a reference to the item leads to where it is stored.

    ``given``: the item was in the input.
    """
    suffix = f"i{number:04d}" if given else f"o{number:04d}"
    return f"{_ITEM_PREFIXES.get(kind, 'item')}_{response_id.partition('_')[2]}{suffix}"


def response_of_item(identifier: str) -> str | None:
    """The id of the response that an item belongs to; None: no id of ours."""
    found = _ITEM_ID.fullmatch(identifier)
    return None if found is None else f"{ids.RESPONSE}_{found[1]}"


class ResponseWriter:
    """Builds one response object. While somebody listens, ``take`` gives the events since the last call."""

    def __init__(self, request: ResponsesRequest, response_id: str, *, listening: bool) -> None:
        self.response = _opened(request, response_id)
        self._listening = listening
        self._number = 0
        self._frames: list[bytes] = []

    @property
    def id(self) -> str:
        """The response's id."""
        return str(self.response["id"])

    def emit(self, kind: str, **fields: Any) -> None:
        """Write one event."""
        if not self._listening:
            return
        data = _encode({"type": kind, "sequence_number": self._number} | fields)
        self._frames.append(b"event: %b\ndata: %b\n\n" % (kind.encode(), data))
        self._number += 1

    def take(self) -> bytes:
        """The events written since the last call, ready to send; empty if there are none."""
        frames, self._frames = b"".join(self._frames), []
        return frames

    def begin(self) -> None:
        """``response.created`` and ``response.in_progress``."""
        self.emit("response.created", response=self.response)
        self.emit("response.in_progress", response=self.response)

    def add(self, item: Item) -> int:
        """A new output item, which gets its id here unless it has one; its output index."""
        index = len(self.response["output"])
        item.setdefault("id", item_id(item["type"], self.id, index))
        self.response["output"].append(item)
        self.emit("response.output_item.added", output_index=index, item=item)
        return index

    def done(self, index: int) -> None:
        """An output item is as it will stay."""
        self.emit("response.output_item.done", output_index=index, item=self.response["output"][index])

    def complete(self, usage: Mapping[str, Any]) -> None:
        """The response ended well."""
        self._end("completed", usage)
        self.response["completed_at"] = int(time.time())

    def cut_short(self, reason: str, usage: Mapping[str, Any]) -> None:
        """The response ended early: ``max_output_tokens`` or ``content_filter``."""
        self.response["incomplete_details"] = {"reason": reason}
        self._end("incomplete", usage)

    def fail(self, error: HoneError, usage: Mapping[str, Any]) -> None:
        """The response broke off; open items stay as far as they came."""
        code = "rate_limit_exceeded" if isinstance(error, RateLimited) else "server_error"
        self.response["error"] = {"code": code, "message": error.message}
        for item in self.response["output"]:
            if item.get("status") in ("in_progress", "interpreting", "calling"):
                item["status"] = "incomplete"
        self._end("failed", usage)

    def finish(self) -> None:
        """The last event: ``response.completed``, ``response.incomplete`` or ``response.failed``."""
        self.emit(f"response.{self.response['status']}", response=self.response)

    def _end(self, status: str, usage: Mapping[str, Any]) -> None:
        self.response["status"] = status
        self.response["usage"] = dict(usage)


def _opened(request: ResponsesRequest, response_id: str) -> dict[str, Any]:
    """A response object before the model has said anything: the request's own values come back in it."""
    return {
        "id": response_id,
        "object": "response",
        "created_at": int(time.time()),
        "completed_at": None,
        "status": "in_progress",
        "background": False,
        "error": None,
        "incomplete_details": None,
        "instructions": request.instructions,
        "max_output_tokens": request.max_output_tokens,
        "max_tool_calls": request.max_tool_calls,
        "model": request.model,
        "output": [],
        "parallel_tool_calls": request.parallel_tool_calls,
        "previous_response_id": request.previous_response_id,
        "reasoning": {"effort": None, "summary": None} | dict(request.reasoning),
        "store": request.store,
        "temperature": request.temperature,
        "text": {"format": {"type": "text"}} | {name: value for name, value in request.text.items() if value},
        "tool_choice": request.tool_choice,
        "tools": public_tools(request.tools),
        "top_logprobs": request.top_logprobs,
        "top_p": request.top_p,
        "truncation": request.truncation,
        "usage": None,
        "metadata": request.metadata,
        "user": None,
    } | request.echoed
