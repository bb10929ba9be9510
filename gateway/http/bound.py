"""Makes the protocol class for a server: the hot routes and the limits bound to it."""

from collections.abc import Callable, Mapping

from gateway.asgi import MAX_BODY_BYTES
from gateway.http.base import HotHandler
from gateway.http.protocol import MAX_HEADER_BYTES, MAX_HEADERS, REQUEST_READ_SECONDS, HotProtocol


def _count_nothing(_status: int) -> None:
    """For servers without metrics."""


def hot_protocol(
    handlers: Mapping[bytes, HotHandler],
    *,
    max_body_bytes: int = MAX_BODY_BYTES,
    max_headers: int = MAX_HEADERS,
    max_header_bytes: int = MAX_HEADER_BYTES,
    request_read_seconds: float = REQUEST_READ_SECONDS,
    on_refused: Callable[[int], None] | None = None,
) -> type[HotProtocol]:
    """The class to hand to ``uvicorn.Config(http=…)``.

    ``handlers``: path → handler of its POST requests. ``on_refused`` is told the status of every answer with which
    the protocol itself refuses a request (400, 408, 413, 431, 503), on any route: no handler sees that request.
    """
    return type(
        "BoundHotProtocol",
        (HotProtocol,),
        {
            "routes": {path: (handler, path.decode("latin-1")) for path, handler in handlers.items()},
            "on_refused": staticmethod(_count_nothing if on_refused is None else on_refused),
            "max_body_bytes": max_body_bytes,
            "max_headers": max_headers,
            "max_header_bytes": max_header_bytes,
            "request_read_seconds": request_read_seconds,
        },
    )
