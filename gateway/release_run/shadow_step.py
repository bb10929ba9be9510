"""The shadow of a release: live requests mirrored to the candidate, until the pairs decide or the budget is spent."""

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from core import ids
from core.experiment import Arm, Experiment
from core.noun import now
from core.policy import PolicyVersion
from core.release import ReleaseStatus, ReleaseStep
from core.release_evidence import (
    IndependentPairs,
    claims,
    domain_intervals,
    independent_pairs,
    shadow_differences,
    trial_point,
    verdict_of,
    with_pairs,
)
from core.release_rule import Outcome
from core.release_run import ReleaseRun, Verdict
from core.shadow import ShadowPair
from gateway.release_run.base import PairSource
from gateway.release_run.common import ended, not_served, passed, release_moved, stop_experiment, taken_back, waiting
from store.store import Store
from store.unit_of_work import UnitOfWork

PRIMARY = "primary"
CANDIDATE = "candidate"
_PAGE = 1_000
_SETTLE_SECONDS = 10.0
"""Answers under way when a shadow ends still count."""


@dataclass
class ShadowSeen:
    """Pairs since the last look, and how the Experiment stands."""

    version: PolicyVersion
    experiment: Experiment | None = None
    pairs: IndependentPairs = field(default_factory=IndependentPairs)
    cursor: Any = None
    read: int = 0
    """Pairs between the run's cursor and this one."""
    counts: Mapping[str, Any] = field(default_factory=dict)
    over: str | None = None
    """Why no more pairs will come."""


@dataclass
class _Known:
    """Episodes that are in the evidence up to a cursor."""

    cursor: Any = None
    judged: set[str] = field(default_factory=set)
    answered: set[str] = field(default_factory=set)


class ShadowStep:
    """Opens the shadow Experiment, adds its pairs to both Trials, and closes it."""

    def __init__(self, *, store: Store, pairs: PairSource) -> None:
        self._store = store
        self._pairs = pairs
        self._cache: tuple[str, _Known] = ("", _Known())
        """Of the shadow looked at last; one that does not fit the run's cursor is read again."""

    async def look(self, run: ReleaseRun) -> ShadowSeen:
        """New pairs, one of each Episode."""
        async with self._store.reading() as work:
            seen = ShadowSeen(version=await work.versions.get(run.policy, run.version))
            if run.shadow_id is None:
                return seen
            seen.experiment = await work.experiments.get(run.shadow_id)
            found, seen.cursor = await self._pairs.after(work, run.shadow_id, run.shadow_cursor, _PAGE)
            seen.read = len(found)
            if found:
                known = await self._known(work, run)
                seen.pairs = _independent(found, known)
                known.cursor = seen.cursor
                self._cache = (run.shadow_id, known)
            seen.counts = await self._pairs.counts(work, run.shadow_id)
        if not found:
            seen.cursor = run.shadow_cursor
            seen.over = _over(run, seen.experiment)
        return seen

    async def apply(self, work: UnitOfWork, run: ReleaseRun, looked: ShadowSeen) -> ReleaseRun:
        """Add the pairs and decide."""
        wait, refused = not_served(looked.version)
        if refused:
            return await ended(work, run, Verdict.REJECTED, reasons=(refused,))
        if run.shadow_id is None:
            return waiting(run, wait) if wait else await _open(work, run)
        moved = looked.cursor != run.shadow_cursor
        if moved:
            run = _with(run, looked)
        over = looked.over is not None
        outcome, reasons = verdict_of(run, over=over)
        if outcome is Outcome.REJECT:
            reasons = (*reasons, looked.over) if looked.over else reasons
            evidence = await self._evidence(work, run, looked)
            return await ended(work, run, Verdict.REJECTED, reasons=reasons, evidence=evidence)
        few = run.judged < run.plan.shadow.min_pairs
        if outcome is Outcome.PROMOTE and not few:
            return await self._pass(work, run, looked)
        if over:
            reasons = (f"{run.judged} of {run.plan.shadow.min_pairs} judged pairs: {looked.over}",)
            evidence = await self._evidence(work, run, looked)
            return await ended(work, run, Verdict.REJECTED, reasons=reasons, evidence=evidence)
        pairs = (f"{run.judged} judged pairs, of at least {run.plan.shadow.min_pairs}",) if few else ()
        return waiting(run, *pairs, *(f"not proven yet: {claim}" for claim in reasons))

    async def _pass(self, work: UnitOfWork, run: ReleaseRun, looked: ShadowSeen) -> ReleaseRun:
        evidence = await self._evidence(work, run, looked)
        await stop_experiment(work, run.shadow_id, "the shadow passed")
        if ReleaseStep.EVALUATION in run.plan.steps and ReleaseStep.EVALUATION not in run.skipped:
            # What the evaluation left open is proven with the shadow's pairs.
            release = await release_moved(work, run)
            before = release.evidence.get(ReleaseStep.EVALUATION.value, {})
            proven = {**before, "proven_better": True, "proven_by": "Suites and shadow together"}
            await release_moved(work, run, evidence={ReleaseStep.EVALUATION.value: proven})
        return await passed(work, run, None, evidence=evidence)

    async def _evidence(self, work: UnitOfWork, run: ReleaseRun, looked: ShadowSeen) -> dict[str, Any]:
        everything = _Known()
        differences: dict[str, list[float]] = {}
        async for found, _ in self._pages(work, run):
            for domain, values in shadow_differences(_independent(found, everything).judged).items():
                differences.setdefault(domain, []).extend(values)
        intervals = domain_intervals(run.plan.rule, differences, source="shadow", alpha=2 * run.plan.rule.alpha)
        return {
            "compared": f"{run.label} with {run.policy}@{run.baseline} on mirrored requests, one of each Episode",
            "experiment": run.shadow_id,
            "judged": run.judged,
            "counts": dict(looked.counts),
            "intervals": [one.model_dump(mode="json") for one in intervals],
            "claims": [one.model_dump(mode="json") | {"proven": one.proven} for one in claims(run.trial)],
            "live_claims": [one.model_dump(mode="json") for one in claims(run.live)],
        }

    async def _known(self, work: UnitOfWork, run: ReleaseRun) -> _Known:
        """Episodes of the pairs up to the run's cursor."""
        shadow_id, known = self._cache
        if shadow_id == run.shadow_id and known.cursor == run.shadow_cursor:
            return known
        known = _Known()
        async for found, known.cursor in self._pages(work, run):
            _independent(found, known)
        return known

    async def _pages(self, work: UnitOfWork, run: ReleaseRun) -> AsyncIterator[tuple[Sequence[ShadowPair], Any]]:
        """The pairs that are in the evidence, and no later ones."""
        assert run.shadow_id is not None, "there are no pairs before the Experiment"
        cursor = None
        # Not as many as were read: pairs that were erased or moved on since would let later ones in.
        while run.shadow_cursor is not None and cursor != run.shadow_cursor:
            found, cursor = await self._pairs.after(work, run.shadow_id, cursor, _PAGE, until=run.shadow_cursor)
            if not found:
                break
            yield found, cursor


