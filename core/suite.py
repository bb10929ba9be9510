"""Suite and SuiteResult: held-out Tasks with attempts and seeds, and what one PolicyVersion did on them."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from core.noun import Noun, now


class Suite(Noun):
    """A fixed set of held-out Tasks, the attempts at each, and the conditions under which they are made."""

    name: str
    """``code``, ``safety``, ``tenant/acme/tickets``, …"""
    version: int = 1
    """Grows when the Tasks change: results of different versions are not compared."""
    task_ids: tuple[str, ...] = Field(min_length=1)
    attempts: int = Field(default=1, ge=1)
    """Attempts at each Task, with seeds ``seed``, ``seed + 1``, …"""
    seed: int = 0
    temperature: float = 0.0
    perturbations: tuple[str, ...] = ()
    """Names of rewordings under which each Task is repeated: the answer must not hang on the wording."""
    tenant_id: str | None = None
    """Whose private Tasks these are; None: everybody's."""
    scored: bool = True
    """False: the Tasks have no verifiers (logged prompts); they serve as shadow or judge prompts only."""
    created_at: float = Field(default_factory=now)


class Attempt(Noun):
    """One attempt at one Task of a Suite."""

    task_id: str
    domain: str
    seed: int
    perturbation: str | None = None
    episode_id: str | None = None
    invalid: bool = False
    """Infrastructure failed: it enters no statistics."""
    success: bool = False
    reward: float = 0.0
    turns: int = 0
    tool_calls: int = 0
    tool_errors: int = 0
    """Malformed calls and calls whose tool failed."""
    recovered: bool | None = None
    """After a tool error the attempt still succeeded; None: there was no error."""
    output_tokens: int = 0
    prompt_tokens: int = 0
    seconds: float = 0.0
    stop_reason: str | None = None

    @property
    def place(self) -> tuple[str, int, str | None]:
        """What must be equal for two versions' attempts to be a pair."""
        return self.task_id, self.seed, self.perturbation


class SuiteResult(Noun):
    """One PolicyVersion's attempts at a Suite."""

    id: str
    suite: str
    suite_version: int
    policy: str
    version: int
    variant: str = "standard"
    attempts: tuple[Attempt, ...]
    status: Literal["running", "done"] = "done"
    """``running``: more attempts are to come."""
    planned: int = 0
    """How many attempts the Suite asks for."""
    job_id: str | None = None
    tenant_id: str | None = None
    """The Suite's."""
    created_at: float = Field(default_factory=now)


def paired_differences(
    candidate: Sequence[Attempt], baseline: Sequence[Attempt]
) -> dict[str, list[tuple[str, float]]]:
    """Domain → (task id, candidate minus baseline success, a mean over the Task's attempts), in task order.

    The unit is the Task: attempts at one Task are not independent. Attempts that are invalid on either side, or that
    only one side has, are left out.
    """
    other = {attempt.place: attempt for attempt in baseline if not attempt.invalid}
    found: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for attempt in candidate:
        mate = other.get(attempt.place)
        if mate is not None and not attempt.invalid:
            found[attempt.domain][attempt.task_id].append(float(attempt.success) - float(mate.success))
    return {
        domain: [(task, sum(values) / len(values)) for task, values in sorted(tasks.items())]
        for domain, tasks in sorted(found.items())
    }
