"""``x-ratelimit-…`` headers and durations as OpenAI writes them.

Source: OpenAI API, "Rate limits in headers".
"""

import math

from gateway.http.base import RawHeader


def duration(seconds: float) -> str:
    """``120ms``, ``1s``, ``6m0s``, ``1h0m0s``; rounded up, so that waiting as long is enough."""
    if seconds <= 0:
        return "0s"
    if seconds < 1:
        return f"{math.ceil(seconds * 1000)}ms"
    minutes, rest = divmod(math.ceil(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}h{minutes}m{rest}s"
    return f"{minutes}m{rest}s" if minutes else f"{rest}s"


_NAMES = {
    unit: tuple(f"x-ratelimit-{what}-{unit}".encode() for what in ("limit", "remaining", "reset"))
    for unit in ("requests", "tokens")
}
_FIRST_LONG_SECOND = 2
_LONG_SECONDS = tuple(duration(second).encode() for second in range(128))


def window_headers(unit: str, limit: int, remaining: int, reset_seconds: float) -> list[RawHeader]:
    """The three headers of one window; ``unit`` is ``requests`` or ``tokens``."""
    limit_name, remaining_name, reset_name = _NAMES[unit]
    if _FIRST_LONG_SECOND <= reset_seconds < len(_LONG_SECONDS) - 1:
        reset = _LONG_SECONDS[math.ceil(reset_seconds)]
    else:
        reset = duration(reset_seconds).encode()
    return [(limit_name, b"%d" % limit), (remaining_name, b"%d" % remaining), (reset_name, reset)]
