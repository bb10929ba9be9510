"""One answer of the model, piece by piece, as output items and as the chat message that the next call needs."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from core.errors import EngineError
from core.message import Message
from gateway.responses_api.calls import OpenCall
from gateway.responses_api.writer import ResponseWriter

MakeCall = Callable[[str, str], OpenCall]
"""Call id and function name → the item that shows the call."""

_decode = msgspec.json.Decoder().decode


@dataclass(slots=True)
class ModelTurn:
    """What the model said, once it has ended."""

    text: str = ""
    reasoning: str = ""
    refusal: str = ""
    calls: list[OpenCall] = field(default_factory=list)
    finish_reason: str | None = None
    model: str = ""
    """The public name of what answered."""
    usage: Mapping[str, Any] = field(default_factory=dict)

    @property
    def message(self) -> Message:
        """The assistant's message for the next call."""
        message: Message = {"role": "assistant"}
        if self.reasoning:
            message["reasoning"] = self.reasoning
        message["content"] = self.text or self.refusal or (None if self.calls or self.reasoning else "")
        if self.calls:
            message["tool_calls"] = [
                {
                    "id": call.call_id,
                    "type": "function",
                    "function": {"name": call.name, "arguments": call.arguments},
                }
                for call in self.calls
            ]
        return message


class TurnReader:
    """Feeds a chat completion's events, or its whole answer, into a ResponseWriter."""

    def __init__(self, writer: ResponseWriter, make_call: MakeCall) -> None:
        self._writer = writer
        self._make_call = make_call
        self._part: _TextPart | None = None
        self._calls: dict[int, OpenCall] = {}
        self._shown = 0
        self.turn = ModelTurn()

    def whole(self, data: bytes) -> None:
        """Take a whole answer. Raises EngineError when it is none."""
        answer = _object(data)
        for choice in answer.get("choices") or ():
            message = choice.get("message") or {}
            calls = [call | {"index": number} for number, call in enumerate(message.get("tool_calls") or ())]
            choice["delta"] = message | {"tool_calls": calls}
        self._take(answer)

    def chunk(self, data: bytes) -> None:
        """Take one event of a stream. Raises EngineError when it is none."""
        self._take(_object(data))

    def end(self) -> ModelTurn:
        """The model has ended; items of hosted tools stay open for their results."""
        whole = self.turn.finish_reason not in ("length", "content_filter")
        self._close_part("completed" if whole else "incomplete")
        self.turn.calls = [self._calls[number] for number in sorted(self._calls)]
        for number, call in enumerate(self.turn.calls):
            call.close(whole=whole or number + 1 < len(self.turn.calls))
        if not self._shown and not self.turn.calls and whole:
            self._text("message", "")
            self._close_part("completed")
        return self.turn

    def cut(self) -> ModelTurn:
        """The answer broke off: everything that is open ends as it is."""
        self.turn.finish_reason = "length"
        return self.end()

    def _take(self, answer: dict[str, Any]) -> None:
        if isinstance(answer.get("model"), str):
            self.turn.model = answer["model"]
        if isinstance(answer.get("usage"), dict):
            self.turn.usage = answer["usage"]
        for choice in answer.get("choices") or ():
            delta = choice.get("delta") or {}
            self._reasoning(delta.get("reasoning") or delta.get("reasoning_content"))
            if delta.get("content"):
                self._text("message", delta["content"], _logprobs(choice))
                self.turn.text += delta["content"]
            if delta.get("refusal"):
                self._text("refusal", delta["refusal"])
                self.turn.refusal += delta["refusal"]
            for call in delta.get("tool_calls") or ():
                self._tool_call(call)
            if choice.get("finish_reason") is not None:
                self.turn.finish_reason = choice["finish_reason"]

    def _reasoning(self, text: Any) -> None:
        if isinstance(text, str) and text:
            self._text("reasoning", text)
            self.turn.reasoning += text

    def _text(self, kind: str, text: str, logprobs: list[dict[str, Any]] | None = None) -> None:
        if self._part is None or self._part.kind != kind:
            self._close_part("completed")
            self._part = _TextPart(self._writer, kind)
            self._shown += 1
        self._part.append(text, logprobs or [])

    def _close_part(self, status: str) -> None:
        if self._part is not None:
            self._part.close(status)
            self._part = None

    def _tool_call(self, call: dict[str, Any]) -> None:
        function = call.get("function") or {}
        number = call.get("index", 0)
        if number not in self._calls:
            self._close_part("completed")
            call_id = call.get("id") or f"call_{self._writer.id.partition('_')[2]}{len(self._calls)}"
            self._calls[number] = self._make_call(call_id, function.get("name") or "")
        if function.get("arguments"):
            self._calls[number].append(function["arguments"])


