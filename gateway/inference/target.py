"""What one attempt of a model call is sent to: an engine replica, or an outside model."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from gateway.inference.request import CapturePlan
from gateway.upstream.base import UpstreamResponse


@dataclass(frozen=True, slots=True)
class Target:
    """Names for the record and the headers, and the way to send."""

    policy: str
    """Policy, Base, or outside model."""
    version: int
    variant: str
    deployment_id: str
    engine_model: str
    """The name in the engine's ``model`` field."""
    public_model: str
    """What the client is told."""
    plan: CapturePlan
    """What is added to the request, and taken out of the answer."""
    send: Callable[[bytes], Awaitable[UpstreamResponse]]
    """Sends a body. Raises as ``Upstream.send``."""
    exact: bool = True
    """It can return token ids and log-probs."""
    fallback_from: str | None = None
    """The model that was asked for, where this is another one."""

    @property
    def label(self) -> str:
        """The name in metrics: what is served, without its version."""
        return f"{self.policy}-fast" if self.variant == "fast" else self.policy
