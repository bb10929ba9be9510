"""The routing table: which engine replica answers a ``model`` name, under which engine name. Pure, no I/O."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import NoReturn

from core.deployment import Deployment, DeploymentStatus
from core.errors import EngineUnavailable, ModelNotFound, VersionNotServed
from core.policy import Base, Policy, PolicyVersion, ServingStatus
from core.variant import ModelName, Variant
from serving.capabilities import adapter_field, refused_fields
from serving.full_routing import WeightsKey, answering, carried_version, not_carried_reason, swapping, weights_key
from serving.variant_choice import VariantReason

_MOST_REMEMBERED = 1_000
STICKY_BOUND = 4
"""Requests by which an Episode's replica may be busier than the least loaded one."""
_PEAK_SECONDS = 3.0
"""Longer than the oldest reading of an engine's load that is in use."""
_LOAD_SECONDS = 10.0
"""An older reading of an engine's load says nothing."""


class InFlight:
    """How many requests of this process each Deployment is answering; outlives the tables that read it."""

    def __init__(self) -> None:
        self._running: dict[str, int] = {}
        self._started: dict[str, int] = {}
        self._peak: dict[str, int] = {}
        self._peak_before: dict[str, int] = {}
        self._peak_since = 0.0
        self._elsewhere: dict[str, int] = {}

    def began(self, deployment_id: str) -> None:
        """Count one request on ``deployment_id``; ``ended`` must follow."""
        running = self._running[deployment_id] = self._running.get(deployment_id, 0) + 1
        self._started[deployment_id] = self._started.get(deployment_id, 0) + 1
        if running > self._peak.get(deployment_id, 0):
            self._peak[deployment_id] = running

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

    def load(self, deployment_id: str) -> int:
        """Requests of this process, and those of others as far as the engine has told."""
        return self._running.get(deployment_id, 0) + self._elsewhere.get(deployment_id, 0)

    def started(self, deployment_id: str) -> int:
        """Requests of this process that ever began there."""
        return self._started.get(deployment_id, 0)

    def told(self, deployments: Iterable[Deployment], now: float) -> None:
        """Take in what engines report of their load, at Unix second ``now``.

        An engine counts this process's requests too, as they were when it was read: the most that ran here since is
        taken off, so that a burst of one's own never looks like the load of others.
        """
        if now - self._peak_since > _PEAK_SECONDS:
            self._peak_before, self._peak, self._peak_since = self._peak, dict(self._running), now
        elsewhere = {}
        for deployment in deployments:
            load, id_ = deployment.load, deployment.id
            if load is None or now - load.read_at > _LOAD_SECONDS:
                continue
            own = max(self._peak.get(id_, 0), self._peak_before.get(id_, 0))
            others = load.running + load.waiting - own
            if others > 0:
                elsewhere[id_] = others
        self._elsewhere = elsewhere


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
    reason: str | None = None
    """Why this Variant answers, where the request's name alone does not say so."""
    refused: Mapping[str, str] = field(default_factory=dict, compare=False)
    """Request fields that this replica's engine refuses, each with the reason."""
    token_bytes: int | None = None
    """No token of the Base stands for more bytes of text than this; None: not known."""
    weights: WeightsKey | None = None
    """Where the replica carries full weights: what tells those apart from later ones."""
    max_model_len: int | None = field(init=False)
    """Most tokens of prompt and answer; None: not known."""
    memo: dict[object, object] = field(default_factory=dict, compare=False, repr=False)
    """What callers derived from this Route and want to find again; as long as the table lives."""
    deployment_id: str = field(init=False)

    def __post_init__(self) -> None:
        # Reading it off a noun for every request would take longer.
        object.__setattr__(self, "deployment_id", self.deployment.id)
        object.__setattr__(self, "max_model_len", self.deployment.max_model_len)

    def because(self, reason: str) -> "Route":
        """The same Route with the reason why it answers this request."""
        found = self.memo.get(reason)
        if not isinstance(found, Route):
            found = self.memo[reason] = replace(self, reason=reason, memo={})
        return found


