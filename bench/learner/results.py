"""From what both sides measured to rows and checks."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, median
from typing import Any

from bench.checks import Check, check, ratio

HONE, TRL = "hone", "trl"


@dataclass
class Measured:
    """One workload: Episodes, the setting that each side was fastest with, and its runs there."""

    name: str
    episodes: list[dict[str, Any]] = field(default_factory=list)
    tried: dict[str, dict[int, float]] = field(default_factory=dict)
    """Side → micro-batch → seconds a step."""
    runs: dict[str, list[dict[str, Any]]] = field(default_factory=lambda: {HONE: [], TRL: []})

    @property
    def response_tokens(self) -> int:
        """Unmasked response tokens of one optimizer step."""
        return sum(len(episode["response"]) for episode in self.episodes)

    def seconds(self, side: str) -> float | None:
        """Median seconds of an optimizer step."""
        found = [seconds for run in self.runs[side] for seconds in run["seconds"]]
        return median(found) if found else None

    def speed(self, side: str) -> float | None:
        """Response tokens per second."""
        seconds = self.seconds(side)
        return None if seconds is None else self.response_tokens / seconds

    def peak(self, side: str) -> float | None:
        """Median peak resident memory of the process, in MiB."""
        found = [run["peak_mib"] for run in self.runs[side]]
        return median(found) if found else None

    def loss(self, side: str) -> float | None:
        """What was reached."""
        found = [run["loss"] for run in self.runs[side]]
        return fmean(found) if found else None


def row(one: Measured, side: str) -> dict[str, Any]:
    """One line of the table."""
    runs = one.runs[side]
    return {
        "workload": one.name,
        "side": side,
        "micro_batch": min(one.tried[side], key=lambda size: one.tried[side][size]) if one.tried.get(side) else None,
        "seconds": one.seconds(side),
        "tokens_per_second": one.speed(side),
        "peak_mib": one.peak(side),
        "loss": one.loss(side),
        "gradient_norm": runs[-1]["gradient_norm"] if runs else None,
    }


def _memory(one: Measured) -> float | None:
    return ratio(one.peak(HONE), one.peak(TRL))


def loss_difference(one: Measured) -> float | None:
    """Distance of what both sides reached."""
    ours, theirs = one.loss(HONE), one.loss(TRL)
    return None if ours is None or theirs is None else abs(ours - theirs)


def checks(measured: Mapping[str, Measured]) -> list[Check]:
    """The targets, each with what was measured."""

    def faster(name: str) -> float | None:
        one = measured.get(name)
        return None if one is None else ratio(one.speed(HONE), one.speed(TRL))

    def whole(values: Sequence[float | None]) -> float | None:
        found = [value for value in values if value is not None]
        return max(found) if found and len(found) == len(values) else None

    return [
        check("short_lora_vs_trl", faster("short_lora"), "x", ">= 1.3"),
        check("short_full_vs_trl", faster("short_full"), "x", ">= 1.3"),
        check("shared_prefix_lora_vs_trl", faster("shared_prefix_lora"), "x", ">= 3"),
        check(
            "peak_memory_vs_trl", whole([ratio(m.peak(HONE), m.peak(TRL)) for m in measured.values()]), "x", "<= 1"
        ),
        check("loss_difference_max", whole([loss_difference(m) for m in measured.values()]), "nats", "<= 0.01"),
    ]
