"""What LiteLLM raises as errors of ours. Its exceptions are the ``openai`` package's, with a few more names.

Nothing that a provider says about this installation's key reaches a client.
"""

import re
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

import openai

from core.errors import (
    EngineError,
    EngineUnavailable,
    HoneError,
    InvalidRequest,
    ModelNotFound,
    ProviderRefused,
    RateLimited,
)
from gateway.upstream.base import Unreachable

_LIBRARY_PREFIX = re.compile(r"^(?:litellm\.\w+: *)+(?:\w*Exception *-? *)?")
_KEY_REFUSED = frozenset({401, 402, 403})
_CALLERS_FAULT = frozenset({400, 413, 422})
_UNAVAILABLE = frozenset({503, 529})
_LONGEST_MESSAGE = 500
_HIDDEN = "***"


def outside_error(error: Exception, model: str, secrets: Iterable[str] = ()) -> Exception:
    """One of Hone's errors, or Unreachable. ``secrets`` are blotted out wherever they stand."""
    if isinstance(error, HoneError | Unreachable):
        return error
    said, status = _said(error, secrets), getattr(error, "status_code", None)
    if status in _KEY_REFUSED:
        return ProviderRefused(
            f"the provider of '{model}' refuses this gateway's key", hint="the operator sets outside.providers"
        )
    if status == 429:
        return RateLimited(f"the provider of '{model}' is at its limit: {said}", retry_after_seconds=_wait_of(error))
    if status == 404 or type(error).__name__ == "LiteLLMUnknownProvider":
        return ModelNotFound(f"the provider does not know the model '{model}'", param="model")
    if status in _CALLERS_FAULT:
        return InvalidRequest(said)
    if isinstance(error, openai.APITimeoutError | TimeoutError):
        return EngineError(
            f"the provider of '{model}' took too long", hint="raise timeout_seconds in outside.providers"
        )
    if status in _UNAVAILABLE:
        return EngineUnavailable(f"the provider of '{model}' cannot answer now: {said}")
    if _names_no_answer(error):
        return Unreachable(f"the provider of '{model}': {said}")
    return EngineError(f"the provider of '{model}' failed: {said}", hint="send the request again")


def _names_no_answer(error: Exception) -> bool:
    """LiteLLM gives a connection that was never made the status 500."""
    causes: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None and cause not in causes:
        causes.append(cause)
        cause = cause.__cause__ or cause.__context__
    return any(
        isinstance(found, ConnectionError | openai.APIConnectionError) and not isinstance(found, TimeoutError)
        for found in causes
    )


def _said(error: Exception, secrets: Iterable[str]) -> str:
    text = _LIBRARY_PREFIX.sub("", str(getattr(error, "message", "") or error)).strip()
    for secret in secrets:
        if secret:
            text = text.replace(secret, _HIDDEN)
    return text[:_LONGEST_MESSAGE] or type(error).__name__


def _wait_of(error: Exception) -> float | None:
    """Seconds in ``retry-after-ms`` or ``retry-after`` (RFC 9110, 10.2.3), wherever LiteLLM put the headers."""
    response = getattr(error, "response", None)
    for headers in (getattr(response, "headers", None), getattr(error, "litellm_response_headers", None)):
        if not isinstance(headers, Mapping):
            continue
        found = {str(name).lower().removeprefix("llm_provider-"): value for name, value in headers.items()}
        milliseconds, seconds = _number(found.get("retry-after-ms")), _number(found.get("retry-after"))
        if milliseconds is not None:
            return milliseconds / 1000
        if seconds is not None:
            return seconds
        if found.get("retry-after"):
            return _until(str(found["retry-after"]))
    return None


def _number(value: Any) -> float | None:
    try:
        return max(0.0, float(value))
    except (TypeError, ValueError):
        return None


def _until(date: str) -> float | None:
    try:
        at = parsedate_to_datetime(date)
    except ValueError:
        return None
    return max(0.0, (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() - datetime.now(UTC).timestamp())
