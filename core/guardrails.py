"""Guardrails: what must not get worse while a candidate has traffic, and whether it did. Pure; valid at every look.

One-sided: a guardrail can only speak against a candidate. Each is a betting test on numbers in [0, 1] with the key as
its unit, so that a user who asks a thousand times weighs as much as one who asks once, and ``alpha`` is split over
all of them: a candidate that keeps every one is stopped with probability at most ``alpha``, however often one looks.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Annotated

import numpy as np
from pydantic import Field

from core.arm_units import ArmUnit, matched_differences
from core.noun import Noun
from core.statistics.betting import BettingTest, difference_test
from core.statistics.sequences import unit_interval

REWARD = "reward"
"""The guardrail that watches a mean instead of a bad event."""
NAN_LOGPROBS = "nan_logprobs"
"""The event that no statistics are needed for."""
EVENTS: Mapping[str, str] = {
    "error": "the request failed, or its stream broke off",
    "slow": "the first token (or a whole answer) took longer than ``slow_seconds``",
    "refusal": "the model declined to answer",
    "invalid_tool_call": "a tool call names no offered tool, or its arguments are no JSON object",
    "long": "the answer met its token limit, or is longer than ``long_tokens``",
    "low_acceptance": "fewer draft tokens were accepted than ``least_acceptance``",
    NAN_LOGPROBS: "a sampled token's log-prob is no number",
}
"""Name of a bad event of a request → when it happens."""
_PLURALS = {"errors": "error", "refusals": "refusal", "invalid_tool_calls": "invalid_tool_call"}

Share = Annotated[float, Field(gt=0, lt=1)]


class Guardrails(Noun):
    """What a ramp is watched by."""

    margins: Mapping[str, Share] = Field(
        default_factory=lambda: {
            "error": 0.02,
            "slow": 0.1,
            "refusal": 0.05,
            "invalid_tool_call": 0.05,
            "long": 0.15,
            "low_acceptance": 0.15,
            REWARD: 0.05,
        }
    )
    """Event → by how much the candidate's share of requests may exceed the promoted arm's; ``reward``: by how much
    its mean may fall below."""
    limits: Mapping[str, Share] = Field(default_factory=dict)
    """Event → largest acceptable share of the candidate's requests, whatever the promoted arm's is."""
    alpha: float = Field(default=0.01, gt=0, lt=0.5)
    """Chance that a candidate which keeps all of them is stopped, over all of them."""
    slow_seconds: float = Field(default=10.0, gt=0)
    """To the first token of a stream, or of a whole answer."""
    long_tokens: int = Field(default=2048, ge=1)
    """Of one answer."""
    least_acceptance: float = Field(default=0.2, ge=0, le=1)
    """Of a request's draft tokens."""
    nan_requests: int = Field(default=1, ge=1)
    """Answers with a log-prob that is no number before the candidate is stopped."""


class GuardrailVerdict(Noun):
    """What one guardrail says so far."""

    name: str
    kind: str
    """``margin``: against the promoted arm; ``limit``: by itself."""
    broken: bool
    bound: float
    """The margin or the limit."""
    seen: float | None
    """Mean difference, or share; None without a unit."""
    units: int
    evidence: float
    """Log of the largest wealth so far of who bets that it is broken."""
    needed: float
    """Broken when ``evidence`` reaches it."""

    @property
    def says(self) -> str:
        """One line for people."""
        seen = "nothing seen" if self.seen is None else f"{self.seen:+.4f} over {self.units} units"
        state = "is broken" if self.broken else "holds"
        return f"guardrail {self.name} ({self.kind} {self.bound:g}) {state}: {seen}"


def event_of(name: str) -> str:
    """The event that a policy file means by ``name``: ``errors`` is ``error``."""
    return _PLURALS.get(name, name)


def judge_guardrails(
    units: Sequence[ArmUnit], guardrails: Guardrails, *, shares: Sequence[float], candidate: str, promoted: str
) -> tuple[GuardrailVerdict, ...]:
    """Every guardrail on these units. ``shares``: the candidate's share of the keys, stage by stage."""
    tests = [*_margin_tests(units, guardrails, shares, candidate, promoted)]
    tests += _limit_tests(units, guardrails, candidate)
    if not tests:
        return ()
    needed = float(np.log(len(tests) / guardrails.alpha))
    return tuple(
        GuardrailVerdict(
            name=name,
            kind=kind,
            broken=test.peak >= needed,
            bound=bound,
            seen=None if test.mean is None else test.mean if kind == "limit" else 2.0 * test.mean - 1.0,
            units=test.count,
            evidence=test.peak,
            needed=needed,
        )
        for name, kind, bound, test in tests
    )


def hard_events(units: Iterable[ArmUnit], guardrails: Guardrails, *, candidate: str) -> tuple[str, ...]:
    """What needs no statistics: log-probs of the candidate that are no numbers."""
    found = sum(unit.events.get(NAN_LOGPROBS, 0) for unit in units if unit.arm == candidate)
    if found < guardrails.nan_requests:
        return ()
    return (f"{found} answers of the candidate have log-probs that are no numbers",)


def _margin_tests(
    units: Sequence[ArmUnit], guardrails: Guardrails, shares: Sequence[float], candidate: str, promoted: str
) -> Iterable[tuple[str, str, float, BettingTest]]:
    for name, margin in guardrails.margins.items():
        event = event_of(name)
        value = partial(_value, event=event)
        differences = matched_differences(units, value, shares=shares, first=promoted, second=candidate)
        if event == REWARD:
            differences = -differences
        yield event, "margin", margin, difference_test(margin).after(unit_interval(differences))


def _limit_tests(
    units: Sequence[ArmUnit], guardrails: Guardrails, candidate: str
) -> Iterable[tuple[str, str, float, BettingTest]]:
    for name, limit in guardrails.limits.items():
        event = event_of(name)
        own = [unit.share(event) for unit in units if unit.arm == candidate and unit.requests]
        yield event, "limit", limit, BettingTest(null=limit).after(own)


def _value(unit: ArmUnit, event: str) -> float | None:
    if event == REWARD:
        return unit.reward
    return unit.share(event) if unit.requests else None