@dataclass(frozen=True)
class RoutingTable:
    """A snapshot of what is served; rebuilt when the store changes, with one InFlight shared by all.

    Requests of one Episode stay on the replica that answered it last, which has its conversation in the prefix
    cache, until that replica is busier than the least loaded one by more than ``sticky_bound`` requests; all others
    go to the least loaded one.
    """

    bases: dict[str, Base]
    policies: dict[str, Policy]
    versions: dict[tuple[str, int], PolicyVersion]
    deployments: tuple[Deployment, ...]
    in_flight: InFlight
    sticky_bound: int = STICKY_BOUND
    aliases: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """Policy → alias → version."""
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
        *,
        sticky_bound: int = STICKY_BOUND,
        aliases: Mapping[str, Mapping[str, int]] | None = None,
    ) -> "RoutingTable":
        """Index the nouns; a Policy hides a Base of the same name."""
        return cls(
            bases={base.name: base for base in bases},
            policies={policy.name: policy for policy in policies},
            versions={(version.policy, version.version): version for version in versions},
            deployments=tuple(deployments),
            in_flight=InFlight() if in_flight is None else in_flight,
            sticky_bound=sticky_bound,
            aliases=aliases or {},
        )

    def named(self, model: ModelName) -> ModelName:
        """With the version that an alias stands for in its place; raises ModelNotFound for one that nobody set."""
        if model.alias is None:
            return model
        known = self.aliases.get(model.name, {})
        if model.name in self.policies and model.alias in known:
            return model.model_copy(update={"version": known[model.alias], "alias": None})
        raise ModelNotFound(
            f"'{model.name}' has no version '{model.alias}'",
            hint=f"known: {', '.join(sorted(known))}" if known else None,
            param="model",
        )

    def resolve(
        self,
        model: ModelName,
        *,
        pinned_version: int | None = None,
        exclude: Collection[str] = (),
        last: str | None = None,
        variant: Variant | None = None,
    ) -> Route:
        """The replica that is to answer ``model``: ``last``, which answered its Episode before, or the least loaded.

        A version in the name wins over ``pinned_version`` (what the request's Episode began with), which wins
        over the promoted one. An Episode's version may still be served while it drains, a new request's may
        not. ``fast`` falls back to ``standard``, which gives the same distribution. ``exclude`` names
        Deployments that just failed; ``variant`` wins over the name's. Raises ModelNotFound, VersionNotServed
        (the version exists, no replica holds it) or EngineUnavailable (nothing can answer now).
        """
        if model.alias is not None:
            # An Episode ends on the version that it began with, wherever the alias has gone meanwhile.
            model = self.named(model) if pinned_version is None else model.model_copy(update={"alias": None})
        # A noun's own hash and comparison cost more than all of this.
        wanted = model.variant if variant is None else variant
        key = (model.name, wanted, model.version, pinned_version)
        usable = None if exclude else self._usable.get(key)
        if usable is None:
            usable = self._find(model, wanted, pinned_version, exclude)
            if not exclude and len(self._usable) < _MOST_REMEMBERED:
                self._usable[key] = usable
        return usable[0] if len(usable) == 1 else self._pick(usable, last)

    def _pick(self, usable: tuple[Route, ...], last: str | None) -> Route:
        # Written out: this runs for every request, and a key function would take twice the time.
        load_of, started_of = self.in_flight.load, self.in_flight.started
        best = sticky = None
        least = fewest = known = 0
        for route in usable:
            id_ = route.deployment_id
            load = load_of(id_)
            if id_ == last:
                sticky, known = route, load
            if best is None or load < least or (load == least and started_of(id_) < fewest):
                best, least, fewest = route, load, started_of(id_)
        if sticky is not None and known - least <= self.sticky_bound:
            return sticky
        return usable[0] if best is None else best

    def _find(
        self, model: ModelName, wanted: Variant, pinned_version: int | None, exclude: Collection[str]
    ) -> tuple[Route, ...]:
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
        if any(deployment.policy is not None for deployment in ready):
            exactly = model.version is not None or pinned_version is not None
            return _of_variant(self._carrying(ready, base, model.name, version, exactly=exactly), ready, wanted)
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
                route = Route(
                    deployment,
                    engine_model,
                    model.name,
                    version,
                    deployment.variant,
                    str(public),
                    refused=refused_fields(deployment),
                    token_bytes=base.token_bytes,
                )
                candidates.append(route)
        if not candidates:
            asked_for = model.version is not None or pinned_version is not None
            self._raise_not_held(model, version, asked_for=asked_for)
        return _of_variant(candidates, ready, wanted)

    def _carrying(
        self, ready: Sequence[Deployment], base: Base, policy: str, version: int, *, exactly: bool
    ) -> list[Route]:
        """Routes to replicas that carry full weights of the Policy in place of the Base's."""
        found = answering(ready, policy, version, exactly=exactly)
        if not found:
            stored = self.versions.get((policy, version))
            refused = stored is not None and stored.serving is ServingStatus.REFUSED
            reason = f"it was refused: {stored.serving_reason}" if stored is not None and refused else None
            others = [one for one in self.deployments if one.base == base.name]
            raise VersionNotServed(
                f"no replica answers for '{policy}@{version}': {reason or not_carried_reason(others, policy)}",
                param="model",
                hint="ask for the Policy that is served, without a version",
            )
        return [
            Route(
                one,
                base.name,
                policy,
                carried_version(one),
                one.variant,
                str(ModelName(name=policy, variant=one.variant, version=carried_version(one))),
                refused=refused_fields(one),
                token_bytes=base.token_bytes,
                weights=weights_key(one),
            )
            for one in found
        ]

    def swapping(self, model: ModelName) -> bool:
        """Whether a replica that could answer ``model`` is closed only while its weights are replaced."""
        policy = self.policies.get(model.name)
        return policy is not None and swapping(self.deployments, policy.base, policy.name)

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
                return adapter_field(deployment.engine, base.name, loaded.engine_model)
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


def _of_variant(candidates: Sequence[Route], ready: Sequence[Deployment], wanted: Variant) -> tuple[Route, ...]:
    """The Routes that answer for ``wanted``, each with the reason where another Variant does.

    Both Variants give the same distribution, so a replica of the other one beats no answer at all; a fast one whose
    speculation is switched off only decodes like a standard one, so that those come before it.
    """
    same = [route for route in candidates if route.variant is wanted]
    if wanted is Variant.STANDARD:
        return tuple(same) or _because(candidates, VariantReason.NO_STANDARD_REPLICA)
    speculating = [route for route in same if route.deployment.speculating]
    if speculating:
        return tuple(speculating)
    standard = [route for route in candidates if route.variant is Variant.STANDARD]
    if same:
        return _because(standard or same, VariantReason.SPECULATION_OFF)
    held = any(deployment.variant is Variant.FAST for deployment in ready)
    return _because(
        standard or candidates, VariantReason.FAST_LACKS_VERSION if held else VariantReason.NO_FAST_REPLICA
    )


def _because(routes: Sequence[Route], reason: VariantReason) -> tuple[Route, ...]:
    return tuple(route.because(reason.value) for route in routes)
