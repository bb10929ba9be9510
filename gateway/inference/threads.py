"""Which earlier Turn a request's messages continue: the longest prefix that ends with an answer given before.

A conversation is known by a chain of digests that begins with the Tenant and has a link before and after each
answer. A client that sends the history back may have dropped or reshaped what carries no meaning (null fields, parts
around a text, reasoning): only role, text, tool calls and their results count.
"""

import hashlib
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
from msgspec import Raw

from gateway.capture.record import Surface
from gateway.inference.request import InferenceRequest

_MOST_THREADS = 20_000
_DIGEST_BYTES = 16
_MOST_TOOL_CALLS = 4096
"""Of one answer: an engine's ``index`` must not decide how much memory is used."""
_LONGEST_KEY = 64
"""Of blake2b."""


class _Function(msgspec.Struct):
    name: str | None = None
    arguments: Any = None


class _ToolCall(msgspec.Struct):
    index: int = 0
    function: _Function | None = None


class _Message(msgspec.Struct):
    role: str | None = None
    content: Any = None
    tool_calls: list[_ToolCall] | None = None
    tool_call_id: str | None = None


class _Choice(msgspec.Struct):
    index: int = 0
    delta: _Message | None = None


class _Chunk(msgspec.Struct):
    choices: list[_Choice] = []


_decode_messages = msgspec.json.Decoder(list[_Message]).decode
_decode_message = msgspec.json.Decoder(_Message).decode
_decode_deltas = msgspec.json.Decoder(list[_Message | None]).decode
_decode_chunk = msgspec.json.Decoder(_Chunk).decode
_encode = msgspec.json.Encoder().encode
_Meaning = list[object]


class Link(NamedTuple):
    """An answer that a conversation may continue."""

    episode_id: str
    turn_id: str


class Thread(NamedTuple):
    """The conversation of one request."""

    digest: bytes
    """Of all its messages."""
    answered: list[bytes]
    """Digests of its prefixes that end with an assistant message, longest first."""


def thread_of(tenant_id: str, request: InferenceRequest, surface: Surface) -> Thread | None:
    """The conversation of a chat request; None where there is none to recognise (completions, odd messages)."""
    raw = request.fields.get("messages")
    if surface == "completions" or raw is None:
        return None
    try:
        messages = _decode_messages(raw)
    except (msgspec.DecodeError, RecursionError):
        # The engine will say what is wrong with them.
        return None
    if not messages:
        return None
    digest = tenant_id.encode()[:_LONGEST_KEY]
    answered: list[bytes] = []
    asked: list[_Meaning] = []
    for message in messages:
        if message.role == "assistant":
            digest = _extend(_extend(digest, asked), [_meaning(message)])
            answered.append(digest)
            asked = []
        else:
            asked.append(_meaning(message))
    answered.reverse()
    return Thread(_extend(digest, asked), answered)


def message_digest(thread: Thread, raw: bytes | Raw) -> bytes:
    """Digest of the conversation with this answer, an assistant message in JSON. Raises msgspec.DecodeError."""
    try:
        return _answered(thread, _decode_message(raw))
    except RecursionError as error:
        raise msgspec.DecodeError("nested too deeply") from error


def delta_digests(thread: Thread, deltas: Mapping[bytes, Sequence[bytes | Raw]]) -> dict[int, bytes]:
    """As ``stream_digests``, from the pieces of each choice's message."""
    found = {}
    try:
        for index, pieces in deltas.items():
            if not pieces:
                continue
            message = _Message()
            # At once: a call of the decoder for each piece takes several times as long.
            for delta in _decode_deltas(b"[%b]" % b",".join(pieces)):
                if delta is not None:
                    _merge(message, delta)
            found[int(index)] = _answered(thread, message)
    except RecursionError as error:
        raise msgspec.DecodeError("nested too deeply") from error
    return found


def stream_digests(thread: Thread, payloads: Sequence[bytes]) -> dict[int, bytes]:
    """Choice → digest of the conversation with that answer, from the data of all events of a stream.

    Raises msgspec.DecodeError when they have another shape than OpenAI's.
    """
    answers: dict[int, _Message] = {}
    try:
        for payload in payloads:
            for choice in _decode_chunk(payload).choices:
                if choice.delta is not None:
                    _merge(answers.setdefault(choice.index, _Message()), choice.delta)
    except RecursionError as error:
        raise msgspec.DecodeError("nested too deeply") from error
    return {index: _answered(thread, message) for index, message in answers.items()}


class ThreadIndex:
    """Answers that this process gave, by the digest of their conversation; the oldest are forgotten."""

    def __init__(self) -> None:
        self._links: OrderedDict[bytes, Link] = OrderedDict()

    def add(self, digest: bytes, link: Link) -> None:
        """Remember an answer. The same conversation answered twice is continued by its newest answer."""
        links = self._links
        links[digest] = link
        links.move_to_end(digest)
        while len(links) > _MOST_THREADS:
            links.popitem(last=False)

    def find(self, thread: Thread) -> Link | None:
        """The longest prefix that ends with an answer of this process."""
        for digest in thread.answered:
            link = self._links.get(digest)
            if link is not None:
                return link
        return None


def _answered(thread: Thread, message: _Message) -> bytes:
    message.role = "assistant"
    return _extend(thread.digest, [_meaning(message)])


def _extend(digest: bytes, meanings: list[_Meaning]) -> bytes:
    return hashlib.blake2b(_encode(meanings), key=digest, digest_size=_DIGEST_BYTES).digest()


def _meaning(message: _Message) -> _Meaning:
    content = message.content
    meaning = [message.role, content if isinstance(content, str) else _text(content), message.tool_call_id]
    for call in message.tool_calls or ():
        if call.function is not None:
            meaning += (call.function.name, _arguments(call.function.arguments))
    return meaning


def _arguments(written: Any) -> object:
    """Arguments as data: clients that parse them write them anew, with other spaces."""
    if not isinstance(written, str):
        return written
    try:
        return msgspec.json.decode(written)
    except (msgspec.DecodeError, RecursionError):
        return written


def _text(content: Any) -> object:
    """A text however it is wrapped; nothing and an empty text are the same."""
    if isinstance(content, list):
        texts = [part["text"] for part in content if isinstance(part, dict) and isinstance(part.get("text"), str)]
        return "".join(texts) if len(texts) == len(content) else content
    return content or ""


def _merge(message: _Message, delta: _Message) -> None:
    if isinstance(delta.content, str):
        message.content = (message.content or "") + delta.content
    for part in delta.tool_calls or ():
        calls = message.tool_calls = message.tool_calls or []
        if not 0 <= part.index < _MOST_TOOL_CALLS:
            raise msgspec.DecodeError(f"no tool call can have the index {part.index}")
        while len(calls) <= part.index:
            calls.append(_ToolCall(index=len(calls), function=_Function()))
        function = calls[part.index].function
        if part.function is None or function is None:
            continue
        function.name = (function.name or "") + (part.function.name or "") or None
        function.arguments = (function.arguments or "") + (part.function.arguments or "")
