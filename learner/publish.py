"""From a written checkpoint to a PolicyVersion that the fleet serves.

Everything that names a new version is written in one transaction, the run's progress included: after a crash the
store holds either the whole step or nothing of it.
"""

import time
from collections.abc import Callable

import structlog

from core.errors import LearnerError
from core.ids import RELEASE, new_id
from core.policy import Base, Checkpoint, PolicyVersion, ServingStatus
from core.release import Release
from core.run import TrainingRun
from learner.checkpoints import WrittenCheckpoint
from store.events import VERSIONS
from store.store import Store

log = structlog.get_logger(__name__)

_LOOK_AGAIN_SECONDS = 2.0


async def publish(
    store: Store,
    written: WrittenCheckpoint,
    *,
    run: TrainingRun,
    base: Base,
    parent_version: int,
    record_step: Callable[[int], TrainingRun],
) -> tuple[PolicyVersion, TrainingRun]:
    """Mint the next version with its Checkpoint, Release candidate and lineage; wake the fleet.

    ``record_step`` gives the run as it stands with the new version's number. Raises LearnerError, and writes
    nothing, when another learner has gone on with the run.
    """
    async with store.transaction() as work:
        stored = await work.runs.get(run.id)
        if len(stored.steps) != len(run.steps):
            raise LearnerError(
                f"another learner has gone on with run {run.id} "
                f"(step {len(stored.steps)}, where this one is at {len(run.steps)})"
            )
        version = await work.versions.mint(
            run.policy,
            kind="lora",
            origin=run.algorithm,
            parent_version=parent_version,
            checkpoint_id=written.id,
        )
        await work.checkpoints.add(_checkpoint(written, version, base))
        await work.releases.add(Release(id=new_id(RELEASE), policy=run.policy, version=version.version))
        await work.lineage.add_many(written.id, written.provenance.episode_ids)
        run = record_step(version.version)
        await work.runs.put(run)
    await store.events.publish(VERSIONS, {"policy": run.policy, "version": version.version})
    log.info("version_published", version=version.label, checkpoint=written.id, run=run.id)
    return version, run


async def wait_until_served(store: Store, policy: str, version: int, *, timeout_seconds: float) -> float:
    """Seconds until the version is live. Version 0 always is.

    Raises LearnerError when the fleet refused it (with its reason) or did not load it in time: the policy's next
    Episodes could not be sampled, so the run cannot go on by itself.
    """
    started = time.monotonic()
    async with store.events.subscribe([VERSIONS]) as subscription:
        while True:
            async with store.reading() as work:
                current = await work.versions.get(policy, version)
            if current.serving in (ServingStatus.UNLOADED, ServingStatus.DRAINING):
                await _want_again(store, current)
            waited = time.monotonic() - started
            if current.serving is ServingStatus.LIVE:
                return waited
            if current.serving is ServingStatus.REFUSED:
                raise LearnerError(f"the fleet refused {current.label}: {current.serving_reason}")
            if waited >= timeout_seconds:
                raise LearnerError(
                    f"{current.label} was not served within {timeout_seconds:.0f} s",
                    hint="is the fleet running? the run goes on from here when it is started again",
                )
            await subscription.wait(min(_LOOK_AGAIN_SECONDS, timeout_seconds - waited))


async def _want_again(store: Store, version: PolicyVersion) -> None:
    async with store.transaction() as work:
        await work.versions.update(version.model_copy(update={"serving": ServingStatus.WANTED}))
    await store.events.publish(VERSIONS, {"policy": version.policy, "version": version.version})


def _checkpoint(written: WrittenCheckpoint, version: PolicyVersion, base: Base) -> Checkpoint:
    return Checkpoint(
        id=written.id,
        policy=version.policy,
        version=version.version,
        kind="lora",
        path=str(written.path),
        checksum=written.checksum,
        base_fingerprint=base.fingerprint,
        lora_rank=written.lora_rank,
        probe=written.probe,
        provenance=written.provenance,
        resume_path=str(written.resume_path) if written.resume_path else None,
    )
