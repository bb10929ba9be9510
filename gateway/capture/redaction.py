"""Redaction: takes personal data out of a call before anything of it is stored.

Patterns with checksums where there are any (Presidio's recognizers): e-mail addresses, phone numbers, payment cards,
IBANs, IP addresses, US social security numbers, crypto wallets. Names of people are not found: that takes a language
model. Pictures, sound and files cannot be searched and are taken out as a whole.
"""

import json
import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, Protocol

import msgspec
import structlog

from core.errors import PermissionDenied
from core.turn import Turn
from gateway.capture.record import CapturedCall

log = structlog.get_logger(__name__)

_LEAST_SCORE = 0.4
"""Presidio's own scale: what a pattern alone is worth, or 1 after a checksum."""
_LEAST_DIGITS = 9
_ID_KEYS = ("id", "tool_call_id")
_API_ID = re.compile(r"[A-Za-z][\w-]{0,127}")
"""An id of a tool call in a message: its digits are no phone number, and call and result must still match."""
_NO_LANGUAGE: Any = None
"""What a language model would have found; the recognizers do without."""
_NOT_SEARCHABLE = ("image_url", "input_audio", "file", "video_url", "audio_url", "audio")


class Redactor(Protocol):
    """Replaces personal data in a text by the name of its kind."""

    def redact(self, text: str) -> str:
        """The text without personal data; the same text where there is none."""
        ...


class PresidioRedactor:
    """Microsoft Presidio's pattern recognizers, without a language model and without the network."""

    def __init__(self) -> None:
        import tldextract  # noqa: PLC0415 - a heavy optional library
        from presidio_analyzer import predefined_recognizers as known  # noqa: PLC0415 - a heavy optional library

        # The packaged list of public suffixes: the default would be fetched.
        suffixes = tldextract.TLDExtract(suffix_list_urls=(), cache_dir=None)

        class _Email(known.EmailRecognizer):
            def validate_result(self, pattern_text: str) -> bool:
                return suffixes(pattern_text).fqdn != ""

        self._recognizers = [
            _Email(),
            known.PhoneRecognizer(),
            known.CreditCardRecognizer(),
            known.IbanRecognizer(),
            known.IpRecognizer(),
            known.UsSsnRecognizer(),
            known.CryptoRecognizer(),
        ]

    def redact(self, text: str) -> str:
        """The text with ``<EMAIL_ADDRESS>``, ``<PHONE_NUMBER>``, … in place of what was found."""
        found = [
            result
            for recognizer in self._recognizers
            for result in recognizer.analyze(text, recognizer.supported_entities, _NO_LANGUAGE)
            if result.score >= _LEAST_SCORE
        ]
        # The surest first, then the longest; what overlaps is merged so that no part of a find stays.
        spans: list[tuple[int, int, str]] = []
        for result in sorted(found, key=lambda result: (-result.score, result.start - result.end)):
            start, end, kind = result.start, result.end, result.entity_type
            for other in [span for span in spans if span[0] < end and start < span[1]]:
                spans.remove(other)
                start, end, kind = min(start, other[0]), max(end, other[1]), other[2]
            spans.append((start, end, kind))
        for start, end, kind in sorted(spans, reverse=True):
            text = f"{text[:start]}<{kind}>{text[end:]}"
        return text


def load_redactor() -> Redactor | None:
    """The installed redactor; None where the extra ``redaction`` is not installed."""
    try:
        return PresidioRedactor()
    except ImportError as error:
        log.warning("redaction_not_installed", error=str(error), hint="install the extra 'redaction'")
        return None


@lru_cache(maxsize=1)
def required_redactor() -> Redactor:
    """The redactor for what a client of a redacting tenant says. Raises PermissionDenied where none is installed."""
    redactor = load_redactor()
    if redactor is None:
        raise PermissionDenied(
            "this tenant's texts are kept only without personal data, which this installation cannot find",
            hint="send no texts and no metadata, or have the extra 'redaction' installed",
        )
    return redactor


def redact_metadata(metadata: Mapping[str, str]) -> dict[str, str]:
    """Labels without personal data, in their names too. Raises PermissionDenied as ``required_redactor``."""
    if not metadata:
        return {}
    redact = required_redactor().redact
    return {_redact_text(name, redact): _redact_text(text, redact) for name, text in metadata.items()}


def is_api_id(value: object) -> bool:
    """Whether a value looks like an id of the API and not like something that was said."""
    return isinstance(value, str) and _API_ID.fullmatch(value) is not None


def redact_request(call: CapturedCall, redactor: Redactor) -> tuple[CapturedCall, bool]:
    """The call with a redacted body, and whether anything was taken out of it. Raises msgspec.DecodeError."""
    request = msgspec.json.decode(call.request, type=dict[str, Any])
    redacted = {name: _redact(value, redactor.redact, messages=name == "messages") for name, value in request.items()}
    prompt = request.get("prompt")
    if isinstance(prompt, list) and not all(isinstance(text, str) for text in prompt):
        # Token ids spell a text that cannot be searched here.
        redacted["prompt"] = None
    if redacted == request:
        return call, False
    return msgspec.structs.replace(call, request=msgspec.json.encode(redacted)), True


def redact_turn(turn: Turn, redactor: Redactor, *, prompt_changed: bool) -> Turn:
    """The Turn with a redacted response. Where text changed, the token ids that spell it go and it never trains."""
    response = _redact(turn.response, redactor.redact, messages=True)
    if not prompt_changed and response == turn.response:
        return turn
    gone = {"prompt_ids": (), "output_ids": (), "output_logprobs": (), "exact": False, "trainable": False}
    return turn.model_copy(update={"response": response, "redacted": True} | gone)


def without_content(call: CapturedCall) -> CapturedCall:
    """The call as if there were neither consent nor ``store`` to keep what was said."""
    return msgspec.structs.replace(call, request=b"", payloads=[], consent=False, stored=False)


def redact_message(value: Any, redactor: Redactor) -> Any:
    """A message, or any JSON value said by somebody, without personal data."""
    return _redact(value, redactor.redact, messages=True)


def _redact(value: Any, redact: Callable[[str], str], *, messages: bool = False) -> Any:
    """A JSON value without personal data; in ``messages`` the API's own ids stay."""
    if isinstance(value, str):
        return _redact_text(value, redact)
    if isinstance(value, list):
        return [_redact(item, redact, messages=messages) for item in value]
    if isinstance(value, dict):
        kind = value.get("type")
        if isinstance(kind, str) and kind in _NOT_SEARCHABLE and kind in value:
            return {"type": "text", "text": f"<{kind.upper()}>"}
        return {
            _redact_text(name, redact): item
            if messages and name in _ID_KEYS and is_api_id(item)
            else _redact(item, redact, messages=messages)
            for name, item in value.items()
        }
    if isinstance(value, int) and not isinstance(value, bool):
        # Inside what a client or a model wrote as JSON, a card's number can stand without quotation marks.
        text = str(value)
        changed = redact(text) if len(text) >= _LEAST_DIGITS else text
        return value if changed == text else changed
    return value


def _redact_text(text: str, redact: Callable[[str], str]) -> str:
    """Text, or JSON inside a string such as a tool call's arguments, which stays JSON."""
    if text[:1] in ("{", "["):
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            return redact(text)
        redacted = _redact(value, redact)
        return text if redacted == value else json.dumps(redacted)
    return redact(text)
