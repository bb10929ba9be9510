"""The routing table: which engine replica answers a ``model`` name, under which engine name. Pure, no I/O."""

from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NoReturn

from core.deployment import Deployment, DeploymentStatus
from core.errors import EngineUnavailable, ModelNotFound, VersionNotServed
from core.policy import Base, Policy, PolicyVersion, ServingStatus
from core.variant import ModelName, Variant

_MOST_REMEMBERED = 1_000


class InFlight:
    """How many requests of this process each Deployment is answering; outlives the tables that read it."""

    def __init__(self) -> None:
        self._running: dict[str, int] = {}
        self._started: dict[str, int] = {}

    def began(self, deployment_id: str) -> None:
        """Count one request on ``deployment_id``; ``ended`` must follow."""
        self._running[deployment_id] = self._running.get(deployment_id, 0) + 1
        self._started[deployment_id] = self._started.get(deployment_id, 0) + 1

    def ended(self, deployment_id: str) -> None:
        """Count it no more."""
        self._running[deployment_id] -= 1

    @contextmanager
    def track(self, deployment_id: str) -> Iterator[None]:
        """Count one request on ``deployment_id`` while the block runs."""
        self.began(deployment_id)
        try:
            yield
        finally:
            self.ended(deployment_id)

    def running(self, deployment_id: str) -> int:
        """Requests being answered now."""
        return self._running.get(deployment_id, 0)

    def rank(self, deployment_id: str) -> tuple[int, int, str]:
        """Sort key: fewest running, then fewest ever started, then id."""
        return self._running.get(deployment_id, 0), self._started.get(deployment_id, 0), deployment_id


@dataclass(frozen=True)
class Route:
    """Where one request goes."""

    deployment: Deployment
    engine_model: str
    """The name to put in the engine's ``model`` field."""
    policy: str
    """The Policy's name, or the Base's own."""
    version: int
    variant: Variant
    """What answers; ``standard`` where ``fast`` was asked for and no fast replica could answer."""
    public_model: str
    """What a client calls it: ``coder@17``, ``coder-fast@17``, or the Base's own name."""
    memo: dict[object, object] = field(default_factory=dict, compare=False, repr=False)
    """What callers derived from this Route and want to find again; as long as the table lives."""


