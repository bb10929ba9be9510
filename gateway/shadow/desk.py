"""ShadowDesk: begins, reports and ends shadows; each a transaction with its audit record."""

import asyncio

import structlog

from core.access import ApiKey
from core.errors import Conflict, InvalidRequest, NotFound
from core.experiment import Experiment
from core.noun import now
from core.policy import ServingStatus
from core.shadow import ShadowPair
from core.shadow_report import ShadowReport, shadow_report
from gateway.audit import audit_record
from gateway.release import check_files
from store.events import EXPERIMENTS
from store.store import Store
from store.unit_of_work import UnitOfWork

log = structlog.get_logger(__name__)

_PAGE = 1_000


class ShadowDesk:
    """Changes Experiments of kind ``shadow``, beside release runs, which have their own."""

    def __init__(self, *, store: Store) -> None:
        self._store = store

    async def begin(self, key: ApiKey, experiment: Experiment) -> Experiment:
        """Begin a shadow. Raises NotFound for a Policy or version that does not exist, InvalidRequest for equal
        arms, and Conflict: the candidate is not live, or is shadowed already."""
        primary, candidate = experiment.arms[:2]
        if (primary.version, primary.variant) == (candidate.version, candidate.variant):
            raise InvalidRequest(
                "the candidate is what answers already",
                hint="name another version, or the Variant 'fast'",
                param="candidate_version",
            )
        async with self._store.transaction() as work:
            # Locked: of two that begin at once the second sees the first, and no promotion comes between.
            policy = await work.policies.get(experiment.policy, lock=True)
            if primary.version != policy.promoted_version:
                raise Conflict(
                    f"'{experiment.policy}@{policy.promoted_version}' is promoted by now, not @{primary.version}",
                    hint="begin again: the candidate is compared with the promoted version",
                )
            version = await work.versions.get(experiment.policy, candidate.version)
            check_files(version)
            if version.serving is not ServingStatus.LIVE:
                raise Conflict(
                    f"'{version.label}' is {version.serving}, not live", hint="wait until the fleet has loaded it"
                )
            for other in await work.experiments.list(experiment.policy, "running"):
                if other.kind == "shadow" and other.arms[1].model_copy(update={"name": ""}) == (
                    candidate.model_copy(update={"name": ""})
                ):
                    raise Conflict(
                        f"'{version.label}' is shadowed by '{other.id}' already", hint="stop that one first"
                    )
            await work.experiments.add(experiment)
            detail = experiment.model_dump(
                mode="json", include={"policy", "arms", "sample_share", "max_requests", "max_tokens"}
            )
            await work.audit.add(audit_record(key, "shadow.begin", experiment.id, detail))
        await self._announce("shadow_began", experiment)
        return experiment

    async def stop(self, key: ApiKey, experiment_id: str, reason: str) -> Experiment:
        """Mirror no more. Raises NotFound, and Conflict where it has ended already."""
        async with self._store.transaction() as work:
            experiment = await _shadow(work, experiment_id, lock=True)
            if experiment.status == "stopped":
                raise Conflict(f"'{experiment_id}' has ended: {experiment.stopped_because}")
            ended = {"status": "stopped", "stopped_because": reason, "stopped_at": now()}
            stopped = experiment.model_copy(update=ended)
            await work.experiments.update(stopped)
            await work.audit.add(audit_record(key, "shadow.stop", experiment_id, {"reason": reason}))
        await self._announce("shadow_stopped", stopped)
        return stopped

    async def get(self, experiment_id: str) -> Experiment:
        """One shadow; raises NotFound."""
        async with self._store.reading() as work:
            return await _shadow(work, experiment_id)

    async def report(self, experiment_id: str, *, alpha: float) -> tuple[Experiment, ShadowReport]:
        """A shadow and what its pairs say so far. Raises NotFound."""
        pairs: list[ShadowPair] = []
        cursor = None
        async with self._store.reading() as work:
            experiment = await _shadow(work, experiment_id)
            counts = await work.shadow_pairs.counts(experiment_id)
            while True:
                page, cursor = await work.shadow_pairs.after(experiment_id, cursor, _PAGE)
                if not page:
                    break
                pairs += page
        return experiment, await asyncio.to_thread(shadow_report, experiment, pairs, counts, alpha=alpha)

    async def _announce(self, event: str, experiment: Experiment) -> None:
        log.info(event, experiment_id=experiment.id, policy=experiment.policy)
        await self._store.events.publish(EXPERIMENTS, {"experiment": experiment.id, "status": experiment.status})


async def _shadow(work: UnitOfWork, experiment_id: str, *, lock: bool = False) -> Experiment:
    experiment = await work.experiments.get(experiment_id, lock=lock)
    if experiment.kind != "shadow":
        raise NotFound(f"there is no shadow '{experiment_id}'")
    return experiment
