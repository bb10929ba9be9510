"""What a request's headers say about training: whether it may, and with which ids.

``x-hone-train`` can withdraw what tenant and key grant, and never widen it.
"""

from collections.abc import Mapping

AFFIRMING = (b"true", b"1")
"""Values of a yes-or-no header that say yes."""


def may_train(headers: Mapping[bytes, bytes]) -> bool:
    """False where ``x-hone-train`` withdraws what tenant and key grant: any value but ``true`` and ``1`` does."""
    value = headers.get(b"x-hone-train")
    return value is None or value.strip().lower() in AFFIRMING


def token_exact(headers: Mapping[bytes, bytes]) -> bool | None:
    """What ``x-hone-token-exact`` asks for; None where it is absent."""
    value = headers.get(b"x-hone-token-exact")
    return None if value is None else value.strip().lower() in AFFIRMING
