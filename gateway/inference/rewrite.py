"""The engine's answer as the client may see it: the public model name, and nothing that was not asked for."""

import msgspec
from msgspec import Raw

from gateway.inference.request import Fields
from gateway.inference.target import Target

_decode_fields = msgspec.json.Decoder(Fields).decode
_decode_choices = msgspec.json.Decoder(list[Fields]).decode
_encode = msgspec.json.Encoder().encode
_NULL = Raw(b"null")
_CONTENT_FIELDS = ("token_ids", "prompt_token_ids")
_USAGE = b'"usage":'


class TokenUsage(msgspec.Struct):
    """What the engine counted."""

    prompt_tokens: int = 0
    completion_tokens: int = 0


class _WithUsage(msgspec.Struct):
    usage: TokenUsage | None = None


_decode_usage = msgspec.json.Decoder(_WithUsage).decode
_decode_token_usage = msgspec.json.Decoder(TokenUsage | None).decode


class AnswerRewriter:
    """Turns the engine's JSON into the client's, and notes the usage on the way.

    What was added is replaced by null, which is what an engine writes where nothing was asked for. Where only the
    model's name differs, the bytes are kept as they came: inside a JSON string a quote is escaped, so the bytes of
    the name's field cannot be a part of what was said.
    """

    def __init__(self, target: Target) -> None:
        plan = target.plan
        self._target = target
        self._plan = plan
        self._content = plan.token_ids or plan.logprobs
        self.usage: TokenUsage | None = None
        """Of the whole answer, once it has been seen."""
        self.messages: dict[int, Raw] = {}
        """Choice → its message in a whole answer of which content is captured."""

    def answer(self, body: bytes) -> bytes:
        """A whole answer. Raises msgspec.DecodeError when it is not the JSON that an engine answers with."""
        target = self._target
        if not self._content and target.engine_field in body:
            self.usage = _decode_usage(body).usage
            return body.replace(target.engine_field, target.public_field, 1)
        fields = _decode_fields(body)
        usage = fields.get("usage")
        if usage is not None:
            self.usage = _decode_token_usage(usage)
        for number, choice in enumerate(self._rewrite(fields)):
            message = choice.get("message")
            if message is not None:
                self.messages[number] = message
        return _encode(fields)

    def chunk(self, data: bytes) -> bytes | None:
        """One event of a stream; None: the client is not to see it. Raises msgspec.DecodeError as ``answer``."""
        counted = _USAGE in data
        if not counted and not self._content and self._target.engine_field in data:
            return data.replace(self._target.engine_field, self._target.public_field, 1)
        if counted:
            self.usage = _decode_usage(data).usage or self.usage
        fields = _decode_fields(data)
        choices = self._rewrite(fields)
        if counted and self._plan.usage and not choices:
            return None
        if choices and self._content and all(map(_says_nothing, choices)):
            return None
        return _encode(fields)

    def _rewrite(self, fields: Fields) -> list[Fields]:
        fields["model"] = self._target.public_model_json
        raw = fields.get("choices")
        choices = [] if raw is None else _decode_choices(raw)
        if not self._content:
            return choices
        token_ids, logprobs = self._plan.token_ids, self._plan.logprobs
        if token_ids and "prompt_token_ids" in fields:
            fields["prompt_token_ids"] = _NULL
        for choice in choices:
            if token_ids:
                for name in _CONTENT_FIELDS:
                    if name in choice:
                        choice[name] = _NULL
            if logprobs and "logprobs" in choice:
                choice["logprobs"] = _NULL
        fields["choices"] = Raw(_encode(choices))
        return choices


def engine_error_in(data: bytes) -> Fields | None:
    """The error object, if a stream's event is one. Raises msgspec.DecodeError when it is not a JSON object."""
    if b'"error"' not in data:
        return None
    fields = _decode_fields(data)
    if "choices" in fields or "error" not in fields:
        return None
    return fields


def _says_nothing(choice: Fields) -> bool:
    """An engine with a tool or reasoning parser sends such chunks only because token ids were asked for."""
    delta, finish = choice.get("delta"), choice.get("finish_reason")
    return delta is not None and bytes(delta) == b"{}" and (finish is None or bytes(finish) == b"null")
