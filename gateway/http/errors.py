"""What a server refuses about a request before it has arrived whole."""

from core.errors import HoneError, InvalidRequest
from gateway.errors import BodyTooLarge


class HeadTooLarge(InvalidRequest):
    """The request line and headers are longer, or more, than the gateway takes (RFC 6585)."""

    status = 431
    code = "request_headers_too_large"


class RequestTimedOut(InvalidRequest):
    """The request did not arrive in time (RFC 9110, 15.5.9)."""

    status = 408
    code = "request_timeout"


def head_too_large(most_headers: int, most_bytes: int) -> HoneError:
    """For a request line and headers beyond these limits."""
    return HeadTooLarge(
        f"the request has more than {most_headers} headers or {most_bytes} bytes of them",
        hint="send fewer and shorter headers",
    )


def body_too_large(most_bytes: int) -> HoneError:
    """For a body beyond this limit."""
    return BodyTooLarge(f"the body is longer than {most_bytes} bytes", hint="send a shorter request")


def request_timed_out(seconds: float) -> HoneError:
    """For a request that did not arrive in this time."""
    return RequestTimedOut(
        f"the request did not arrive within {seconds:g} s",
        hint="send it faster or raise gateway.request_read_seconds",
    )
