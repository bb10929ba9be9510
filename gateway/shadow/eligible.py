"""Which requests a shadow mirrors, and why it leaves out the others. Pure."""

import hashlib
from enum import StrEnum

from core.config.shadow import ShadowSection
from core.experiment import Experiment
from gateway.capture.record import CapturedCall
from gateway.episodes import HeldEpisode
from gateway.experiments.exposure import DOMAIN_METADATA
from gateway.inference.request import InferenceRequest

_LONGEST_DOMAIN = 64


class Skip(StrEnum):
    """Why a request was not mirrored."""

    NO_CONSENT = "no_consent"
    """Nothing of its content may be kept."""
    REDACTED = "redacted"
    """Personal data is taken out of the Tenant's records."""
    PINNED = "pinned"
    """It names a version, or its Episode was created for one."""
    ATTEMPT = "attempt"
    """An attempt of a worker, not a client's request."""
    EXPOSED = "exposed"
    """It is part of an A/B Experiment."""
    OTHER_ANSWER = "other_answer"
    """Another version, Variant or model answered than the primary arm's."""
    BROKEN = "broken"
    """The client's answer broke off."""
    SEVERAL_ANSWERS = "several_answers"
    TOO_LARGE = "too_large"
    TOO_LONG = "too_long"
    NOT_SAMPLED = "not_sampled"
    QUEUE_FULL = "queue_full"
    BUSY = "busy"
    """The candidate's replicas, or their engine's own limit."""
    NOT_HELD = "not_held"
    """No replica holds the candidate."""
    REFUSED = "refused"
    """The replica's engine refuses the request as such."""
    SWAPPED = "swapped"
    """The replica's weights were replaced meanwhile."""
    BUDGET = "budget_spent"
    NOT_READY = "not_ready"
    """It is not known yet what was spent."""
    BACKLOG = "backlog"
    """Too many pairs wait for a store that is away."""
    STOPPED = "stopped"
    """The shadow, or the gateway, stopped while the request waited."""
    INTERNAL = "internal"
    """Shadowing itself failed."""


def reason_against(
    experiment: Experiment, request: InferenceRequest, call: CapturedCall, held: HeldEpisode, limits: ShadowSection
) -> Skip | None:
    """Why an answered request is not mirrored; None: it is one of the sample."""
    if not call.keeps_content:
        return Skip.NO_CONSENT
    if call.redact:
        return Skip.REDACTED
    if held.attempt:
        return Skip.ATTEMPT
    if held.pinned is not None or request.model.version is not None or request.model.alias is not None:
        return Skip.PINNED
    if call.exposure is not None:
        return Skip.EXPOSED
    if not answered_by_primary(experiment, call):
        return Skip.OTHER_ANSWER
    if call.broken is not None:
        return Skip.BROKEN
    if request.choices != 1:
        return Skip.SEVERAL_ANSWERS
    if len(request.body) > limits.most_request_bytes:
        return Skip.TOO_LARGE
    if call.completion_tokens > limits.most_answer_tokens:
        return Skip.TOO_LONG
    return None if sampled(experiment, call.turn_ids[0]) else Skip.NOT_SAMPLED


def answered_by_primary(experiment: Experiment, call: CapturedCall) -> bool:
    """Whether the client's answer is one of the arm that the candidate is compared with."""
    primary, candidate = experiment.arms[:2]
    if call.fallback_from is not None or (call.policy, call.version) != (experiment.policy, primary.version):
        return False
    if any(version != primary.version for runs in call.version_spans.values() for version, _ in runs):
        return False
    # Both Variants give the same distribution: which one answered matters only where that is compared.
    return primary.version != candidate.version or call.variant == primary.variant.value


def sampled(experiment: Experiment, turn_id: str) -> bool:
    """Whether a Turn is in the sample: a salted hash in [0, 1) below the share, the same on every gateway."""
    digest = hashlib.sha256(f"{experiment.salt}:shadow:{turn_id}".encode()).digest()
    return int.from_bytes(digest[:8], "big") / 2**64 < experiment.sample_share


def domain_of(request: InferenceRequest) -> str | None:
    """The Domain that a request names for itself."""
    named = request.metadata.get(DOMAIN_METADATA) if request.metadata else None
    return named[:_LONGEST_DOMAIN] if isinstance(named, str) and named else None
