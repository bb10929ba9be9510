"""Which versions' folders may be deleted, by all the store knows: names, releases, runs, jobs, pins, traffic."""

from collections.abc import Collection

from core.alias import alias_versions
from core.policy import PolicyVersion
from core.retention import prunable
from core.run import RunStatus
from store.unit_of_work import UnitOfWork

_NAMING_JOBS = ("train", "evaluate", "run_suite", "distil")
"""Kinds of jobs that name versions of a Policy, and find them only once they are begun."""
_NAMING_FIELDS = ("version", "start_version", "baseline_version", "target_version")


async def prunable_versions(
    work: UnitOfWork,
    policy: str,
    *,
    keep: int,
    older_than: float,
    needed: Collection[int] = (),
    lock: bool = False,
) -> list[PolicyVersion]:
    """Versions of a Policy that ``core.retention.prunable`` lets go, in ascending order. Raises NotFound.

    ``needed``: versions that stay for a reason of the caller's. With ``lock`` no promotion and no Experiment comes
    between this answer and the end of the transaction.
    """
    found = await work.policies.get(policy, lock=lock)
    releases = await work.releases.list(policy)
    named = alias_versions(found, await work.aliases.list(policy), releases).values()
    runs = [run for run in await work.release_runs.list_open() if run.policy == policy]
    released = [version for run in runs for version in (run.version, run.baseline)]
    experiments = await work.experiments.list(policy, "running")
    tried = [arm.version for experiment in experiments for arm in experiment.arms]
    return prunable(
        found,
        await work.versions.list(policy),
        releases,
        keep=keep,
        older_than=older_than,
        needed={*named, *released, *tried, *needed, *await _worked_on(work, policy)},
    )


async def _worked_on(work: UnitOfWork, policy: str) -> set[int]:
    """Versions that unfinished TrainingRuns began from or reached, and those that open jobs name."""
    found: set[int] = set()
    for run in await work.runs.list(policy):
        if run.status is RunStatus.RUNNING:
            found |= {run.start_version, *(step.version for step in run.steps[-1:])}
    for job in await work.jobs.open(_NAMING_JOBS):
        if job.payload.get("policy") == policy:
            found |= {value for name in _NAMING_FIELDS if isinstance(value := job.payload.get(name), int)}
    return found
