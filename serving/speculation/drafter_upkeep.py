"""Drafter upkeep: does what ``serving.speculation.upkeep`` decides, on the engines and in the store."""

import asyncio
import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol, cast
from urllib.parse import urlsplit

import structlog

from core.config.schema import HoneConfig
from core.deployment import Restart, SwapRecord
from core.distillation import DISTIL, DistilRequest
from core.drafter import Drafter, DrafterStatus, DrafterTrial
from core.errors import AdapterRejected, CorruptArtefact, EngineUnsupported, HoneError, NotFound
from core.job import JobStatus
from core.noun import now
from core.policy import Base, PolicyVersion
from core.variant import Speculation, Variant
from serving.engines.base import Engine
from serving.fleet_records import FleetRecords
from serving.replica import Replica
from serving.speculation.draft_window import DraftWindows
from serving.speculation.drafter_link import WITH_FOLDER, drafter_link, linked_folder, point, unlink
from serving.speculation.upkeep import (
    Abandon,
    Begin,
    Decision,
    FastReplica,
    Keep,
    Load,
    Reject,
    Retrain,
    Rules,
    Target,
    decide,
)
from serving.weights.folder import folder_checksum
from store.events import DRAFTERS
from store.store import Store

log = structlog.get_logger(__name__)

_OPEN = (DrafterStatus.CANDIDATE, DrafterStatus.LIVE)


class _DraftingEngine(Protocol):
    async def load_drafter(self, path: str) -> None: ...


