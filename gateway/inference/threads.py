"""Which earlier Turn a request's messages continue: the longest prefix that ends with an answer given before.

A conversation is known by a chain of digests, one per message, that begins with the Tenant. A client that sends the
history back may have dropped or reshaped what carries no meaning (null fields, parts around a text, reasoning): only
role, text, tool calls and their results count.
"""

import hashlib
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from gateway.capture.record import Surface
from gateway.inference.request import InferenceRequest

_MOST_THREADS = 20_000
_DIGEST_BYTES = 16


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
    message: _Message | UnsetType = UNSET
    delta: _Message | UnsetType = UNSET


class _Answer(msgspec.Struct):
    choices: list[_Choice] = []


class _Request(msgspec.Struct):
    messages: list[_Message] = []


_decode_request = msgspec.json.Decoder(_Request).decode
_decode_answer = msgspec.json.Decoder(_Answer).decode
_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class Link:
    """An answer that a conversation may continue."""

    episode_id: str
    turn_id: str


@dataclass(frozen=True, slots=True)
class Thread:
    """The conversation of one request."""

    digest: bytes
    """Of all its messages."""
    answered: tuple[bytes, ...]
    """Digests of its prefixes that end with an assistant message, longest first."""


def thread_of(tenant_id: str, request: InferenceRequest, surface: Surface) -> Thread | None:
    """The conversation of a chat request; None where there is none to recognise (completions, odd messages)."""
    if surface == "completions":
        return None
    try:
        messages = _decode_request(request.body).messages
    except msgspec.DecodeError:
        # The engine will say what is wrong with them.
        return None
    if not messages:
        return None
    digest = hashlib.blake2b(tenant_id.encode(), digest_size=_DIGEST_BYTES).digest()
    answered = []
    for message in messages:
        digest = _extend(digest, message)
        if message.role == "assistant":
            answered.append(digest)
    return Thread(digest, tuple(reversed(answered)))


def answer_digests(thread: Thread, payloads: Sequence[bytes]) -> dict[int, str]:
    """Choice → digest of the conversation with that answer, from the engine's JSON (one body, or all events).

    Raises msgspec.DecodeError when it has another shape than OpenAI's.
    """
    answers: dict[int, _Message] = {}
    for payload in payloads:
        for choice in _decode_answer(payload).choices:
            if choice.message is not UNSET:
                answers[choice.index] = choice.message
            elif choice.delta is not UNSET:
                _merge(answers.setdefault(choice.index, _Message()), choice.delta)
    found = {}
    for index, message in answers.items():
        message.role = "assistant"
        found[index] = _extend(thread.digest, message).hex()
    return found


class ThreadIndex:
    """Answers that this process gave, by the digest of their conversation; the oldest are forgotten."""

    def __init__(self) -> None:
        self._links: OrderedDict[str, Link] = OrderedDict()

    def add(self, digest: str, link: Link) -> None:
        """Remember an answer. The same conversation answered twice is continued by its newest answer."""
        links = self._links
        links[digest] = link
        links.move_to_end(digest)
        while len(links) > _MOST_THREADS:
            links.popitem(last=False)

    def find(self, thread: Thread) -> Link | None:
        """The longest prefix that ends with an answer of this process."""
        for digest in thread.answered:
            link = self._links.get(digest.hex())
            if link is not None:
                return link
        return None


def _extend(digest: bytes, message: _Message) -> bytes:
    return hashlib.blake2b(_encode(tuple(_meaning(message))), key=digest, digest_size=_DIGEST_BYTES).digest()


def _meaning(message: _Message) -> Iterator[object]:
    yield message.role
    yield _text(message.content)
    yield message.tool_call_id
    for call in message.tool_calls or ():
        if call.function is not None:
            yield call.function.name
            yield _arguments(call.function.arguments)


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
        while len(calls) <= part.index:
            calls.append(_ToolCall(index=len(calls), function=_Function()))
        function = calls[part.index].function
        if part.function is None or function is None:
            continue
        function.name = (function.name or "") + (part.function.name or "") or None
        function.arguments = (function.arguments or "") + (part.function.arguments or "")
