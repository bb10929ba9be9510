"""The Suites that Hone ships: one for each evaluated Domain, made again alike from fixed seeds."""

from dataclasses import dataclass

from core.errors import TaskError
from core.suite import Suite
from core.task import Domain, Task
from sandbox.domains.registry import domain_source

SEED = 20_000
"""Of the Tasks and of the attempts."""
TASKS = 40
_PERTURBATIONS: dict[str, tuple[str, ...]] = {"ledger": ("polite", "distracted")}
_ATTEMPTS: dict[str, int] = {"ledger": 2}


@dataclass(frozen=True)
class MadeSuite:
    """A Suite with what must be in the store first."""

    suite: Suite
    tasks: tuple[Task, ...]
    domain: Domain


def standard_suite(
    name: str,
    *,
    tasks: int = TASKS,
    attempts: int | None = None,
    perturbations: tuple[str, ...] | None = None,
    seed: int = SEED,
) -> MadeSuite:
    """The Suite of the Domain ``name``; raises TaskError for a Domain that there is not or that is too small."""
    source = domain_source(name)
    made = tuple(source.generate("heldout", tasks, seed))
    if not made:
        raise TaskError(f"Domain '{name}' gave no Task")
    suite = Suite(
        name=name,
        task_ids=tuple(task.id for task in made),
        attempts=_ATTEMPTS.get(name, 1) if attempts is None else attempts,
        seed=seed,
        perturbations=_PERTURBATIONS.get(name, ("polite",)) if perturbations is None else perturbations,
    )
    return MadeSuite(suite=suite, tasks=made, domain=source.domain())
