"""The evaluation of a release: Suites on the candidate, the promoted version and the Base, compared Task by Task."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from core.errors import NotFound
from core.job import JobStatus
from core.noun import now
from core.release import ReleaseStatus, ReleaseStep
from core.release_evidence import (
    against_base,
    claims,
    domain_intervals,
    trial_point,
    verdict_of,
    with_differences,
)
from core.release_rule import Outcome
from core.release_run import ReleaseRun, Verdict
from core.suite import Suite, SuiteResult, paired_differences
from gateway.release_run.base import SuiteSource
from gateway.release_run.common import ended, passed, waiting
from store.store import Store
from store.unit_of_work import UnitOfWork

RUN_SUITE = "run_suite"
"""Kind of the Jobs that workers run a Suite by."""
_GIVEN_UP = frozenset({JobStatus.DEAD, JobStatus.CANCELLED})

Place = tuple[str, int]
"""Suite and version."""


@dataclass
class SuitesSeen:
    """Results that there are, and what is lacking."""

    found: dict[Place, SuiteResult] = field(default_factory=dict)
    jobs: dict[str, str] = field(default_factory=dict)
    waits: list[str] = field(default_factory=list)


class EvaluationStep:
    """Has every Suite run that nobody ran yet, then adds the paired differences to the Trial."""

    def __init__(self, *, store: Store, suites: SuiteSource) -> None:
        self._store = store
        self._suites = suites

    async def look(self, run: ReleaseRun) -> SuitesSeen:
        """Results so far; Jobs for the others are in the queue afterwards, each once whatever happens."""
        seen = SuitesSeen(jobs=dict(run.jobs))
        lacking: list[tuple[Suite, int]] = []
        async with self._store.reading() as work:
            for name in run.plan.suites:
                try:
                    suite = await self._suites.suite(work, name)
                except NotFound:
                    seen.waits.append(f"there is no Suite '{name}' yet")
                    continue
                for version in versions_of(run):
                    result = await self._suites.result(work, run.policy, version, suite)
                    if result is None:
                        lacking.append((suite, version))
                    else:
                        seen.found[(name, version)] = result
        for suite, version in lacking:
            await self._ask(run, suite, version, seen)
        return seen

    async def apply(self, work: UnitOfWork, run: ReleaseRun, looked: SuitesSeen) -> ReleaseRun:
        """Wait for results; with all of them, add the evidence and decide whether the candidate goes on."""
        if looked.jobs != run.jobs:
            run = run.model_copy(update={"jobs": looked.jobs})
        if looked.waits:
            return waiting(run, *looked.waits)
        compared = compare(run, looked.found)
        run = run.model_copy(update={"trial": with_differences(run.trial, compared.promoted)})
        run = run.seen(trial_point(run, ReleaseStep.EVALUATION, now()))
        evidence = compared.evidence(run)
        worse = against_base(run.trial.rule, compared.base)
        if worse:
            return await ended(work, run, Verdict.REJECTED, reasons=worse, evidence=evidence)
        outcome, reasons = verdict_of(run, over=not run.has_ahead(ReleaseStep.SHADOW))
        if outcome is Outcome.REJECT:
            return await ended(work, run, Verdict.REJECTED, reasons=reasons, evidence=evidence)
        evidence["proven_better"] = outcome is Outcome.PROMOTE
        said = () if outcome is Outcome.PROMOTE else tuple(f"left to the shadow to prove: {one}" for one in reasons)
        return await passed(work, run, ReleaseStatus.EVALUATED, evidence=evidence, reasons=said)

    async def _ask(self, run: ReleaseRun, suite: Suite, version: int, seen: SuitesSeen) -> None:
        place = f"{suite.name}@{version}"
        job = await self._store.queue.enqueue(
            RUN_SUITE,
            {
                "suite": suite.name,
                "suite_version": suite.version,
                "policy": run.policy,
                "version": version,
                "variant": "standard",
            },
            idempotency_key=f"release/{run.id}/{suite.name}/{suite.version}/{version}",
        )
        seen.jobs[place] = job.id
        name = f"Suite '{suite.name}' on {run.policy}@{version}"
        if job.status in _GIVEN_UP:
            why = job.error or "no reason was recorded"
            seen.waits.append(f"{name}: job {job.id} is {job.status} ({why}); requeue it, or skip the evaluation")
        else:
            seen.waits.append(f"{name}: job {job.id} is {job.status}")


@dataclass
class Compared:
    """Paired differences of all Suites, in the order in which they enter the Trial."""

    promoted: Mapping[str, Sequence[float]]
    base: Mapping[str, Sequence[float]]
    results: Mapping[str, str]
    invalid: int
    attempts: int

    def evidence(self, run: ReleaseRun) -> dict[str, Any]:
        """What is stored with the decision."""
        rule = run.plan.rule
        alpha = 2 * rule.alpha
        intervals = domain_intervals(rule, self.promoted, source="suite", alpha=alpha)
        intervals += domain_intervals(rule, self.base, source="base", alpha=alpha)
        return {
            "compared": f"{run.label} with {run.policy}@{run.baseline} and the Base, Task by Task",
            "suites": list(run.plan.suites),
            "results": dict(self.results),
            "attempts": self.attempts,
            "invalid_attempts": self.invalid,
            "intervals": [one.model_dump(mode="json") for one in intervals],
            "claims": [one.model_dump(mode="json") | {"proven": one.proven} for one in claims(run.trial)],
        }


def versions_of(run: ReleaseRun) -> tuple[int, ...]:
    """Whom a Suite must have been run on: the candidate, the promoted version and the Base, each once."""
    return tuple(dict.fromkeys((run.version, run.baseline, 0)))


def compare(run: ReleaseRun, found: Mapping[Place, SuiteResult]) -> Compared:
    """The candidate's results beside those of the promoted version and of the Base."""
    promoted: dict[str, list[float]] = defaultdict(list)
    base: dict[str, list[float]] = defaultdict(list)
    for suite in run.plan.suites:
        own = found[(suite, run.version)].attempts
        for other, gathered in ((run.baseline, promoted), (0, base)):
            if gathered is base and run.baseline == 0:
                continue
            for domain, pairs in paired_differences(own, found[(suite, other)].attempts).items():
                gathered[domain].extend(value for _, value in pairs)
    everything = [attempt for result in found.values() for attempt in result.attempts]
    return Compared(
        promoted=promoted,
        base=base,
        results={f"{suite}@{version}": result.id for (suite, version), result in sorted(found.items())},
        invalid=sum(attempt.invalid for attempt in everything),
        attempts=len(everything),
    )
