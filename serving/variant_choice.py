"""Chooses between ``standard`` and ``fast`` for one request: the rule behind NAME-auto, without I/O.

Speculation saves time where tokens are easy to guess and the engine has computing power to spare: tool calls and
other constrained answers, few requests at once. It costs time where drafts are refused and where a full batch uses
the processor anyway. Sources: vLLM's documentation of speculative decoding; Leviathan et al. 2023, "Fast Inference
from Transformers via Speculative Decoding", section 3.
"""

from enum import StrEnum
from typing import Literal

import msgspec

from core.config.gateway import AutoSection
from core.variant import Variant

Latency = Literal["interactive", "batch"]


class VariantReason(StrEnum):
    """Why a Variant answers, as ``x-hone-variant-reason`` says it."""

    NO_FAST_REPLICA = "no_fast_replica"
    """No fast replica is ready."""
    FAST_LACKS_VERSION = "fast_lacks_version"
    """The ready fast replicas do not hold the version."""
    NO_STANDARD_REPLICA = "no_standard_replica"
    """Only a fast replica can answer."""
    SPECULATION_OFF = "speculation_off"
    """Speculation is switched off at present: it would be slower."""
    UNSUPPORTED_FIELD = "unsupported_field"
    """The request has a field that a fast engine refuses."""
    BATCH = "latency_batch"
    """The request asks for throughput."""
    BUSY = "fast_busy"
    """So many requests run on the fast replicas that speculation gains nothing, or others are less loaded."""
    LOW_ACCEPTANCE = "low_acceptance"
    """Too few draft tokens were accepted lately."""
    MANY_CHOICES = "many_choices"
    """``n`` answers are a batch of their own."""
    SHORT_ANSWER = "short_answer"
    """The prompt takes most of the time, and speculation does not shorten that."""
    HIGH_TEMPERATURE = "high_temperature"
    """Drafts of text sampled so hot are seldom accepted."""
    TOOLS = "tools"
    """Tool calls are easy to guess."""
    CONSTRAINED = "constrained"
    """So is text in a given format."""
    INTERACTIVE = "interactive"
    """Nothing speaks against speculation."""


class RequestClass(msgspec.Struct, frozen=True):
    """What the rule looks at in a request."""

    latency: Latency = "interactive"
    tools: bool = False
    constrained: bool = False
    """The answer has a given format: JSON, a schema, a grammar, a list of choices."""
    answer_tokens: int | None = None
    """The request's limit; None: it has none."""
    prompt_tokens: int = 0
    """An estimate."""
    choices: int = 1
    temperature: float = 1.0


class VariantState(msgspec.Struct, frozen=True):
    """What is known of the ready replicas of one Variant that could answer."""

    running: int
    """Requests on the least loaded one."""
    speculating: bool = False
    accepted_per_draft: float | None = None
    """Lately, on the replica of ``running``; None: not known."""


def choose_variant(
    request: RequestClass,
    *,
    standard: VariantState | None,
    fast: VariantState | None,
    before: Variant | None = None,
    rule: AutoSection,
) -> tuple[Variant, VariantReason]:
    """The Variant for a request, and the reason. None for a Variant: no replica of it can answer.

    ``before`` answered the request's Episode last: it has the conversation in its cache, and is left only when the
    load is clearly above the bound.
    """
    if fast is None:
        return Variant.STANDARD, VariantReason.NO_FAST_REPLICA
    if standard is None:
        return Variant.FAST, VariantReason.NO_STANDARD_REPLICA
    against = _against_fast(request, standard, fast, before, rule)
    if against is not None:
        return Variant.STANDARD, against
    if request.tools:
        return Variant.FAST, VariantReason.TOOLS
    if request.constrained:
        return Variant.FAST, VariantReason.CONSTRAINED
    return Variant.FAST, VariantReason.INTERACTIVE


def _against_fast(
    request: RequestClass, standard: VariantState, fast: VariantState, before: Variant | None, rule: AutoSection
) -> VariantReason | None:
    """What speaks against speculation; None: nothing."""
    if not fast.speculating:
        return VariantReason.SPECULATION_OFF
    if request.latency == "batch":
        return VariantReason.BATCH
    if request.choices >= rule.many_choices:
        return VariantReason.MANY_CHOICES
    if _answer_is_short(request, rule):
        return VariantReason.SHORT_ANSWER
    busy = rule.busy_requests + (rule.busy_requests // 2 if before is Variant.FAST else 0)
    if fast.running >= busy and standard.running <= fast.running:
        return VariantReason.BUSY
    if fast.accepted_per_draft is not None and fast.accepted_per_draft < rule.accepted_per_draft:
        return VariantReason.LOW_ACCEPTANCE
    predictable = request.tools or request.constrained
    if request.temperature >= rule.high_temperature and not predictable:
        return VariantReason.HIGH_TEMPERATURE
    return None


def _answer_is_short(request: RequestClass, rule: AutoSection) -> bool:
    limit = request.answer_tokens
    if limit is None:
        return False
    return limit <= rule.short_answer_tokens or request.prompt_tokens > rule.prompt_ratio * limit
