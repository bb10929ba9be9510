"""From a written checkpoint to a PolicyVersion that the fleet serves.

Everything that names a new version is written in one transaction, the run's progress included: after a crash the
store holds either the whole step or nothing of it.
"""

import time
from collections.abc import Callable

import structlog

from core.errors import LearnerError, VersionNotServed
from core.ids import RELEASE, new_id
from core.policy import Base, Checkpoint, PolicyVersion
from core.release import Release
from core.run import TrainingRun
from learner.checkpoints import WrittenCheckpoint
from serving.weights.signing import Signer
from store.events import VERSIONS
from store.held_versions import wait_live
from store.store import Store
from store.taint import mark_withdrawn

log = structlog.get_logger(__name__)


async def publish(
    store: Store,
    written: WrittenCheckpoint,
    *,
    run: TrainingRun,
    base: Base,
    parent_version: int,
    record_step: Callable[[int], TrainingRun],
    signer: Signer | None = None,
) -> tuple[PolicyVersion, TrainingRun]:
    """Mint the next version with its Checkpoint, Release candidate and lineage; wake the fleet.

    The version is born with the run's pin. ``record_step`` gives the run as it stands with the new version's
    number. Raises LearnerError or LeaseLost, and writes nothing, when another learner has gone on with the run.
    """
    async with store.transaction() as work:
        stored = await work.runs.guard(run)
        recorded = len(stored.steps) if stored else 0
        if recorded != len(run.steps):
            raise LearnerError(
                f"another learner has gone on with run {run.id} "
                f"(step {recorded}, where this one is at {len(run.steps)})"
            )
        version = await work.versions.mint(
            run.policy,
            kind=written.kind,
            origin=run.algorithm,
            parent_version=parent_version,
            checkpoint_id=written.id,
            pins=(run.id,),
        )
        checkpoint = _checkpoint(written, version, base)
        await work.checkpoints.add(checkpoint if signer is None else signer.sign(checkpoint))
        await work.releases.add(Release(id=new_id(RELEASE), policy=run.policy, version=version.version))
        await work.lineage.add_many(written.id, written.provenance.episode_ids)
        # An Episode may have been withdrawn while the step was under way.
        await mark_withdrawn(work, run.policy, [version.version])
        run = record_step(version.version)
        await work.runs.advance(run)
    await store.events.publish(VERSIONS, {"policy": run.policy, "version": version.version})
    log.info("version_published", version=version.label, checkpoint=written.id, run=run.id)
    return version, run


async def wait_until_served(store: Store, policy: str, version: int, *, timeout_seconds: float) -> float:
    """Seconds until the version is live; pin it first. Version 0 always is.

    Raises LearnerError when the fleet refused it (with its reason) or did not load it in time: the policy's next
    Episodes could not be sampled, so the run cannot go on by itself.
    """
    started = time.monotonic()
    try:
        await wait_live(store, policy, version, timeout_seconds)
    except VersionNotServed as error:
        raise LearnerError(error.message, hint=error.hint) from error
    return time.monotonic() - started


def _checkpoint(written: WrittenCheckpoint, version: PolicyVersion, base: Base) -> Checkpoint:
    return Checkpoint(
        id=written.id,
        policy=version.policy,
        version=version.version,
        kind=written.kind,
        path=str(written.path),
        checksum=written.checksum,
        base_fingerprint=base.fingerprint,
        lora_rank=written.lora_rank,
        probe=written.probe,
        provenance=written.provenance,
        resume_path=str(written.resume_path) if written.resume_path else None,
    )
