"""Which replica answers a request, and why that Variant: routing, NAME-auto, refused fields and context length."""

import time
from collections.abc import Collection

from core.config.schema import HoneConfig
from core.deployment import Deployment
from core.errors import EngineUnavailable, HoneError, InvalidRequest, ModelNotFound, VersionNotServed
from core.variant import ModelName, Variant
from gateway.episodes import HeldEpisode
from gateway.inference.context import LEAST_BYTES_PER_TOKEN, check_context
from gateway.inference.request import Fields, InferenceRequest, value_of
from gateway.routing import Routing
from serving.pool import Route
from serving.variant_choice import RequestClass, VariantReason, VariantState, choose_variant

_ACCEPTANCE_SECONDS = 120.0
"""An older reading of acceptance says nothing: without requests there is no newer one."""
_FORMATS = frozenset(
    {"response_format", "structured_outputs", "guided_json", "guided_regex", "guided_choice", "guided_grammar"}
)


class Routes:
    """Finds the Route of each request."""

    def __init__(self, *, config: HoneConfig, routing: Routing) -> None:
        self._auto = config.gateway.auto
        self._sticky = config.gateway.sticky_episodes
        self._routing = routing

    def first(self, request: InferenceRequest, model: ModelName, held: HeldEpisode) -> Route:
        """The Route of a request; its Episode stays there.

        Raises what the routing table raises, InvalidRequest for a field that no engine here takes, and
        ContextLengthExceeded.
        """
        route = self._chosen(request, model, held) if model.auto else self._resolve(model, held)
        if route.refused:
            route = self._supporting(request, model, held, route)
        room = route.max_model_len
        if room is not None and len(request.body) >= LEAST_BYTES_PER_TOKEN * (room - request.answer_tokens):
            check_context(request, room, route.token_bytes)
        held.last_deployment = route.deployment_id
        return route

    def other(
        self, request: InferenceRequest, model: ModelName, held: HeldEpisode, route: Route, failed: Collection[str]
    ) -> Route:
        """Another replica that holds the version of ``route``; raises EngineUnavailable where there is none."""
        variant = route.variant if model.auto else model.variant
        found = self._another(model, route, failed, variant)
        if found.refused and refused_field(request, found) is not None:
            found = self._another(model, route, failed, Variant.STANDARD)
            name = refused_field(request, found)
            if name is not None:
                raise _refused(request, found, name)
        held.last_deployment = found.deployment_id
        return found

    def _another(self, model: ModelName, route: Route, failed: Collection[str], variant: Variant) -> Route:
        try:
            return self._routing.resolve(model, pinned_version=route.version, exclude=failed, variant=variant)
        except HoneError as error:
            raise EngineUnavailable(
                f"no replica that holds '{route.policy}' version {route.version} answers",
                hint="try again in a few seconds",
            ) from (error if error.status < 500 else None)

    def _resolve(self, model: ModelName, held: HeldEpisode, variant: Variant | None = None) -> Route:
        last = held.last_deployment if self._sticky else None
        wanted = None if model.version is not None else held.wanted_version(model)
        if wanted is None:
            return self._routing.resolve(model, last=last, variant=variant)
        try:
            return self._routing.resolve(model, pinned_version=wanted, last=last, variant=variant)
        except (VersionNotServed, ModelNotFound):
            # A conversation outlives the version that it began with; a pinned Episode does not.
            if held.pinned is not None and held.pinned[0] == model.name:
                raise
            return self._routing.resolve(model, last=last, variant=variant)

    def _chosen(self, request: InferenceRequest, model: ModelName, held: HeldEpisode) -> Route:
        fast = self._resolve(model, held, Variant.FAST)
        if fast.variant is not Variant.FAST:
            return fast
        standard = self._resolve(model, held, Variant.STANDARD)
        if standard.variant is not Variant.STANDARD or standard.version != fast.version:
            return fast if standard.version == fast.version else standard
        last = held.last_deployment
        before = Variant.FAST if last is not None and last == fast.deployment_id else None
        variant, reason = choose_variant(
            class_of(request, self._auto.latency),
            standard=self._state(standard.deployment),
            fast=self._state(fast.deployment),
            before=before,
            rule=self._auto,
        )
        return (fast if variant is Variant.FAST else standard).because(reason.value)

    def _state(self, deployment: Deployment) -> VariantState:
        seen = deployment.speculation_seen
        if seen is not None and time.time() - seen.read_at >= _ACCEPTANCE_SECONDS:
            seen = None
        return VariantState(
            running=self._routing.in_flight.load(deployment.id),
            speculating=deployment.speculating,
            accepted_per_draft=None if seen is None else seen.accepted_per_draft,
        )

    def _supporting(self, request: InferenceRequest, model: ModelName, held: HeldEpisode, route: Route) -> Route:
        """A Route whose engine takes every field of the request. The distribution is the same: so is the meaning."""
        name = refused_field(request, route)
        if name is None:
            return route
        if route.variant is Variant.FAST:
            standard = self._resolve(model, held, Variant.STANDARD)
            same = standard.version == route.version and standard.variant is Variant.STANDARD
            if same and refused_field(request, standard) is None:
                return standard.because(f"{VariantReason.UNSUPPORTED_FIELD.value}; {name}")
        raise _refused(request, route, name)


def refused_field(request: InferenceRequest, route: Route) -> str | None:
    """A field of the request that the Route's engine refuses; null, zero and empty values ask for nothing."""
    for name in route.refused:
        if name in request.fields and value_of(request.fields, name):
            return name
    return None


def class_of(request: InferenceRequest, latency: str) -> RequestClass:
    """What the rule behind NAME-auto looks at. Raises InvalidRequest for fields that are no JSON."""
    fields = request.fields
    temperature = value_of(fields, "temperature") if "temperature" in fields else None
    return RequestClass(
        latency="batch" if (request.latency or latency) == "batch" else "interactive",
        tools="tools" in fields and bool(value_of(fields, "tools")) and value_of(fields, "tool_choice") != "none",
        constrained=not _FORMATS.isdisjoint(fields) and _in_format(fields),
        answer_tokens=request.answer_tokens or None,
        prompt_tokens=request.prompt_tokens_estimate,
        choices=request.choices,
        temperature=float(temperature) if isinstance(temperature, int | float) else 1.0,
    )


def _in_format(fields: Fields) -> bool:
    """Whether a field asks for an answer in a given format."""
    given = {name: value_of(fields, name) for name in _FORMATS if name in fields}
    form = given.pop("response_format", None)
    return any(given.values()) or (isinstance(form, dict) and form.get("type") not in (None, "text"))


def _refused(request: InferenceRequest, route: Route, name: str) -> InvalidRequest:
    return InvalidRequest(
        f"'{name}' cannot be used with '{request.model_text}': {route.refused[name]}",
        hint=f"leave '{name}' out, or ask when a standard replica of '{route.policy}' is ready",
        param=name,
    )
