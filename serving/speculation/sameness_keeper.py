"""The standing proof of sameness: every few minutes each fast replica is compared with a standard one.

Off the clients' path and at a low rate: few prompts, one request at a time, and not while requests wait. A
difference counts once a second comparison, of other prompts, has shown it too.
"""

import asyncio
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import structlog

from core.config.schema import HoneConfig
from core.deployment import Deployment, LoadedVersion, SamenessSeen
from core.errors import HoneError
from core.policy import Base
from core.sameness import SamenessCheck
from core.variant import Variant
from serving.fleet_records import FleetRecords
from serving.replica import Replica
from serving.speculation.control import SpeculationControl
from serving.speculation.metrics import SpeculationMetrics
from serving.speculation.sameness import SamenessRule, Side, Subject, compare, near_tie_of
from store.store import Store

log = structlog.get_logger(__name__)

_KEPT_CHECKS = 500
"""Per fast replica."""
_RECENT_TURNS = 200
_LONGEST_PROMPT = 512
_FALLBACK_TOKENS = 24
_FALLBACK_PROMPTS = 16


@dataclass(frozen=True)
class _Pair:
    standard: Replica
    fast: Replica
    subject: Subject
    engine_model: str
    """Both engines know the version by the same name."""


class SamenessKeeper:
    """The fleet's part that compares replicas; ``run`` is a task of the fleet."""

    def __init__(
        self,
        *,
        config: HoneConfig,
        store: Store,
        base: Base,
        records: FleetRecords,
        control: SpeculationControl,
        metrics: SpeculationMetrics,
    ) -> None:
        fleet = config.fleet
        self._seconds = fleet.sameness_seconds
        self._prompts = fleet.sameness_prompts
        self._stops = fleet.sameness_stops_fast
        self._rule = SamenessRule(
            tokens=fleet.sameness_tokens,
            samples=fleet.sameness_samples,
            logprob_error=fleet.sameness_logprob_error,
            near_tie=fleet.sameness_near_tie or near_tie_of(config.engine.dtype),
        )
        self._store = store
        self._base = base
        self._records = records
        self._control = control
        self._metrics = metrics
        self._pass = 0
        self._evidence: dict[tuple[str, int], float] = {}
        """Deployment and life of its engine → evidence so far."""

    async def run(self, replicas: Sequence[Replica]) -> None:
        """Compare for as long as the fleet runs; returns at once where ``fleet.sameness_seconds`` is 0."""
        while self._seconds > 0:
            await asyncio.sleep(self._seconds)
            try:
                await self.step(replicas)
            except HoneError as error:
                # A store or an engine that is away proves nothing; the next pass tries again.
                log.warning("sameness_unchecked", error=error.message, code=error.code)

    async def step(self, replicas: Sequence[Replica]) -> list[SamenessCheck]:
        """One pass: one comparison of each fast replica that speculates, of one of its versions."""
        self._pass += 1
        done = []
        for fast in replicas:
            if fast.deployment.variant is Variant.FAST and fast.ready and fast.deployment.speculating:
                pairs = list(_pairs(self._base.name, fast, replicas))
                if pairs and not _busy(fast):
                    check = await self._check(pairs[self._pass % len(pairs)])
                    done += [] if check is None else [check]
        return done

    async def _check(self, pair: _Pair) -> SamenessCheck | None:
        prompts, others = await self._chosen(pair.subject)
        held = _held(pair)
        check = await self._compared(pair, prompts, seed=2 * self._pass)
        if not check.same:
            check = await self._compared(pair, others, seed=2 * self._pass + 1)
        if _held(pair) != held:
            # A swap fell into it: two versions were compared, not two variants.
            log.info("sameness_check_dropped", url=pair.fast.engine.url)
            return None
        key = (pair.fast.deployment.id, pair.fast.life)
        self._evidence[key] = check.evidence
        await self._record(pair.fast, check)
        return check

    async def _compared(self, pair: _Pair, prompts: Sequence[tuple[int, ...]], *, seed: int) -> SamenessCheck:
        key = (pair.fast.deployment.id, pair.fast.life)
        return await compare(
            Side(pair.standard.deployment.id, pair.standard.engine, pair.engine_model),
            Side(pair.fast.deployment.id, pair.fast.engine, pair.engine_model),
            prompts,
            subject=pair.subject,
            rule=self._rule,
            evidence=self._evidence.get(key, 1.0),
            seed=seed,
        )

    async def _record(self, fast: Replica, check: SamenessCheck) -> None:
        url = fast.engine.url
        self._metrics.checked(url, check)
        self._metrics.alarm(url, raised=not check.same)
        fast.update(sameness_seen=_seen(check))
        fast.changed = True
        if not check.same:
            log.error(
                "fast_answers_differ",
                url=url,
                policy=check.policy,
                version=check.version,
                reason=check.reason,
                check=check.id,
            )
            if self._stops:
                await self._control.stop_for_mismatch(fast, f"its answers differ: {check.reason}")
        async with self._records.writing() as unit:
            await unit.sameness.add(check, keep=_KEPT_CHECKS)

    async def _chosen(self, subject: Subject) -> tuple[list[tuple[int, ...]], list[tuple[int, ...]]]:
        """Two rotating samples, apart as far as there are prompts enough.

        Of consented prompts that were recorded, else of the version's probe, else of plain numbers.
        """
        async with self._store.reading() as unit:
            turns = await unit.speculated.consented(policy=subject.policy, limit=_RECENT_TURNS)
        prompts = sorted({turn.prompt_ids for turn in turns if len(turn.prompt_ids) <= _LONGEST_PROMPT})
        prompts = prompts or await self._probe_prompts(subject) or _plain_prompts()
        drawn = random.Random(self._pass).sample(prompts, min(2 * self._prompts, len(prompts)))
        first, rest = drawn[: self._prompts], drawn[self._prompts :]
        return first, (rest + first)[: len(first)]

    async def _probe_prompts(self, subject: Subject) -> list[tuple[int, ...]]:
        if subject.version == 0:
            return []
        async with self._store.reading() as unit:
            version = await unit.versions.get(subject.policy, subject.version)
        checkpoint = await self._records.checkpoint(version)
        return [] if checkpoint is None else [prompt.token_ids for prompt in checkpoint.probe.prompts]


