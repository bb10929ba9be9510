"""The ports of a model call: every API surface asks through ``Inference`` and never talks to an engine itself."""

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol

from gateway.auth import Caller
from gateway.capture.record import Surface
from gateway.http.base import RawHeader
from gateway.inference.request import InferenceRequest


@dataclass(slots=True)
class Call:
    """Who asks, and how it is to be recorded."""

    caller: Caller
    request_id: str
    surface: Surface = "chat.completions"
    episode_id: str | None = None
    """The Episode that the caller named."""
    idempotency_key: str | None = None
    may_train: bool = True
    """False: the request withdrew what tenant and key grant. It can never add to it."""
    store: bool = False
    """The API may return the answer later."""
    token_exact: bool | None = None
    """Whether earlier answers go back to the model as their sampled ids; None: as configured. Without a grant to
    train it changes nothing."""

    compacts: str | None = None
    """The Turn that this call continues with older tool results taken out of its messages."""

    user: str | None = None
    """The end user whom the request's header names."""

    @property
    def consent(self) -> bool:
        """Whether what is said may train."""
        return self.may_train and self.caller.training_granted


class Exchange(Protocol):
    """A model's answer that has begun. Exactly one of ``whole`` and ``events`` is used, once."""

    @property
    def episode_id(self) -> str:
        """The Episode that the Turns belong to."""

    @property
    def turn_ids(self) -> tuple[str, ...]:
        """The Turns of this answer, one per choice."""

    @property
    def headers(self) -> list[RawHeader]:
        """``x-hone-…`` and ``x-ratelimit-…`` headers for the client."""

    async def whole(self) -> bytes:
        """The answer's JSON as the client may see it. Raises EngineError."""

    def events(self) -> AsyncIterator[bytes]:
        """The data of every event of a stream as the client may see it, without the closing ``[DONE]``.

        Raises EngineError when the engine breaks off; leaving early counts as the client's leaving.
        """


class Inference(Protocol):
    """Limits, Episode, routing, retries, fallbacks and capture around one model call."""

    def exchange(self, call: Call, request: InferenceRequest) -> AbstractAsyncContextManager[Exchange]:
        """Send a request; inside the block its answer has begun.

        Leaving the block records the call. Raises what is wrong with the request, RateLimited, ModelNotFound,
        EngineUnavailable, EngineError.
        """