@dataclass(frozen=True)
class RoutingTable:
    """A snapshot of what is served; rebuilt when the store changes, with one InFlight shared by all."""

    bases: dict[str, Base]
    policies: dict[str, Policy]
    versions: dict[tuple[str, int], PolicyVersion]
    deployments: tuple[Deployment, ...]
    in_flight: InFlight
    _usable: dict[tuple[str, Variant, int | None, int | None], tuple[Route, ...]] = field(
        default_factory=dict, repr=False
    )
    """Replicas found so far for a name, by its parts, and a pinned version: a snapshot's answer does not change."""

    @classmethod
    def build(
        cls,
        bases: Iterable[Base],
        policies: Iterable[Policy],
        versions: Iterable[PolicyVersion],
        deployments: Iterable[Deployment],
        in_flight: InFlight | None = None,
    ) -> "RoutingTable":
        """Index the nouns; a Policy hides a Base of the same name."""
        return cls(
            bases={base.name: base for base in bases},
            policies={policy.name: policy for policy in policies},
            versions={(version.policy, version.version): version for version in versions},
            deployments=tuple(deployments),
            in_flight=InFlight() if in_flight is None else in_flight,
        )

    def resolve(self, model: ModelName, *, pinned_version: int | None = None, exclude: Collection[str] = ()) -> Route:
        """The least loaded replica that can answer ``model``.

        A version in the name wins over ``pinned_version`` (what the request's Episode began with), which wins
        over the promoted one. An Episode's version may still be served while it drains, a new request's may
        not. ``fast`` falls back to ``standard``, which gives the same distribution. ``exclude`` names
        Deployments that just failed. Raises ModelNotFound, VersionNotServed (the version exists, no replica
        holds it) or EngineUnavailable (nothing can answer now).
        """
        # A noun's own hash and comparison cost more than all of this.
        key = (model.name, model.variant, model.version, pinned_version)
        usable = None if exclude else self._usable.get(key)
        if usable is None:
            usable = self._find(model, pinned_version, exclude)
            if not exclude and len(self._usable) < _MOST_REMEMBERED:
                self._usable[key] = usable
        if len(usable) == 1:
            return usable[0]
        return min(usable, key=lambda route: self.in_flight.rank(route.deployment.id))

    def _find(self, model: ModelName, pinned_version: int | None, exclude: Collection[str]) -> tuple[Route, ...]:
        base, version = self._target(model, pinned_version)
        ready = [
            deployment
            for deployment in self.deployments
            if deployment.base == base.name
            and deployment.status is DeploymentStatus.READY
            and deployment.id not in exclude
        ]
        if not ready:
            raise EngineUnavailable(f"no replica of '{base.name}' is ready", hint=self._why_not_ready(base.name))
        draining_allowed = model.version is None and pinned_version is not None
        candidates = []
        for deployment in ready:
            engine_model = self._engine_model(deployment, base, model.name, version, draining_allowed)
            if engine_model is not None:
                public = ModelName(
                    name=model.name,
                    variant=deployment.variant,
                    version=None if model.name == base.name and model.name not in self.policies else version,
                )
                route = Route(deployment, engine_model, model.name, version, deployment.variant, str(public))
                candidates.append(route)
        if not candidates:
            asked_for = model.version is not None or pinned_version is not None
            self._raise_not_held(model, version, asked_for=asked_for)
        same = [route for route in candidates if route.variant is model.variant]
        standard = [route for route in candidates if route.variant is Variant.STANDARD]
        # Both Variants give the same distribution, so a replica of the other one beats no answer at all.
        return tuple(same or standard or candidates)

    def _target(self, model: ModelName, pinned_version: int | None) -> tuple[Base, int]:
        policy = self.policies.get(model.name)
        if policy is None:
            if model.name not in self.bases:
                raise ModelNotFound(f"the model '{model}' does not exist", param="model")
            if model.version not in (None, 0):
                raise ModelNotFound(f"'{model.name}' is a Base: its only version is 0", param="model")
            return self.bases[model.name], 0
        version = model.version
        if version is None:
            version = policy.promoted_version if pinned_version is None else pinned_version
        if version != 0 and (policy.name, version) not in self.versions:
            raise ModelNotFound(f"'{policy.name}' has no version {version}", param="model")
        if policy.base not in self.bases:
            raise EngineUnavailable(f"the Base '{policy.base}' of '{policy.name}' is not served")
        return self.bases[policy.base], version

    @staticmethod
    def _engine_model(
        deployment: Deployment, base: Base, policy: str, version: int, draining_allowed: bool
    ) -> str | None:
        if version == 0:
            return base.name
        for loaded in deployment.loaded:
            served = loaded.state == "live" or draining_allowed
            if served and (loaded.policy, loaded.version) == (policy, version):
                return loaded.engine_model
        return None

    def _raise_not_held(self, model: ModelName, version: int, *, asked_for: bool) -> NoReturn:
        stored = self.versions[(model.name, version)]
        reason = {
            ServingStatus.WANTED: "it is being loaded",
            ServingStatus.LIVE: "the ready replicas do not hold it at the moment",
            ServingStatus.DRAINING: "it is being unloaded",
            ServingStatus.UNLOADED: "it has been unloaded",
            ServingStatus.REFUSED: f"it was refused: {stored.serving_reason or 'no reason recorded'}",
        }[stored.serving]
        message = f"no replica holds '{stored.label}': {reason}"
        if asked_for:
            raise VersionNotServed(message, param="model", hint=f"ask for '{model.name}' without a version")
        raise EngineUnavailable(message, hint="try again in a few seconds")

    def _why_not_ready(self, base: str) -> str:
        states = [
            f"{deployment.variant} is {deployment.status}"
            + (f" ({deployment.status_reason})" if deployment.status_reason else "")
            for deployment in self.deployments
            if deployment.base == base
        ]
        return "; ".join(states) if states else "the fleet has no replica of it"