class DrafterUpkeep:
    """The fleet's part that keeps draft models in step with what they draft for; ``run`` is a task of the fleet."""

    def __init__(self, *, config: HoneConfig, store: Store, base: Base, records: FleetRecords) -> None:
        self._config = config
        self._store = store
        self._base = base
        self._records = records
        fleet = config.fleet
        self._rules = Rules(
            trial_drafts=fleet.drafter_trial_drafts,
            retrain_drop=fleet.drafter_retrain_drop,
            retrain_on_promotion=fleet.drafter_retrain_on_promotion,
        )
        self._windows = DraftWindows(least_drafts=fleet.drafter_trial_drafts)
        self._unable: set[str] = set()
        """Deployments that nobody here can give another draft model."""
        self._names: dict[str, str | None] = {}
        """Folder name → the Drafter that it is."""
        self._asked: set[str] = set()
        """Keys of the distillations that were asked for."""

    async def run(self, replicas: Sequence[Replica]) -> None:
        """Look and act for as long as the fleet runs."""
        async with self._store.events.subscribe([DRAFTERS]) as changes:
            while True:
                try:
                    while await self.step(replicas):
                        pass
                except HoneError as error:
                    log.error("drafter_upkeep_failed", error=error.message, code=error.code)
                await changes.wait(self._config.fleet.reconcile_seconds)

    async def step(self, replicas: Sequence[Replica]) -> bool:
        """Do the next thing; whether there was one, so that there may be more."""
        fast = [one for one in replicas if self._drafts_with_model(one)]
        async with self._store.reading() as unit:
            drafters = await unit.drafters.list(self._base.name, statuses=_OPEN)
            policies = [one for one in await unit.policies.list() if one.base == self._base.name]
            versions: list[PolicyVersion] = []
            for policy in policies:
                versions.append(await unit.versions.get(policy.name, policy.promoted_version))
        targets = [Target(one.policy, one.version, one.created_at) for one in versions]
        live = next((one for one in drafters if one.status is DrafterStatus.LIVE), None)
        for replica in fast:
            await self._sync(replica)
        candidates = [one for one in drafters if one.status is DrafterStatus.CANDIDATE]
        candidates = [await self._counted(one, fast) for one in candidates]
        signature = tuple(sorted((one.policy, one.version) for one in targets))
        decision = decide(
            live=live,
            candidates=candidates,
            replicas=[self._view(one, signature) for one in fast],
            targets=targets,
            rules=self._rules,
            has_configured=bool(self._config.fleet.draft_model),
        )
        return decision is not None and await self._do(decision, fast, live, targets)

    async def _do(
        self, decision: Decision, fast: Sequence[Replica], live: Drafter | None, targets: Sequence[Target]
    ) -> bool:
        replica = _by_id(fast, getattr(decision, "deployment_id", ""))
        match decision:
            case Load(drafter=drafter) if replica is not None:
                return await self._load(replica, drafter)
            case Begin(drafter=drafter) if replica is not None:
                return await self._begin(replica, drafter)
            case Abandon(drafter=drafter):
                await self._put(drafter.model_copy(update={"trial": None}))
                return True
            case Keep(drafter=drafter, reason=reason):
                await self._keep(drafter, reason, fast, live, targets)
                return True
            case Reject(drafter=drafter, reason=reason):
                await self._reject(drafter, reason, fast)
                return True
            case Retrain():
                return await self._retrain(decision)
        return False

    def _drafts_with_model(self, replica: Replica) -> bool:
        deployment = replica.deployment
        if deployment.variant is not Variant.FAST or deployment.id in self._unable:
            return False
        return self._speculation(replica).method in WITH_FOLDER

    def _speculation(self, replica: Replica) -> Speculation:
        """How it speculates; of an engine that somebody else runs, what the configuration says."""
        fleet = self._config.fleet
        return replica.deployment.speculation or Speculation(method=fleet.fast_method, tokens=fleet.fast_tokens)

    def _view(self, replica: Replica, signature: tuple[tuple[str, int], ...]) -> FastReplica:
        deployment = replica.deployment
        carried = None if deployment.speculation is None else deployment.speculation.drafter_id
        return FastReplica(
            deployment_id=deployment.id,
            ready=replica.ready,
            restarting=deployment.restart is not None or replica.closed,
            failed=replica.process is not None and replica.error is not None and not replica.reachable,
            drafter_id=carried,
            speculating=deployment.speculating,
            lately=self._windows.lately(deployment.id, (carried, signature)),
        )

    async def _sync(self, replica: Replica) -> None:
        """Of an engine that is launched here, the link says what it drafts with: also after a restart."""
        self._windows.read(replica)
        speculation = replica.deployment.speculation
        if replica.process is None or speculation is None:
            return
        folder = linked_folder(self._link(replica))
        drafter_id = None if folder is None else await self._known(folder.name)
        if drafter_id != speculation.drafter_id:
            replica.update(speculation=speculation.model_copy(update={"drafter_id": drafter_id}))

    async def _known(self, name: str) -> str | None:
        """The Drafter whose folder has this name; None for the configured folder."""
        if name not in self._names:
            try:
                async with self._store.reading() as unit:
                    self._names[name] = (await unit.drafters.get(name)).id
            except NotFound:
                self._names[name] = None
        return self._names[name]

    async def _counted(self, candidate: Drafter, fast: Sequence[Replica]) -> Drafter:
        """The candidate with what was drafted since its trial was last stored."""
        trial = candidate.trial
        replica = None if trial is None else _by_id(fast, trial.deployment_id)
        if trial is None or replica is None or _carried(replica) != candidate.id:
            return candidate
        fresh = self._windows.take(replica.deployment.id)
        if fresh.drafts == 0:
            return candidate
        counted = candidate.model_copy(update={"trial": trial.model_copy(update={"counts": trial.counts + fresh})})
        await self._put(counted)
        return counted

    async def _begin(self, replica: Replica, drafter: Drafter) -> bool:
        lately = self._windows.present(replica.deployment.id)
        trial = DrafterTrial(deployment_id=replica.deployment.id, before_id=_carried(replica), before=lately)
        drafter = drafter.model_copy(update={"trial": trial})
        await self._put(drafter)
        log.info("drafter_trial", drafter=drafter.id, number=drafter.number, url=replica.engine.url)
        return await self._load(replica, drafter)

    async def _load(self, replica: Replica, drafter: Drafter | None) -> bool:
        """Have the replica draft with ``drafter``, while it runs or by a restart; whether that was begun or done."""
        started = asyncio.get_running_loop().time()
        folder = self._folder(drafter)
        try:
            if drafter is not None and drafter.checksum:
                found = await asyncio.to_thread(folder_checksum, folder)
                if found != drafter.checksum:
                    raise CorruptArtefact(f"{folder} has checksum {found[:8]}, recorded was {drafter.checksum[:8]}")
            if replica.ready:
                await _drafting(replica.engine).load_drafter(str(folder))
                return await self._loaded(replica, drafter, folder, started)
        except CorruptArtefact as error:
            return await self._refused(replica, drafter, error.message, started)
        except (EngineUnsupported, AdapterRejected) as error:
            if replica.process is None:
                self._unable.add(replica.deployment.id)
                log.warning("drafter_not_replaceable", url=replica.engine.url, error=error.message)
                return await self._refused(replica, drafter, error.message, started)
            log.info("drafter_by_restart", url=replica.engine.url, reason=error.message)
        except HoneError as error:
            log.warning("drafter_load_failed", url=replica.engine.url, error=error.message, code=error.code)
            return False
        # Its next start takes what the link points at.
        self._carry(replica, drafter, folder)
        if replica.ready:
            replica.ask_restart(Restart(reason="another draft model"))
        await self._records.commit([replica])
        return True

    async def _loaded(self, replica: Replica, drafter: Drafter | None, folder: Path, started: float) -> bool:
        self._carry(replica, drafter, folder)
        self._windows.begin(replica, await replica.engine.metrics(), at=now())
        seconds = asyncio.get_running_loop().time() - started
        log.info("drafter_loaded", url=replica.engine.url, folder=str(folder), seconds=round(seconds, 3))
        if drafter is not None and drafter.status is DrafterStatus.LIVE:
            self._note(replica, drafter, "live", None, seconds)
        await self._records.commit([replica])
        return True

    async def _refused(self, replica: Replica, drafter: Drafter | None, reason: str, started: float) -> bool:
        """A Drafter that cannot be used is rejected, or retired if it was live: there is nothing to try again."""
        if drafter is None:
            return False
        self._note(replica, drafter, "refused", reason, asyncio.get_running_loop().time() - started)
        ended = DrafterStatus.RETIRED if drafter.status is DrafterStatus.LIVE else DrafterStatus.REJECTED
        await self._put(drafter.model_copy(update={"status": ended, "reason": reason}))
        await self._records.commit([replica])
        return True

    async def _keep(
        self,
        drafter: Drafter,
        reason: str,
        fast: Sequence[Replica],
        live: Drafter | None,
        targets: Sequence[Target],
    ) -> None:
        trial = drafter.trial
        assert trial is not None
        promoted = {target.policy: target.version for target in targets}
        kept = drafter.model_copy(
            update={
                "status": DrafterStatus.LIVE,
                "reason": reason,
                "acceptance": trial.counts.acceptance,
                "accepted_per_draft": trial.counts.accepted_per_draft,
                "first_version": promoted.get(drafter.policy or "", drafter.target_version),
            }
        )
        async with self._records.writing() as unit:
            if live is not None:
                last = promoted.get(live.policy or "", live.target_version)
                gone = {"status": DrafterStatus.RETIRED, "reason": f"followed by number {kept.number}"}
                await unit.drafters.update(live.model_copy(update={**gone, "last_version": last}))
            await unit.drafters.update(kept)
        log.info("drafter_live", drafter=kept.id, number=kept.number, reason=reason)
        await self._end_trial(kept, "live", None, fast)

    async def _reject(self, drafter: Drafter, reason: str, fast: Sequence[Replica]) -> None:
        await self._put(drafter.model_copy(update={"status": DrafterStatus.REJECTED, "reason": reason}))
        log.info("drafter_rejected", drafter=drafter.id, number=drafter.number, reason=reason)
        await self._end_trial(drafter, "rolled_back", reason, fast)

    async def _end_trial(self, drafter: Drafter, outcome: str, reason: str | None, fast: Sequence[Replica]) -> None:
        await self._store.events.publish(DRAFTERS, {"drafter": drafter.id})
        replica = None if drafter.trial is None else _by_id(fast, drafter.trial.deployment_id)
        if replica is not None and drafter.trial is not None:
            self._note(replica, drafter, outcome, reason, now() - drafter.trial.started_at)
            await self._records.commit([replica])

    async def _retrain(self, wanted: Retrain) -> bool:
        key = f"{wanted.policy}@{wanted.version} after {wanted.after}"
        if key in self._asked:
            return False
        request = DistilRequest(
            base=self._base.name,
            policy=wanted.policy,
            target_version=wanted.version,
            after=wanted.after,
            seed=_seed(key),
            reason=wanted.reason,
        )
        job = await self._store.queue.enqueue(
            DISTIL, request.model_dump(mode="json"), idempotency_key=request.idempotency_key
        )
        self._asked.add(key)
        if job.status is JobStatus.DEAD:
            log.error("distillation_dead", job=job.id, error=job.error, hint="requeue it, or train one by hand")
        else:
            log.info("distillation_asked", job=job.id, status=job.status.value, reason=wanted.reason)
        return True

    def _carry(self, replica: Replica, drafter: Drafter | None, folder: Path) -> None:
        """Record what the replica drafts with from now on, or from its next start on."""
        if replica.process is not None:
            if drafter is None and not self._config.fleet.draft_model:
                unlink(self._link(replica))
            else:
                point(self._link(replica), folder)
        carried = {"drafter_id": None if drafter is None else drafter.id}
        replica.update(speculation=self._speculation(replica).model_copy(update=carried))
        replica.changed = True

    def _folder(self, drafter: Drafter | None) -> Path:
        return Path(self._config.fleet.draft_model if drafter is None else drafter.path).expanduser().absolute()

    def _link(self, replica: Replica) -> Path:
        return drafter_link(self._config, urlsplit(replica.engine.url).port or 0)

    def _note(self, replica: Replica, drafter: Drafter, outcome: str, reason: str | None, seconds: float) -> None:
        fields: Mapping[str, object] = {"outcome": outcome, "reason": reason, "seconds": seconds}
        named = {"kind": "drafter", "policy": drafter.policy or drafter.base, "version": drafter.number}
        replica.note_swap(SwapRecord.model_validate({**named, **fields}))

    async def _put(self, drafter: Drafter) -> None:
        async with self._records.writing() as unit:
            await unit.drafters.update(drafter)


def place_drafter(config: HoneConfig, replica: Replica) -> None:
    """Before an engine's first start: let its link point at the configured folder. Raises StoreError."""
    configured = Path(config.fleet.draft_model).expanduser().absolute()
    speculation = replica.deployment.speculation
    if speculation is None or speculation.method not in WITH_FOLDER:
        return
    link = drafter_link(config, urlsplit(replica.engine.url).port or 0)
    if linked_folder(link) is None and config.fleet.draft_model and configured.is_dir():
        point(link, configured)


def _drafting(engine: Engine) -> _DraftingEngine:
    if not hasattr(engine, "load_drafter"):
        raise EngineUnsupported(f"{engine.url} cannot replace its draft model while it runs")
    return cast(_DraftingEngine, engine)


def _by_id(replicas: Sequence[Replica], deployment_id: str) -> Replica | None:
    return next((one for one in replicas if one.deployment.id == deployment_id), None)


def _carried(replica: Replica) -> str | None:
    speculation = replica.deployment.speculation
    return None if speculation is None else speculation.drafter_id


def _seed(key: str) -> int:
    return int.from_bytes(hashlib.sha256(key.encode()).digest()[:4], "big")