async def _open(work: UnitOfWork, run: ReleaseRun) -> ReleaseRun:
    ended_already = await taken_back(work, run)
    if ended_already:
        return await ended(work, run, Verdict.REJECTED, reasons=(ended_already,))
    plan, identity = run.plan.shadow, ids.new_id(ids.EXPERIMENT)
    release = await release_moved(work, run, ReleaseStatus.SHADOWING)
    await work.experiments.add(
        Experiment(
            id=identity,
            policy=run.policy,
            kind="shadow",
            arms=(
                Arm(name=PRIMARY, version=run.baseline, share=1.0),
                Arm(name=CANDIDATE, version=run.version, share=0.0),
            ),
            salt=identity,
            key=run.plan.key,
            sample_share=plan.sample_share,
            max_requests=plan.max_requests,
            max_tokens=plan.max_tokens,
            release_id=release.id,
        )
    )
    return run.model_copy(update={"shadow_id": identity, "waits": ("the first mirrored requests",)})


def _with(run: ReleaseRun, looked: ShadowSeen) -> ReleaseRun:
    run = run.model_copy(
        update={
            "trial": with_pairs(run.trial, looked.pairs),
            "live": with_pairs(run.live, looked.pairs),
            "shadow_cursor": looked.cursor,
            "shadow_read": run.shadow_read + looked.read,
            "judged": run.judged + len(looked.pairs.judged),
        }
    )
    return run.seen(trial_point(run, ReleaseStep.SHADOW, now()))


def _independent(found: Sequence[ShadowPair], known: _Known) -> IndependentPairs:
    return independent_pairs(found, judged_before=known.judged, answered_before=known.answered)


def _over(run: ReleaseRun, experiment: Experiment) -> str | None:
    if experiment.status == "stopped" and now() - (experiment.stopped_at or 0.0) > _SETTLE_SECONDS:
        return f"the shadow ended: {experiment.stopped_because or 'its budget is spent'}"
    if now() - run.step_since > run.plan.shadow.max_seconds:
        return f"the shadow's {run.plan.shadow.max_seconds:.0f} s are over"
    return None
