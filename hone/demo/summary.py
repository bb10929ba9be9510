"""The demo's result: stage times, figures and checks, written to ``summary.json``."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from core.evaluation import Evaluation
from core.noun import Noun
from core.run import TrainingRun
from core.statistics.intervals import Interval

Outcome = Literal["proven", "not_proven", "failed"]


class Check(Noun):
    """One figure with the target that it is held against."""

    name: str
    value: float
    unit: str
    target: str


class StageTime(Noun):
    """How long one stage took."""

    name: str
    seconds: float


class Figures(Noun):
    """Everything the demo measured."""

    warmup: Evaluation
    """GRPO start against the Base."""
    trained: Evaluation
    """Last version against the GRPO start."""
    base_interval: Interval
    start_interval: Interval
    trained_interval: Interval
    run: TrainingRun
    requests: int
    failed_requests: int
    swap_seconds: tuple[float, ...]


class Summary(Noun):
    """What ``summary.json`` holds."""

    outcome: Outcome
    seed: int
    policy: str
    domain: str
    promoted_version: int | None
    stages: tuple[StageTime, ...]
    checks: tuple[Check, ...]
    rewards: tuple[float, ...]
    """Mean training reward of each GRPO step."""
    error: str | None = None
    details: dict[str, Any] = Field(default_factory=dict)


class Stopwatch:
    """Collects the times of the stages in the order in which they ran."""

    def __init__(self) -> None:
        self._started = time.monotonic()
        self._stages: list[StageTime] = []

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Time the block under ``name``, whether it succeeds or not."""
        started = time.monotonic()
        try:
            yield
        finally:
            self._stages.append(StageTime(name=name, seconds=round(time.monotonic() - started, 2)))

    @property
    def stages(self) -> tuple[StageTime, ...]:
        """The stages so far."""
        return tuple(self._stages)

    @property
    def total_seconds(self) -> float:
        """Since the stopwatch was made."""
        return time.monotonic() - self._started


def checks_of(figures: Figures, total_seconds: float) -> tuple[Check, ...]:
    """The demo's checks, by the names that its users compare between runs."""
    gain = figures.trained.gain
    swaps = figures.swap_seconds
    rows: list[tuple[str, float, str, str]] = [
        ("heldout_tasks", figures.trained.tasks, "tasks", ">= 200"),
        ("heldout_base", figures.warmup.baseline_success, "share", ""),
        ("heldout_start", figures.trained.baseline_success, "share", ""),
        ("heldout_trained", figures.trained.success, "share", "> heldout_start"),
        ("heldout_gain_ci_low", gain.low, "share", "> 0"),
        ("heldout_gain_ci_high", gain.high, "share", ""),
        ("grpo_steps", len(figures.run.steps), "steps", ">= 3"),
        ("requests", figures.requests, "requests", ""),
        ("failed_requests", figures.failed_requests, "requests", "0"),
        ("versions_swapped", len(swaps), "versions", ">= 3"),
        ("swap_seconds_max", max(swaps, default=0.0), "s", "< 2"),
        ("total_seconds", total_seconds, "s", "<= 1200"),
    ]
    return tuple(
        Check(name=name, value=round(float(value), 4), unit=unit, target=target) for name, value, unit, target in rows
    )


def write_summary(summary: Summary, folder: Path) -> Path:
    """Write ``summary.json`` and return its path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "summary.json"
    path.write_text(summary.model_dump_json(indent=2) + "\n")
    return path
