"""The port of limits: asked before every model call, told afterwards what it used."""

from typing import Protocol

from gateway.auth import Caller
from gateway.http.base import RawHeader


class Admission(Protocol):
    """A request that was let in."""

    @property
    def headers(self) -> list[RawHeader]:
        """``x-ratelimit-limit-requests`` and its kind, as OpenAI sends them; empty where nothing is limited."""

    def settle(self, *, prompt_tokens: int, completion_tokens: int, answered_by: str | None = None) -> None:
        """Say what the request used in the end; at most once, and never if it failed before an answer.

        ``answered_by``: the model that answered, where it is another one than was asked for; its price counts.
        """

    def release(self) -> None:
        """The answer has ended, well or badly: gives back the stream and whatever was reserved and not settled.

        May be called twice.
        """


class Limits(Protocol):
    """All limits of this gateway process; shared with the other replicas through Redis where there is one."""

    async def start(self) -> None:
        """Begin to share counters."""

    async def stop(self) -> None:
        """Give back what is leased and share no more."""

    def admit_now(self, caller: Caller, model: str, *, stream: bool, tokens: int) -> Admission | None:
        """As ``admit``, where nothing has to be waited for; None: it has."""

    async def admit(self, caller: Caller, model: str, *, stream: bool, tokens: int) -> Admission:
        """Let a request in. ``tokens`` is an upper estimate of what it will use.

        Raises RateLimited with ``retry_after_seconds`` and headers, and PermissionDenied for a model that the
        tenant or key may not use.
        """
