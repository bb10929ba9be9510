"""The head of a connection's last request: clients send the same one again and again, but for the body's length.

What the parser made of it once holds for the same bytes again, so a request that begins with them needs no parser.
"""

import re
from typing import Final

from gateway.http.base import HeaderMap, HotHandler

_LENGTH: Final = re.compile(rb"\r\ncontent-length: *(\d+)(?=\r\n)", re.IGNORECASE)
_LONGEST_HEAD: Final = 4096
_MOST_DIGITS: Final = 9
_UNUSUAL: Final = (b"transfer-encoding", b"expect", b"connection", b"upgrade")
"""Headers that change how a request is read or answered; with one of them nothing is remembered."""


class KnownHead:
    """A head of HTTP/1.1 with a length, of a connection that stays open."""

    __slots__ = ("_after", "_before", "_digits", "handler", "headers", "path")

    def __init__(self, before: bytes, after: bytes, *, handler: HotHandler, path: str, headers: HeaderMap) -> None:
        self._before = before
        self._digits = len(before)
        self._after = after
        self.handler = handler
        self.path = path
        self.headers = headers

    def body_of(self, data: bytes, most: int) -> bytes | None:
        """The body of the one whole request with this head that ``data`` is; None: it is anything else."""
        start = self._digits
        if not data.startswith(self._before):
            return None
        end = data.find(b"\r", start, start + _MOST_DIGITS)
        digits = data[start:end]
        if end < 0 or not digits.isdigit() or not data.startswith(self._after, end):
            return None
        body_at, length = end + len(self._after), int(digits)
        if length > most or len(data) - body_at != length:
            return None
        self.headers[b"content-length"] = digits
        return data[body_at:]


def learn(data: bytes, body: bytes, *, handler: HotHandler, path: str, headers: HeaderMap) -> KnownHead | None:
    """The head of ``data``, one whole request that the parser has read; None: it is not to be remembered."""
    size = len(data) - len(body)
    if size > _LONGEST_HEAD or any(name in headers for name in _UNUSUAL):
        return None
    head = data[:size]
    found = _LENGTH.findall(head)
    if len(found) != 1 or int(found[0]) != len(body) or not head.endswith(b"\r\n\r\n") or not data.endswith(body):
        return None
    length = _LENGTH.search(head)
    assert length is not None
    return KnownHead(head[: length.start(1)], head[length.end(1) :], handler=handler, path=path, headers=headers)
