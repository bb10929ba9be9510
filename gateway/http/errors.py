"""What a server refuses about a request before it has arrived whole."""

from core.errors import InvalidRequest


class HeadTooLarge(InvalidRequest):
    """The request line and headers are longer, or more, than the gateway takes (RFC 6585)."""

    status = 431
    code = "request_headers_too_large"


class RequestTimedOut(InvalidRequest):
    """The request did not arrive in time (RFC 9110, 15.5.9)."""

    status = 408
    code = "request_timeout"
