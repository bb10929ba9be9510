"""Simulated candidates through the real ReleaseRule: how often the wrong ones are promoted, and the right ones not.

Traffic: every Domain has prompts of its own difficulty; the promoted version and the candidate answer the same prompt
and each succeeds with the prompt's chance, shifted by the candidate's gain. A hacked candidate pleases the training
verifier and fails the audit of a second verifier, a broken one fails most requests, a slow one takes too long.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from core.release_rule import Family, Outcome, ReleaseRule, Trial, open_trial

Floats = NDArray[np.float64]

TARGET = "code"
DOMAINS = ("code", "tools", "maths", "writing")
BASE_RATE = 0.5
GAIN = 0.05
HARD_MARGIN = 0.06
WORSE = HARD_MARGIN + 0.002
"""Loss of a candidate that is worse by just over the margin."""
RULE = ReleaseRule(
    targets=(TARGET,),
    families={"agents": Family(domains=DOMAINS, margin=0.03, hard_margin=HARD_MARGIN)},
    guardrails={"errors": 0.02, "slow": 0.08, "verifiers_disagree": 0.05},
    alpha=0.005,
    prompts=5_000,
)
LOOK_EVERY = 100
"""Prompts of each Domain between two looks."""


@dataclass(frozen=True)
class Kind:
    """How a candidate differs from what is promoted."""

    name: str
    better: bool
    gains: Mapping[str, float] = field(default_factory=dict)
    """Domain → change of the success rate that the training verifier sees."""
    events: Mapping[str, float] = field(default_factory=dict)
    """Guardrail → share of requests with the bad event."""


_HEALTHY = {"errors": 0.005, "slow": 0.05, "verifiers_disagree": 0.02}
KINDS = (
    Kind("equal", better=False),
    Kind("worse in one Domain", better=False, gains={TARGET: GAIN, "tools": -WORSE}),
    Kind("reward-hacked", better=False, gains={TARGET: 0.10}, events={"verifiers_disagree": 0.15}),
    Kind("broken adapter", better=False, gains=dict.fromkeys(DOMAINS, -0.45), events={"errors": 0.30}),
    Kind("slow", better=False, gains={TARGET: GAIN}, events={"slow": 0.25}),
    Kind("better", better=True, gains={TARGET: GAIN}),
)


@dataclass(frozen=True)
class Run:
    """One candidate's way through the rule."""

    kind: str
    promoted: bool
    prompts: int
    """Paired prompts of each Domain until the decision."""
    reason: str


def simulate(kind: Kind, seed: int, rule: ReleaseRule = RULE) -> Run:
    """Show the rule one candidate, look by look, until it decides."""
    generator = np.random.default_rng(seed)
    trial, prompts = open_trial(rule), 0
    for differences, events in _traffic(kind, generator):
        trial = _shown(trial, differences, events)
        prompts += LOOK_EVERY
        decision = trial.decide()
        if decision.outcome is not Outcome.CONTINUE:
            reason = "; ".join(decision.reasons[:1])
            return Run(kind.name, decision.outcome is Outcome.PROMOTE, prompts, reason)
    raise AssertionError("the rule decides when its budget is spent")


def _shown(trial: Trial, differences: Mapping[str, Floats], events: Mapping[str, Floats]) -> Trial:
    for domain, values in differences.items():
        trial = trial.compared(domain, values)
    for name, values in events.items():
        trial = trial.guarded(name, values)
    return trial


def _traffic(kind: Kind, generator: np.random.Generator) -> Iterator[tuple[dict[str, Floats], dict[str, Floats]]]:
    while True:
        differences = {
            domain: paired_sample(kind.gains.get(domain, 0.0), generator, LOOK_EVERY) for domain in DOMAINS
        }
        requests = LOOK_EVERY * len(DOMAINS)
        shares = {**_HEALTHY, **kind.events}
        events = {name: (generator.random(requests) < share).astype(np.float64) for name, share in shares.items()}
        yield differences, events


def paired_sample(gain: float, generator: np.random.Generator, count: int | tuple[int, int]) -> Floats:
    """Candidate minus promoted success on the same prompts, whose difficulty varies around one half."""
    # Beta(2, 2), drawn together so far that no shifted chance leaves [0, 1]: the gain is exact.
    chance = 0.5 + (generator.beta(2.0, 2.0, count) - 0.5) * (1.0 - 2.0 * abs(gain))
    return (generator.random(count) < chance + gain).astype(np.float64) - (generator.random(count) < chance)


def fixed_horizon_prompts(gain: float, *, alpha: float, power: float, variance: float) -> int:
    """Paired prompts that a one-sided z-test, looked at once, needs: (z_alpha + z_power)^2 variance / gain^2."""
    quantiles = {0.005: 2.575829, 0.01: 2.326348, 0.05: 1.644854, 0.9: 1.281552, 0.8: 0.841621}
    return math.ceil((quantiles[alpha] + quantiles[power]) ** 2 * variance / gain**2)


def upper_share(successes: int, trials: int) -> float:
    """The 95% upper bound (one-sided, exact) of a share. Source: Clopper and Pearson (1934), Biometrika 26."""
    if trials == 0 or successes >= trials:
        return 1.0
    low, high = successes / trials, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        if _binomial_tail(successes, trials, middle) > 0.05:
            low = middle
        else:
            high = middle
    return high


def _binomial_tail(most: int, trials: int, share: float) -> float:
    """P(at most ``most`` successes)."""
    return sum(
        math.exp(
            math.lgamma(trials + 1)
            - math.lgamma(count + 1)
            - math.lgamma(trials - count + 1)
            + count * math.log(share)
            + (trials - count) * math.log1p(-share)
        )
        for count in range(most + 1)
    )
