"""What a run amounts to: rows for both ways of routing, the fault, and the checks."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from bench.checks import Check, check, percentile, ratio
from bench.engine_records import Comparison
from bench.fleet.fault import Fault
from bench.streams import Answer

Spread = dict[str, int]
"""Replica, such as ``standard 0`` → Turns that it answered."""


@dataclass
class Arm:
    """One stretch of load under one way of routing."""

    sticky: bool
    seconds: float
    answers: list[Answer]
    queries: float
    """Prompt tokens that engines looked up in their prefix caches."""
    hits: float
    spread: Spread = field(default_factory=dict)


@dataclass
class Findings:
    """Everything that one run measured."""

    replicas: int = 0
    arms: list[Arm] = field(default_factory=list)
    fault: Fault | None = None
    spread_after: Spread = field(default_factory=dict)
    """Turns since the killed replica was back."""
    comparison: Comparison = field(default_factory=Comparison)

    def of(self, *, sticky: bool) -> list[Arm]:
        """The arms of one way of routing."""
        return [arm for arm in self.arms if arm.sticky is sticky]


def hit_rate(arms: Sequence[Arm]) -> float | None:
    """Share of prompt tokens that were in the prefix cache of the replica that was asked."""
    return ratio(sum(arm.hits for arm in arms), sum(arm.queries for arm in arms))


def imbalance(spread: Mapping[str, int], variant: str = "standard") -> float | None:
    """Turns of the busiest replica of a Variant over those of the least busy one; None for a single one."""
    counts = [count for name, count in spread.items() if name.startswith(variant)]
    return ratio(max(counts), min(counts)) if len(counts) > 1 else None


def total(spreads: Sequence[Spread]) -> Spread:
    """Several spreads as one."""
    found: Counter[str] = Counter()
    for spread in spreads:
        found.update(spread)
    return dict(sorted(found.items()))


def arm_row(findings: Findings, *, sticky: bool) -> dict[str, Any]:
    """One way of routing; seconds."""
    arms = findings.of(sticky=sticky)
    answers = [answer for arm in arms for answer in arm.answers if answer.error is None]
    later = [one for one in answers if one.turn > 0 and one.arrivals]
    first = [one.arrivals[0] - one.started for one in later]
    whole = [answer.seconds for answer in answers]
    seconds = sum(arm.seconds for arm in arms)
    spread = total([arm.spread for arm in arms])
    return {
        "routing": "sticky" if sticky else "least loaded",
        "requests": len(answers),
        "failed": sum(answer.error is not None for arm in arms for answer in arm.answers),
        "tokens_per_second": sum(len(answer.ids) for answer in answers) / seconds if seconds else None,
        "hit_rate": hit_rate(arms),
        "later_first_token_p50": percentile(first, 0.5),
        "later_first_token_p99": percentile(first, 0.99),
        "request_p50": percentile(whole, 0.5),
        "request_p99": percentile(whole, 0.99),
        "spread": ", ".join(f"{name}: {count}" for name, count in spread.items()),
        "imbalance": imbalance(spread),
    }


def fault_row(findings: Findings) -> dict[str, Any]:
    """The killed replica, in seconds since it was killed."""
    fault = findings.fault
    if fault is None:
        return {}
    swap = fault.swap
    return {
        "requests": len(fault.answers),
        "failed": len(fault.failed),
        "cut": len(fault.cut),
        "out": None if fault.out is None else fault.out - fault.killed,
        "back": None if fault.back is None else fault.back - fault.killed,
        "swap": "none" if swap is None else (swap.error or "live"),
        "swap_first_token": None if swap is None else swap.to_first_token,
        "spread_after": ", ".join(f"{name}: {count}" for name, count in findings.spread_after.items()),
    }


def checks(findings: Findings) -> list[Check]:
    """The targets, each with what was measured."""
    fault, row = findings.fault, fault_row(findings)
    sticky, free = hit_rate(findings.of(sticky=True)), hit_rate(findings.of(sticky=False))
    in_arms = sum(answer.error is not None for arm in findings.arms for answer in arm.answers)
    swapped = fault is not None and fault.swap is not None and fault.swap.error is None
    compared = findings.comparison
    return [
        check("fleet_replicas", findings.replicas, "replicas", ">= 3"),
        check("fleet_turns_checked", compared.checked, "Turns", ">= 200"),
        check("fleet_failed_requests", None if fault is None else in_arms + len(fault.failed), "requests", "== 0"),
        check("fleet_out_seconds", row.get("out"), "s", "<= 5"),
        check("fleet_back_seconds", row.get("back"), "s", "<= 240"),
        check("fleet_swaps_during_fault", int(swapped), "swaps", ">= 1"),
        check("fleet_tokens_lost", compared.lost + compared.unrecorded, "tokens", "== 0"),
        check("fleet_wrong_version_turns", compared.wrong_version, "Turns", "== 0"),
        check("fleet_prefix_hit_rate_sticky", sticky, "of prompt tokens", ">= 0.5"),
        check("fleet_prefix_hit_rate_gain", ratio(sticky, free), "x", ">= 1.2"),
        check(
            "fleet_load_imbalance_sticky",
            imbalance(total([arm.spread for arm in findings.of(sticky=True)])),
            "x",
            "<= 1.5",
        ),
    ]


def tables(findings: Findings) -> dict[str, list[Mapping[str, Any]]]:
    """Everything beside the checks."""
    return {
        "routing": [arm_row(findings, sticky=sticky) for sticky in (False, True)],
        "fault": [fault_row(findings)],
    }
