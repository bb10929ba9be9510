"""An engine's refusals as errors of ours: what the caller did wrong stays the caller's fault."""

from collections.abc import Mapping
from typing import Any

import msgspec

from core.errors import (
    ContextLengthExceeded,
    EngineError,
    EngineUnavailable,
    HoneError,
    InvalidRequest,
    RateLimited,
)

_TOO_LONG = ("context length", "cannot be greater than max_model_len")
"""How vLLM 0.32 (``renderers/params.py``, ``entrypoints/serve/utils/api_utils.py``) and SGLang 0.5
(``managers/tokenizer_manager.py``) say that prompt and answer are too long."""
_ANSWER_FIELDS = ("max_tokens", "max_completion_tokens")


def engine_error(
    status: int, body: bytes, headers: Mapping[bytes, bytes] | None = None, *, prompt: str | None = None
) -> HoneError:
    """An engine's error answer as one of ours: what the caller did wrong stays the caller's fault.

    ``prompt`` names the request's field with the prompt, which a caller must shorten where it is too long.
    """
    message, param = _explanation(body)
    if status == 429:
        return RateLimited(message, param=param, retry_after_seconds=_retry_after(headers or {}))
    if status in (400, 413, 422) and any(sign in message for sign in _TOO_LONG):
        return ContextLengthExceeded(message, param=param if param in _ANSWER_FIELDS else prompt)
    if status in (400, 413, 422):
        return InvalidRequest(message, param=param)
    if status == 503:
        return EngineUnavailable(message)
    return EngineError(f"the engine answered {status}: {message}")


def stream_error(data: bytes) -> HoneError:
    """The error object that an engine put into a stream, as one of ours."""
    code = _error_object(data).get("code")
    return engine_error(code if isinstance(code, int) else 500, data)


def _retry_after(headers: Mapping[bytes, bytes]) -> float | None:
    """Seconds of a ``retry-after`` header; None where there is none, or a date."""
    try:
        return max(0.0, float(headers.get(b"retry-after", b"")))
    except ValueError:
        return None


def _explanation(body: bytes) -> tuple[str, str | None]:
    error = _error_object(body)
    message = error.get("message")
    param = error.get("param")
    if not isinstance(message, str) or not message:
        message = body[:500].decode(errors="replace") or "no reason given"
    return message, param if isinstance(param, str) else None


def _error_object(body: bytes) -> dict[str, Any]:
    try:
        decoded = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return {}
    if not isinstance(decoded, dict):
        return {}
    error = decoded.get("error", decoded)
    return error if isinstance(error, dict) else {}
