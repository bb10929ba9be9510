"""What one attempt of a model call is sent to: an engine replica, or an outside model."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import msgspec
from msgspec import Raw

from gateway.capture.record import ArmExposure
from gateway.http.base import RawHeader
from gateway.inference.request import CapturePlan
from gateway.upstream.base import BegunResponse, UpstreamResponse
from serving.full_routing import WeightsKey
from serving.pool import Route


@dataclass(slots=True)
class Target:
    """Names for the record and the headers, and the way to send. Made once for many requests and never changed."""

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
    url: str | None = None
    """Where ``send`` does nothing but to POST: there."""
    fallback_from: str | None = None
    """The model that was asked for, where this is another one."""
    weights: WeightsKey | None = None
    """Where the replica carries full weights: what tells those apart from later ones."""
    variant_reason: str | None = None
    """Why this Variant answers, where the request's name alone does not say so."""
    exposure: ArmExposure | None = None
    """Which arm of an A/B Experiment this is for one request."""
    headers: list[RawHeader] = field(init=False)
    """For the client: what answers."""
    label: str = field(init=False)
    """The name in metrics: what is served, without its version."""
    engine_model_json: Raw = field(init=False)
    public_model_json: Raw = field(init=False)
    engine_field: bytes = field(init=False)
    """The ``model`` field as engines write it."""
    public_field: bytes = field(init=False)
    """The ``model`` field as clients are to see it."""

    def __post_init__(self) -> None:
        self.label = f"{self.policy}-fast" if self.variant == "fast" else self.policy
        self.headers = [(b"x-hone-policy-version", b"%d" % self.version), (b"x-hone-variant", self.variant.encode())]
        if self.variant_reason is not None:
            self.headers.append((b"x-hone-variant-reason", self.variant_reason.encode()))
        if self.fallback_from is not None:
            self.headers.append((b"x-hone-fallback-from", self.fallback_from.encode()))
        engine, public = msgspec.json.encode(self.engine_model), msgspec.json.encode(self.public_model)
        self.engine_model_json, self.public_model_json = Raw(engine), Raw(public)
        self.engine_field, self.public_field = b'"model":' + engine, b'"model":' + public


@dataclass(slots=True)
class Begun:
    """A request that has been written to the replica of ``route``; nothing is known of its answer."""

    route: Route
    target: Target
    body: bytes
    response: BegunResponse


@dataclass(slots=True)
class Sent:
    """A request that is being answered: a successful response has begun."""

    target: Target
    response: UpstreamResponse | BegunResponse
    first: bytes
    """The whole body, or what has come of a stream."""