class _TextPart:
    """An item with one part of text: a message, a refusal or reasoning."""

    _PARTS: Mapping[str, tuple[str, str, str]] = {
        "message": ("message", "output_text", "text"),
        "refusal": ("message", "refusal", "refusal"),
        "reasoning": ("reasoning", "reasoning_text", "text"),
    }

    def __init__(self, writer: ResponseWriter, kind: str) -> None:
        self.kind = kind
        self._writer = writer
        item_type, self._part_type, self._field = self._PARTS[kind]
        self._event = f"response.{self._part_type}"
        self._text: list[str] = []
        self._logprobs: list[dict[str, Any]] = []
        self._item: dict[str, Any] = {"type": item_type, "status": "in_progress", "content": []}
        if kind == "reasoning":
            self._item["summary"] = []
        else:
            self._item["role"] = "assistant"
        self._index = writer.add(self._item)
        self._emit("response.content_part.added", part=self._shown())

    def append(self, text: str, logprobs: list[dict[str, Any]]) -> None:
        if not text:
            return
        self._text.append(text)
        self._logprobs += logprobs
        self._emit(f"{self._event}.delta", delta=text, **self._with(logprobs))

    def close(self, status: str) -> None:
        part = self._shown()
        self._item |= {"content": [part], "status": status}
        self._emit(f"{self._event}.done", **{self._field: part[self._field]}, **self._with(self._logprobs))
        self._emit("response.content_part.done", part=part)
        self._writer.done(self._index)

    def _shown(self) -> dict[str, Any]:
        part: dict[str, Any] = {"type": self._part_type, self._field: "".join(self._text)}
        return part | ({"annotations": [], "logprobs": self._logprobs} if self.kind == "message" else {})

    def _with(self, logprobs: list[dict[str, Any]]) -> dict[str, Any]:
        return {"logprobs": [_without_bytes(one) for one in logprobs]} if self.kind == "message" else {}

    def _emit(self, kind: str, **fields: Any) -> None:
        self._writer.emit(kind, item_id=self._item["id"], output_index=self._index, content_index=0, **fields)


def usage_of(turns: list[ModelTurn]) -> dict[str, Any]:
    """The usage of a response: of all its model calls together."""
    total = {"input": 0, "output": 0, "cached": 0, "reasoning": 0}
    for turn in turns:
        total["input"] += turn.usage.get("prompt_tokens") or 0
        total["output"] += turn.usage.get("completion_tokens") or 0
        total["cached"] += (turn.usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
        total["reasoning"] += (turn.usage.get("completion_tokens_details") or {}).get("reasoning_tokens") or 0
    return {
        "input_tokens": total["input"],
        "input_tokens_details": {"cached_tokens": total["cached"], "cache_write_tokens": 0},
        "output_tokens": total["output"],
        "output_tokens_details": {"reasoning_tokens": total["reasoning"]},
        "total_tokens": total["input"] + total["output"],
    }


def _without_bytes(entry: dict[str, Any]) -> dict[str, Any]:
    """A token's log-prob as events show it; parts of items have its bytes too."""
    top = [{"token": one.get("token"), "logprob": one.get("logprob")} for one in entry["top_logprobs"] or ()]
    return {"token": entry["token"], "logprob": entry["logprob"], "top_logprobs": top}


def _logprobs(choice: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        {name: one.get(name) for name in ("token", "bytes", "logprob", "top_logprobs")}
        for one in (choice.get("logprobs") or {}).get("content") or ()
    ]


def _object(data: bytes) -> dict[str, Any]:
    try:
        decoded = _decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise EngineError(f"the engine's answer is not JSON: {error}") from error
    if not isinstance(decoded, dict):
        raise EngineError("the engine's answer is not a JSON object")
    return decoded
