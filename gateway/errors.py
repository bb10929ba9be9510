"""Every error as OpenAI's error body: ``{"error": {"message", "type", "param", "code"}}``."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from starlette.exceptions import HTTPException

from core.errors import AuthenticationFailed, EngineUnavailable, HoneError, InvalidRequest, RateLimited, StoreError

log = structlog.get_logger(__name__)

JSON_HEADER = (b"content-type", b"application/json")
RETRY_AFTER_SECONDS = 1
REQUEST_ID = "hone_request_id"
"""Key of the request id in an ASGI scope."""

_CODES_BY_STATUS = {404: "not_found", 405: "method_not_allowed"}


class BodyTooLarge(InvalidRequest):
    """The request body is longer than the gateway takes."""

    status = 413
    code = "request_too_large"


def error_body(error: HoneError, request_id: str = "") -> dict[str, Any]:
    """OpenAI's error object for one of Hone's errors; a hint is appended to the message.

    What a store says names hosts, folders and tables: callers learn the request id, by which the log names it.
    """
    if isinstance(error, StoreError):
        return _body(f"the store failed; request id {request_id}", error.type, error.param, error.code)
    message = error.message if error.hint is None else f"{error.message}; {error.hint}"
    return _body(message, error.type, error.param, error.code)


def internal_error_body(request_id: str) -> dict[str, Any]:
    """What a caller learns about an unforeseen error: only the request id, by which the log names the cause."""
    return _body(f"internal error; request id {request_id}", "server_error", None, "internal_error")


def encode(body: Mapping[str, Any]) -> bytes:
    """JSON bytes of an error body."""
    return msgspec.json.encode(body)


def error_headers(error: HoneError) -> list[tuple[bytes, bytes]]:
    """Headers that belong to an error: what to authenticate with, when to try again."""
    headers = [JSON_HEADER]
    if isinstance(error, AuthenticationFailed):
        headers.append((b"www-authenticate", b"Bearer"))
    if isinstance(error, RateLimited):
        headers += error.headers
        if error.retry_after_seconds != math.inf:
            seconds = RETRY_AFTER_SECONDS if error.retry_after_seconds is None else error.retry_after_seconds
            headers.append((b"retry-after", str(max(1, math.ceil(seconds))).encode()))
    elif isinstance(error, EngineUnavailable | StoreError):
        headers.append((b"retry-after", str(RETRY_AFTER_SECONDS).encode()))
    return headers


def must_be_logged(error: HoneError) -> bool:
    """Whether the cause is on this side, or is kept from the caller."""
    return error.status >= 500 or isinstance(error, StoreError)


def request_id_of(scope: Mapping[str, Any]) -> str:
    """The id that the middleware gave this request."""
    return str(scope.get(REQUEST_ID, ""))


def install_error_handlers(app: FastAPI) -> None:
    """Give FastAPI's own errors and Hone's errors OpenAI's shape. Unforeseen ones are the middleware's."""
    app.add_exception_handler(HoneError, _on_hone_error)
    app.add_exception_handler(RequestValidationError, _on_validation_error)
    app.add_exception_handler(HTTPException, _on_http_exception)


def _body(message: str, type_: str, param: str | None, code: str | None) -> dict[str, Any]:
    return {"error": {"message": message, "type": type_, "param": param, "code": code}}


def _response(status: int, body: Mapping[str, Any], headers: Sequence[tuple[bytes, bytes]] = ()) -> Response:
    return Response(
        encode(body),
        status_code=status,
        media_type="application/json",
        headers={name.decode(): value.decode() for name, value in headers if name != JSON_HEADER[0]},
    )


async def _on_hone_error(request: Request, error: Exception) -> Response:
    if not isinstance(error, HoneError):
        raise error
    if must_be_logged(error):
        log.error("request_failed", request_id=request_id_of(request.scope), error=str(error), code=error.code)
    return _response(error.status, error_body(error, request_id_of(request.scope)), error_headers(error))


async def _on_validation_error(request: Request, error: Exception) -> Response:
    if not isinstance(error, RequestValidationError):
        raise error
    first = error.errors()[0]
    place = [str(part) for part in first["loc"] if part not in ("body", "query", "path", "header")]
    param = ".".join(place) or None
    text = "the body is not valid JSON" if first["type"] == "json_invalid" else str(first["msg"])
    message = text if param is None or first["type"] == "json_invalid" else f"{param}: {text}"
    param = None if first["type"] == "json_invalid" else param
    return _response(400, _body(message, "invalid_request_error", param, "invalid_request"))


async def _on_http_exception(request: Request, error: Exception) -> Response:
    if not isinstance(error, HTTPException):
        raise error
    if isinstance(error.__cause__, HoneError):
        # FastAPI calls whatever goes wrong while it reads a body a bad request.
        return await _on_hone_error(request, error.__cause__)
    code = _CODES_BY_STATUS.get(error.status_code, "invalid_request")
    message = f"{request.method} {request.url.path}: {error.detail}"
    headers = [(name.encode(), value.encode()) for name, value in (error.headers or {}).items()]
    return _response(error.status_code, _body(message, "invalid_request_error", None, code), headers)
