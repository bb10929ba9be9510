"""Which key a request belongs to, and which arm of an Experiment that key has. Pure."""

import hashlib
from collections.abc import Collection
from dataclasses import dataclass

import msgspec

from core import ids
from core.experiment import Arm, Experiment, assign
from core.policy import Policy
from core.ramp import PROMOTED
from gateway.capture.record import ArmExposure
from gateway.episodes import HeldEpisode
from gateway.inference.base import Call
from gateway.inference.request import InferenceRequest, value_of

DOMAIN_METADATA = "hone_domain"
"""Key in ``metadata`` that names the Domain of a request, for rewards by Domain."""
_PRIVATE = "tenant/"
_DIGEST_BYTES = 16
_USER_FIELDS = ("safety_identifier", "user")


@dataclass(slots=True)
class Exposure:
    """An Episode's part in an Experiment."""

    experiment: Experiment
    arm: Arm
    key: str
    """As a digest that no Experiment's salt is part of: the same key is recognised in the next one."""
    bucket: float
    reason: str
    domain: str | None = None
    fell_back: bool = False
    """Another arm has to answer from now on."""

    @property
    def splits_versions(self) -> bool:
        """Whether the arms differ in their versions; else they differ in their Variants."""
        return len({arm.version for arm in self.experiment.arms}) > 1

    def seen(self, answered: str | None) -> ArmExposure:
        """The form for the journal; ``answered``: the arm that answered, None where none did."""
        return ArmExposure(
            experiment_id=self.experiment.id,
            arm=self.arm.name,
            answered=answered,
            key=self.key,
            bucket=self.bucket,
            stage=self.experiment.stage,
            reason=self.reason,
            domain=self.domain,
        )


def exposure_of(
    experiment: Experiment,
    policy: Policy,
    call: Call,
    request: InferenceRequest,
    held: HeldEpisode,
    *,
    domains: Collection[str] = (),
    secret: bytes = b"",
) -> Exposure | None:
    """The part of a request's Episode in an Experiment; None: it has none.

    Pinned Episodes and this side's own attempts have none, nor have conversations that are older than the
    Experiment. One that began since then keeps the version that it began with, whatever its key's arm is by now.
    ``domains``: names that a request may give as its Domain; ``secret``: who lacks it finds no user by a digest.
    """
    if held.pinned is not None or held.attempt or request.model.version is not None or request.model.alias:
        return None
    promoted = next((arm for arm in experiment.arms if arm.name == PROMOTED), None)
    if promoted is not None and promoted.version != policy.promoted_version:
        # Somebody moved the traffic meanwhile: the Experiment compares with what is no longer there.
        return None
    versions = len({arm.version for arm in experiment.arms}) > 1
    if not versions and (request.model.auto or str(request.model) != experiment.policy):
        return None
    kind, value = _key_of(experiment, call, request, held)
    key = key_digest(secret, held.tenant_id, kind, value)
    assigned = assign(experiment, key)
    arm = next(one for one in experiment.arms if one.name == assigned.arm)
    reason = "hash" if kind == experiment.key else f"no_{experiment.key}"
    began_with = held.versions.get(experiment.policy)
    if began_with is not None:
        if (ids.time_of(held.id) or 0.0) < experiment.created_at:
            return None
        if versions:
            kept = next((one for one in experiment.arms if one.version == began_with), None)
            if kept is None:
                return None
            if kept.name != arm.name:
                arm, reason = kept, "began_with"
    return Exposure(
        experiment=experiment,
        arm=arm,
        key=key,
        bucket=assigned.bucket,
        reason=reason,
        domain=_domain_of(request, held, domains),
    )


def with_variant(request: InferenceRequest, exposure: Exposure) -> InferenceRequest:
    """The request as its arm decodes it, where the arms are Variants."""
    if exposure.splits_versions or request.model.variant is exposure.arm.variant:
        return request
    model = request.model.model_copy(update={"variant": exposure.arm.variant})
    return msgspec.structs.replace(request, model=model)


def _key_of(experiment: Experiment, call: Call, request: InferenceRequest, held: HeldEpisode) -> tuple[str, str]:
    """Kind and value of what sticks to an arm; a request that names no user is one of its Episode."""
    if experiment.key == "api_key":
        return "api_key", call.caller.key.id
    if experiment.key == "user":
        if call.user:
            return "user", call.user
        for name in _USER_FIELDS:
            user = value_of(request.fields, name) if name in request.fields else None
            if isinstance(user, str) and user:
                return "user", user
    return "episode", held.id


def _domain_of(request: InferenceRequest, held: HeldEpisode, domains: Collection[str]) -> str | None:
    """Only the name of a Domain that there is, and that is no other Tenant's: a client may write anything there."""
    named = request.metadata.get(DOMAIN_METADATA) if request.metadata else None
    if not isinstance(named, str) or named not in domains:
        return None
    private = named.startswith(_PRIVATE) and not named.startswith(f"{_PRIVATE}{held.tenant_id}/")
    return None if private else named


def key_digest(secret: bytes, tenant_id: str, kind: str, value: str) -> str:
    """What is kept of a key; ``secret``: empty, or what all gateways have and the store does not. Pure."""
    text = "\0".join((tenant_id, kind, value)).encode(errors="surrogatepass")
    key = hashlib.blake2b(secret).digest() if secret else b""
    return hashlib.blake2b(text, digest_size=_DIGEST_BYTES, key=key).hexdigest()
