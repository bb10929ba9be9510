"""The engine's answer as the client may see it: the public model name, and nothing that was not asked for."""

import msgspec
from msgspec import Raw

from core.variant import Variant
from gateway.inference.cut import cut_chunk, cut_whole, without_draft_counts
from gateway.inference.request import Fields
from gateway.inference.target import Target

_decode_fields = msgspec.json.Decoder(Fields).decode
_decode_choices = msgspec.json.Decoder(list[Fields]).decode
_encode = msgspec.json.Encoder().encode
_NULL = Raw(b"null")
_NO = Raw(b"")
_ZERO = Raw(b"0")
_CONTENT_FIELDS = ("token_ids", "prompt_token_ids")
_USAGE = b'"usage":'


class _PromptDetails(msgspec.Struct):
    cached_tokens: int | None = None


class TokenUsage(msgspec.Struct):
    """What the engine counted."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    prompt_tokens_details: _PromptDetails | None = None

    @property
    def cached_tokens(self) -> int | None:
        """Tokens of the prompt that the prefix cache had; None: the engine does not say."""
        return None if self.prompt_tokens_details is None else self.prompt_tokens_details.cached_tokens


class _Choice(msgspec.Struct):
    index: Raw = _ZERO
    message: Raw = _NO
    delta: Raw = _NO
    finish_reason: Raw = _NULL
    logprobs: Raw = _NULL
    token_ids: Raw = _NULL
    prompt_token_ids: Raw = _NULL


class _Captured(msgspec.Struct):
    choices: list[_Choice] = []
    prompt_token_ids: Raw = _NULL
    usage: TokenUsage | None = None


class _WithUsage(msgspec.Struct):
    usage: TokenUsage | None = None


_decode_captured = msgspec.json.Decoder(_Captured).decode
_decode_usage = msgspec.json.Decoder(_WithUsage).decode


class AnswerRewriter:
    """Turns the engine's JSON into the client's, and notes the usage on the way.

    What was added is replaced by null, which is what an engine writes where nothing was asked for; all other bytes
    stay as they came. They are cut out by their own bytes: in a JSON string a quote is escaped, so those of a field
    cannot be a part of what was said. An engine that writes spaces gets its answers decoded and written anew.
    """

    def __init__(self, target: Target, *, single: bool = False) -> None:
        """``single``: the answer has one choice, as was asked for."""
        plan = target.plan
        self._target = target
        self._token_ids = plan.token_ids
        self._logprobs = plan.logprobs
        self._hides_usage = plan.usage
        self._speculates = target.variant == Variant.FAST
        """The engine was started to say what became of its draft tokens, which is not for the client."""
        self._content = plan.token_ids or plan.logprobs
        self._cuts = single and plan.token_ids and plan.logprobs
        self._quiet = plan.token_ids and plan.logprobs
        """The client itself asked for neither: it sees no event that holds nothing else."""
        self.usage: TokenUsage | None = None
        """Of the whole answer, once it has been seen."""
        self.messages: dict[int, Raw] = {}
        """Choice → its message in a whole answer of which content is captured."""
        self._first_deltas: list[bytes | Raw] = []
        self.deltas: dict[bytes, list[bytes | Raw]] | None = {b"0": self._first_deltas} if self._content else None
        """Choice, as it stands in the JSON → the pieces of its message in a stream; None: no content is captured."""

    def answer(self, body: bytes) -> bytes:
        """A whole answer. Raises msgspec.DecodeError when it is not the JSON that an engine answers with."""
        seen = self._answer(body)
        return without_draft_counts(seen, event=False) if self._speculates else seen

    def _answer(self, body: bytes) -> bytes:
        target = self._target
        if not self._content:
            self.usage = _decode_usage(body).usage
            return self._renamed(body)
        cut = cut_whole(body) if self._cuts and target.engine_field in body else None
        if cut is not None:
            self.usage = TokenUsage(cut.prompt_tokens, cut.completion_tokens)
            self.messages[0] = Raw(cut.message)
            return cut.body.replace(target.engine_field, target.public_field, 1)
        captured = _decode_captured(body)
        self.usage = captured.usage
        for number, choice in enumerate(captured.choices):
            self.messages[number] = choice.message
        if target.engine_field not in body:
            return self._written_anew(body)
        return self._without_content(body, captured).replace(target.engine_field, target.public_field, 1)

    def chunk(self, data: bytes) -> bytes | None:
        """One event of a stream; None: the client is not to see it. Raises msgspec.DecodeError as ``answer``."""
        if not self._content and _USAGE not in data:
            return self._renamed(data)
        if self._cuts and self.deltas is not None:
            target = self._target
            cut = cut_chunk(data) if target.engine_field in data else None
            if cut is not None:
                self._first_deltas.append(cut[1])
                return cut[0].replace(target.engine_field, target.public_field, 1)
        captured = _decode_captured(data)
        choices = captured.choices
        if captured.usage is not None:
            self.usage = captured.usage
            if self._hides_usage and not choices:
                return None
            if self._speculates:
                data = without_draft_counts(data, event=True)
        if self.deltas is None:
            return self._renamed(data)
        for choice in choices:
            if choice.delta is not _NO:
                self.deltas.setdefault(bytes(choice.index), []).append(choice.delta)
        if self._quiet and choices and all(map(_says_nothing, choices)):
            return None
        target = self._target
        if target.engine_field not in data:
            return self._written_anew(data)
        return self._without_content(data, captured).replace(target.engine_field, target.public_field, 1)

    def _renamed(self, body: bytes) -> bytes:
        target = self._target
        if target.engine_field in body:
            return body.replace(target.engine_field, target.public_field, 1)
        fields = _decode_fields(body)
        fields["model"] = target.public_model_json
        return _encode(fields)

    def _without_content(self, body: bytes, captured: _Captured) -> bytes:
        for choice in captured.choices:
            if self._logprobs and choice.logprobs is not _NULL:
                body = _nulled(body, b'"logprobs":', choice.logprobs)
            if self._token_ids and choice.token_ids is not _NULL:
                body = _nulled(body, b'"token_ids":', choice.token_ids)
            if self._token_ids and choice.prompt_token_ids is not _NULL:
                body = _nulled(body, b'"prompt_token_ids":', choice.prompt_token_ids)
        if self._token_ids and captured.prompt_token_ids is not _NULL:
            body = _nulled(body, b'"prompt_token_ids":', captured.prompt_token_ids)
        return body

    def _written_anew(self, body: bytes) -> bytes:
        fields = _decode_fields(body)
        fields["model"] = self._target.public_model_json
        if self._token_ids and "prompt_token_ids" in fields:
            fields["prompt_token_ids"] = _NULL
        raw = fields.get("choices")
        if raw is not None:
            choices = _decode_choices(raw)
            for choice in choices:
                self._null_fields(choice)
            fields["choices"] = Raw(_encode(choices))
        return _encode(fields)

    def _null_fields(self, choice: Fields) -> None:
        for name in _CONTENT_FIELDS if self._token_ids else ():
            if name in choice:
                choice[name] = _NULL
        if self._logprobs and "logprobs" in choice:
            choice["logprobs"] = _NULL


def engine_error_in(data: bytes) -> Fields | None:
    """The error object, if a stream's event is one. Raises msgspec.DecodeError when it is not a JSON object."""
    if b'"error"' not in data:
        return None
    fields = _decode_fields(data)
    if "choices" in fields or "error" not in fields:
        return None
    return fields


def _nulled(body: bytes, name: bytes, value: Raw) -> bytes:
    """``body`` with the first field of this name and value nulled."""
    found = bytes(value)
    start = body.find(name) + len(name)
    while start >= len(name):
        end = start + len(found)
        if body[start:end] == found:
            return b"%bnull%b" % (body[:start], body[end:])
        start = body.find(name, start) + len(name)
    return body


def _says_nothing(choice: _Choice) -> bool:
    """An engine with a tool or reasoning parser sends such chunks only because ids or log-probs were asked for."""
    return bytes(choice.delta) == b"{}" and bytes(choice.finish_reason) == b"null"
