"""Every error as Anthropic's error body: ``{"type": "error", "error": {"type", "message"}, "request_id"}``.

Source: https://docs.anthropic.com/en/api/errors.
"""

import structlog

from core.errors import EngineUnavailable, HoneError, InvalidRequest
from gateway.anthropic_api.fields import Json
from gateway.errors import error_body, error_headers, must_be_logged
from gateway.http.base import RawHeader

log = structlog.get_logger(__name__)

OVERLOADED_STATUS = 529
_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    409: "invalid_request_error",
    413: "request_too_large",
    422: "invalid_request_error",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}


class ThreadsUnsupported(InvalidRequest):
    """The request wants the server to hold its history. Anthropic's clients know this error, and send all of it."""

    code = "thread_unsupported_request"


def message_error(error: HoneError, request_id: str) -> Json:
    """Anthropic's error object for one of Hone's errors."""
    said = error_body(error, request_id)["error"]["message"]
    body = _body(_TYPES.get(error.status, "api_error"), said, request_id)
    if isinstance(error, ThreadsUnsupported):
        body["error"]["details"] = {"error_code": error.code, "unsupported": []}
    return body


def internal_message_error(request_id: str) -> Json:
    """What a caller learns about an unforeseen error."""
    return _body("api_error", f"internal error; request id {request_id}", request_id)


def status_of(error: HoneError) -> int:
    """The HTTP status; Anthropic has one of its own for a service that has no room now."""
    return OVERLOADED_STATUS if isinstance(error, EngineUnavailable) else error.status


def headers_of(error: HoneError) -> list[RawHeader]:
    """Headers that belong to an error."""
    return error_headers(error)


def log_failure(error: HoneError, request_id: str) -> None:
    """Write down what is this side's fault, or kept from the caller."""
    if must_be_logged(error):
        log.warning("request_failed", request_id=request_id, code=error.code, error=error.message)


def _body(kind: str, message: str, request_id: str) -> Json:
    return {"type": "error", "error": {"type": kind, "message": message}, "request_id": request_id}
