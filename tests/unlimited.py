"""Limits that limit nothing, for tests whose subject they are not."""

from gateway.auth import Caller
from gateway.limits.base import RawHeader


class Admitted:
    """An admission without an account."""

    @property
    def headers(self) -> list[RawHeader]:
        """None."""
        return []

    def settle(self, *, prompt_tokens: int, completion_tokens: int, answered_by: str | None = None) -> None:
        """Nothing to settle."""

    def release(self) -> None:
        """Nothing to release."""


class Unlimited:
    """Implements ``Limits``."""

    async def start(self) -> None:
        """Nothing to share."""

    async def stop(self) -> None:
        """Nothing to give back."""

    async def admit(self, caller: Caller, model: str, *, stream: bool, tokens: int) -> Admitted:
        """Let every request in."""
        return Admitted()
