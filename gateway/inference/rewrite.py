"""The engine's answer as the client may see it: the public model name, and nothing that was not asked for."""

import msgspec
from msgspec import Raw

from gateway.inference.request import CapturePlan, Fields

_decode_fields = msgspec.json.Decoder(Fields).decode
_decode_choices = msgspec.json.Decoder(list[Fields]).decode
_encode = msgspec.json.Encoder().encode
_NULL = Raw(b"null")


class AnswerRewriter:
    """Turns the engine's JSON into the client's: the public model name, and nothing that was not asked for."""

    def __init__(self, plan: CapturePlan, public_model: str) -> None:
        self._plan = plan
        self._model = Raw(_encode(public_model))

    def answer(self, body: bytes) -> bytes:
        """A whole answer. Raises msgspec.DecodeError when it is not the JSON that an engine answers with."""
        fields = _decode_fields(body)
        self._rewrite(fields)
        return _encode(fields)

    def chunk(self, data: bytes) -> bytes | None:
        """One event of a stream; None: the client is not to see it. Raises msgspec.DecodeError as ``answer``."""
        fields = _decode_fields(data)
        choices = self._rewrite(fields)
        if not self._plan.keep_usage and fields.pop("usage", None) is not None and not choices:
            return None
        if choices and (self._plan.token_ids or self._plan.logprobs) and all(map(_says_nothing, choices)):
            return None
        return _encode(fields)

    def _rewrite(self, fields: Fields) -> list[Fields]:
        fields["model"] = self._model
        raw = fields.get("choices")
        choices = [] if raw is None else _decode_choices(raw)
        if self._plan.token_ids:
            fields.pop("prompt_token_ids", None)
        if not (self._plan.token_ids or self._plan.logprobs):
            return choices
        for choice in choices:
            if self._plan.token_ids:
                choice.pop("token_ids", None)
                choice.pop("prompt_token_ids", None)
            if self._plan.logprobs and "logprobs" in choice:
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
