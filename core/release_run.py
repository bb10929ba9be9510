"""ReleaseRun: one candidate's way by a ReleasePlan, with all that a restart needs and every decision made on it."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from pydantic import Field

from core.noun import Noun, now
from core.release import ReleaseStep
from core.release_plan import ReleasePlan
from core.release_rule import Trial

_MOST_POINTS = 200


class RunStatus(StrEnum):
    """Whether a ReleaseRun goes on, and how it ended."""

    RUNNING = "running"
    WAITING = "waiting"
    """For somebody's approval."""
    PROMOTED = "promoted"
    REJECTED = "rejected"
    ROLLED_BACK = "rolled_back"
    STOPPED = "stopped"


OPEN = frozenset({RunStatus.RUNNING, RunStatus.WAITING})


class Verdict(StrEnum):
    """What was decided."""

    STARTED = "started"
    PASSED = "passed"
    """A step."""
    NEXT_STAGE = "next_stage"
    """Of the ramp."""
    SKIPPED = "skipped"
    """A step, by a person, without its evidence."""
    APPROVED = "approved"
    PROMOTED = "promoted"
    REJECTED = "rejected"
    ROLLED_BACK = "rolled_back"
    STOPPED = "stopped"


class ReleaseDecision(Noun):
    """One decision and what it rests on."""

    number: int
    """Within its ReleaseRun, from 1 on."""
    verdict: Verdict
    step: ReleaseStep | None = None
    """None: about the whole run."""
    reasons: tuple[str, ...] = ()
    by: str
    """``plan``, or the name of the key of who decided."""
    evidence: dict[str, Any] = Field(default_factory=dict)
    at: float = Field(default_factory=now)
    notified: bool = False
    """The webhook took it, or there is none."""


class TrialPoint(Noun):
    """How far the proof of each claim was at one look."""

    at: float
    step: ReleaseStep
    pairs: int
    """Differences of the Domain with the most."""
    proof: Mapping[str, float]
    """Claim → log of the largest wealth so far of who bets that it holds."""
    harm: Mapping[str, float]
    """Claim → the same of who bets that it does not."""


class StageMark(Noun):
    """When a stage of the ramp began."""

    at: float
    stage: int
    share: float


class ReleaseRun(Noun):
    """A candidate on its way. ``open_policy`` is its Policy while it goes on: one at a time."""

    id: str
    policy: str
    version: int
    baseline: int
    """The version that was promoted at its start, and that all evidence compares with."""
    plan: ReleasePlan
    status: RunStatus = RunStatus.RUNNING
    open_policy: str | None = None
    step: ReleaseStep | None = None
    """Under way; None: all are done."""
    step_since: float = Field(default_factory=now)
    trial: Trial
    """All evidence of pairs, of Suites and of the shadow."""
    live: Trial
    """That of the shadow alone: harm that only live traffic shows is not outweighed by Suites."""
    jobs: dict[str, str] = Field(default_factory=dict)
    """``suite@version`` → Job that runs it."""
    shadow_id: str | None = None
    """Experiment."""
    shadow_cursor: Any = None
    """Of the last ShadowPair that is in the evidence."""
    shadow_read: int = 0
    """ShadowPairs up to the cursor."""
    judged: int = 0
    """ShadowPairs with a difference."""
    ramp_id: str | None = None
    """Experiment."""
    waits: tuple[str, ...] = ()
    """What the present step is waiting for."""
    history: tuple[TrialPoint, ...] = ()
    stages: tuple[StageMark, ...] = ()
    decisions: tuple[ReleaseDecision, ...] = ()
    skipped: dict[ReleaseStep, str] = Field(default_factory=dict)
    """Step → why a person passed it."""
    started_by: str = "plan"
    started_at: float = Field(default_factory=now)
    ended_at: float | None = None
    updated_at: float = Field(default_factory=now)
    revision: int = 0
    """Grows with each change: two writers cannot both win."""

    @property
    def label(self) -> str:
        """``coder@3``."""
        return f"{self.policy}@{self.version}"

    @property
    def is_open(self) -> bool:
        """Whether something can still happen."""
        return self.status in OPEN

    def later_step(self) -> ReleaseStep | None:
        """The step after the present one; None: it is the last."""
        steps = self.plan.steps
        if self.step is None or self.step not in steps:
            return None
        place = steps.index(self.step) + 1
        return steps[place] if place < len(steps) else None

    def has_ahead(self, step: ReleaseStep) -> bool:
        """Whether ``step`` comes after the present one, and nobody skipped it."""
        if self.step is None or step in self.skipped or step not in self.plan.steps:
            return False
        return self.plan.steps.index(step) > self.plan.steps.index(self.step)

    def decided(
        self,
        verdict: Verdict,
        *,
        reasons: tuple[str, ...] = (),
        by: str = "plan",
        evidence: Mapping[str, Any] | None = None,
        step: ReleaseStep | None = None,
    ) -> "ReleaseRun":
        """With one more decision; nothing else changes."""
        decision = ReleaseDecision(
            number=len(self.decisions) + 1,
            verdict=verdict,
            step=step,
            reasons=reasons,
            by=by,
            evidence=dict(evidence or {}),
            notified=self.plan.notify_url is None,
        )
        return self.model_copy(update={"decisions": (*self.decisions, decision)})

    def ended(self, status: RunStatus) -> "ReleaseRun":
        """Over, with this outcome."""
        return self.model_copy(update={"status": status, "open_policy": None, "ended_at": now(), "waits": ()})

    def seen(self, point: TrialPoint) -> "ReleaseRun":
        """With a point of the history added; every second one is dropped when there are too many."""
        kept = self.history
        if kept and kept[-1].pairs == point.pairs and kept[-1].step is point.step:
            kept = kept[:-1]
        if len(kept) >= _MOST_POINTS:
            kept = kept[::2]
        return self.model_copy(update={"history": (*kept, point)})

    def at_step(self, step: ReleaseStep | None) -> "ReleaseRun":
        """At the beginning of a step."""
        return self.model_copy(update={"step": step, "step_since": now(), "waits": (), "status": RunStatus.RUNNING})
