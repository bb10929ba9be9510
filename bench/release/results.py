"""What the release benchmark claims, from what was simulated and measured."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from bench.checks import Check, check
from bench.release import candidates, sequences
from bench.release.plan import Plan
from bench.release.simulation import GAIN, RULE, Run, fixed_horizon_prompts, paired_sample

_VARIANCE_SAMPLE = 1_000_000


@dataclass
class Simulated:
    """The simulation's findings."""

    runs: list[Run]
    fixed: int
    """Paired prompts of a Domain of the fixed-horizon design."""
    coverage: list[dict[str, Any]]
    null: list[dict[str, Any]]
    power: list[dict[str, Any]]
    halfwidth: float


@dataclass
class LiveOutcome:
    """How one candidate of the live run ended."""

    candidate: str
    expected: str
    ended: str
    seconds: float
    """From its start to its end."""
    requests: int
    """Live requests meanwhile."""
    reason: str
    rollback_seconds: float | None = None
    """From the decision, until no gateway gave the candidate to anybody; None: it was not rolled back."""

    @property
    def right(self) -> bool:
        """Whether it ended as it should."""
        return self.ended == self.expected


@dataclass
class Findings:
    """All of a run; None and empty: not run."""

    simulated: Simulated | None = None
    live: list[LiveOutcome] = field(default_factory=list)


def simulated(plan: Plan) -> Simulated:
    """Run the simulation."""
    fixed = fixed_horizon()
    return Simulated(
        runs=candidates.run_all(plan),
        fixed=fixed,
        coverage=sequences.coverage_table(plan),
        null=sequences.null_table(plan),
        power=sequences.power_table(plan, fixed),
        halfwidth=sequences.halfwidth(plan),
    )


def fixed_horizon() -> int:
    """Paired prompts of a z-test that knows the gain and looks once, with power 0.9 at the rule's alpha."""
    generator = np.random.default_rng(1)
    variance = float(paired_sample(GAIN, generator, _VARIANCE_SAMPLE).var())
    return fixed_horizon_prompts(GAIN, alpha=RULE.alpha, power=0.9, variance=variance)


def checks(found: Findings) -> list[Check]:
    """Every claim with its target."""
    simulation = found.simulated
    if simulation is None:
        return _live_checks(found.live)
    runs = simulation.runs
    covered = min(row["coverage"] for row in simulation.coverage)
    ratio = candidates.median_prompts(runs) / simulation.fixed
    return [
        check("candidates", len(runs), "", ">= 2500"),
        check("wrong_promotion_rate_upper95", candidates.wrong_upper(runs), "", "<= 0.01"),
        check("right_promotion_rate", candidates.right_share(runs), "", ">= 0.9"),
        check("coverage_under_peeking", covered, "", f">= {0.95 - simulation.halfwidth:.3f}"),
        check("coverage_monte_carlo_halfwidth", simulation.halfwidth, "", "<= 0.01"),
        check("median_requests_vs_fixed_horizon", ratio, "", "<= 1.5"),
        *_live_checks(found.live),
    ]


def tables(found: Findings) -> dict[str, list[dict[str, Any]]]:
    """Rows for people."""
    simulation = found.simulated
    rows: dict[str, list[dict[str, Any]]] = {"live": [_live_row(one) for one in found.live]}
    if simulation is not None:
        rows |= {
            "kinds": candidates.kinds_table(simulation.runs),
            "coverage": simulation.coverage,
            "null": simulation.null,
            "power": simulation.power,
        }
    return rows


def _live_checks(live: Sequence[LiveOutcome]) -> list[Check]:
    right = sum(one.right for one in live) if live else None
    back = [one.rollback_seconds for one in live if one.rollback_seconds is not None]
    return [
        check("live_outcomes_right", right, "of 3", ">= 3"),
        check("rollback_seconds_max", max(back) if back else None, "s", "<= 1.0"),
    ]


def _live_row(one: LiveOutcome) -> dict[str, Any]:
    return {
        "candidate": one.candidate,
        "expected": one.expected,
        "ended": one.ended,
        "seconds": one.seconds,
        "requests": one.requests,
        "rollback_seconds": one.rollback_seconds,
        "reason": one.reason,
    }
