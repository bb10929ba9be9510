"""From what users got before and after to checks and rows."""

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from bench.checks import Check, check
from core.run import TrainingRun
from core.statistics.intervals import Interval, paired_bootstrap

USERS = 200


def summary(
    scores: Mapping[str, Sequence[float]], *, run: TrainingRun, control: TrainingRun, rated: Sequence[float]
) -> dict[str, Any]:
    """``scores``: the held-out questions' by ``base``, ``live`` and ``control``, paired."""
    rows = [_row(name, scores["base"], scores[name]) for name in ("base", "live", "control")]
    over = paired_bootstrap([new - old for old, new in zip(scores["control"], scores["live"], strict=True)])
    return {"checks": checks(rows, over, len(rated)), "tables": {"rows": rows}, "curves": _curves(run, control)}


def newest_version(run: TrainingRun) -> int:
    """What a run ended with; the Base (0) where it found nothing to learn from."""
    return run.steps[-1].version if run.steps else 0


def checks(rows: Sequence[Mapping[str, Any]], over: Interval, users: int) -> list[Check]:
    """The targets, each with what was measured; ``over``: the gain over the control, question by question."""
    live = next(row for row in rows if row["version"] == "live")
    return [
        check("users", users, "users", f">= {USERS}"),
        check("gain_low", live["low"], "score", ">= 0.01"),
        check("gain_over_control", over.mean, "score", ">= 0.02"),
        check("gain_over_control_low", over.low, "score", ">= 0.001"),
    ]


def _row(name: str, before: Sequence[float], after: Sequence[float]) -> dict[str, Any]:
    gain = paired_bootstrap([new - old for old, new in zip(before, after, strict=True)])
    return {"version": name, "score": fmean(after), "gain": gain.mean, "low": gain.low, "high": gain.high}


def _curves(run: TrainingRun, control: TrainingRun) -> dict[str, Any]:
    return {
        name: [step.model_dump(mode="json", include={"step", "version", "reward_mean", "loss"}) for step in one.steps]
        for name, one in (("live", run), ("control", control))
    }