def _pairs(base: str, fast: Replica, replicas: Sequence[Replica]) -> Iterator[_Pair]:
    """What this replica can be compared on, with the ready standard replica that holds the same."""
    for standard in replicas:
        ours, theirs = fast.deployment, standard.deployment
        if theirs.variant is not Variant.STANDARD or not standard.ready or _busy(standard):
            continue
        if _identity(ours.weights) != _identity(theirs.weights) or ours.policy != theirs.policy:
            continue
        if ours.weights is not None:
            yield _Pair(standard, fast, Subject(base, ours.weights.policy, ours.weights.version), base)
            continue
        yield _Pair(standard, fast, Subject(base, base, 0), base)
        for loaded in ours.loaded:
            same = theirs.holding(loaded.policy, loaded.version)
            if loaded.state == "live" and same is not None and same.engine_model == loaded.engine_model:
                yield _Pair(standard, fast, Subject(base, loaded.policy, loaded.version), loaded.engine_model)


def _held(pair: _Pair) -> tuple[object, ...]:
    """What must stay as it is while two replicas are compared."""
    sides = (pair.standard, pair.fast)
    return tuple((side.life, side.ready, _identity(side.deployment.weights)) for side in sides)


def _identity(weights: LoadedVersion | None) -> tuple[str, int, str] | None:
    return None if weights is None else (weights.policy, weights.version, weights.checksum)


def _busy(replica: Replica) -> bool:
    deployment: Deployment = replica.deployment
    return deployment.load is not None and deployment.load.waiting > 0


def _seen(check: SamenessCheck) -> SamenessSeen:
    return SamenessSeen(
        same=check.same,
        reason=check.reason,
        compared=check.prompts,
        near_ties=len(check.differences) - check.mismatches,
        mismatches=check.mismatches,
        evidence=check.evidence,
        check_id=check.id,
        read_at=check.created_at,
    )


def _plain_prompts() -> list[tuple[int, ...]]:
    return [tuple(range(10 + first, 10 + first + _FALLBACK_TOKENS)) for first in range(_FALLBACK_PROMPTS)]
