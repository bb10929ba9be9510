"""Which Task of a Domain comes next: by estimated pass rates, with a share of choices that ignore them. Pure.

Tasks come in passes: in each, every Task once, in an order that seed, Domain and pass decide alone. A Task that was
attempted before is passed over when its pass rate, drawn from its posterior, lies outside the band. Where a Domain's
new Tasks mostly teach nothing, Tasks that were solved sometimes come again out of turn.

A pass is a walk along hashes of Task ids, so Tasks that are added meanwhile fall into it without moving the others.
"""

import hashlib
import random
from bisect import bisect_right
from collections.abc import Collection, Iterator, Mapping, Sequence

from pydantic import Field

from core.config.learner_data import DataSection
from core.noun import Noun

_PRIOR_WEIGHT = 2.0
"""Attempts that a Domain's pass rate counts for, as the prior of each of its Tasks."""
_DOMAIN_MEMORY = 0.95
"""What a Domain's earlier groups still weigh after one more: the last twenty decide."""
_MOST_TASKS = 20_000
"""Tasks whose outcomes are remembered, those chosen last."""


class TaskRecord(Noun):
    """How attempts at one Task went, older ones weighing less."""

    solved: float = 0.0
    failed: float = 0.0
    chosen_at: int
    """The step that attempted it last."""


class DomainState(Noun):
    """Where the choice of one Domain's Tasks stands."""

    epoch: int = 0
    """Passes done."""
    cursor: int = -1
    """Place in the present pass: the hash of the last Task."""
    useful: float = 0.0
    """Groups that could teach something, older ones weighing less."""
    useless: float = 0.0
    solved: float = 0.0
    """Attempts that succeeded, older ones weighing less."""
    failed: float = 0.0
    tasks: dict[str, TaskRecord] = Field(default_factory=dict)

    @property
    def useful_share(self) -> float:
        """Estimated share of groups that can teach something; 1 before there was any."""
        return (self.useful + 2.0) / (self.useful + self.useless + 2.0)

    @property
    def pass_rate(self) -> float:
        """Posterior mean of the Domain's pass rate."""
        return (self.solved + 1.0) / (self.solved + self.failed + 2.0)

    def posterior(self, task_id: str) -> tuple[float, float]:
        """The two parameters of the Task's Beta posterior; its prior is the Domain's pass rate."""
        record = self.tasks.get(task_id)
        solved, failed = (record.solved, record.failed) if record else (0.0, 0.0)
        rate = self.pass_rate
        return _PRIOR_WEIGHT * rate + solved, _PRIOR_WEIGHT * (1 - rate) + failed


def next_task(
    state: DomainState,
    pool: Sequence[str],
    *,
    config: DataSection,
    stream: str,
    step: int,
    slot: int,
    taken: Collection[str],
) -> tuple[str, DomainState]:
    """A Task of ``pool`` for one group of ``step``, and the state after the choice.

    ``stream`` names seed and Domain. ``taken``: Tasks that the step has already; they come again only when the pool
    has no other.
    """
    free = [task for task in pool if task not in taken] or list(pool)
    chance = random.Random(f"{stream}:{step}:{slot}")
    chosen = None
    if config.curriculum and chance.random() >= config.explore:
        chosen = _out_of_turn(state, free, config, step, chance)
    if chosen is None:
        chosen, state = _in_turn(state, free, config, stream, chance)
    record = state.tasks.get(chosen)
    fresh = TaskRecord(chosen_at=step) if record is None else record.model_copy(update={"chosen_at": step})
    tasks = {**state.tasks, chosen: fresh}
    if len(tasks) > _MOST_TASKS:
        del tasks[min(tasks, key=lambda task: (tasks[task].chosen_at, task))]
    return chosen, state.model_copy(update={"tasks": tasks})


def learned(
    state: DomainState, task_id: str, *, solved: float, failed: float, useful: bool, memory: float
) -> DomainState:
    """The state after a group's attempts at a Task; ``useful``: their rewards differed."""
    record = state.tasks.get(task_id) or TaskRecord(chosen_at=0)
    record = record.model_copy(
        update={"solved": memory * record.solved + solved, "failed": memory * record.failed + failed}
    )
    return state.model_copy(
        update={
            "tasks": {**state.tasks, task_id: record},
            "useful": _DOMAIN_MEMORY * state.useful + useful,
            "useless": _DOMAIN_MEMORY * state.useless + (not useful),
            "solved": _DOMAIN_MEMORY * state.solved + solved,
            "failed": _DOMAIN_MEMORY * state.failed + failed,
        }
    )


def length_limit(longest: int, *, start: int, steps: int, step: int) -> int:
    """The longest Task that ``step`` may attempt: it grows from ``start`` by the same factor a step."""
    if start <= 0 or start >= longest or step >= steps:
        return longest
    return int(start * (longest / start) ** (step / steps))


def within_length(lengths: Mapping[str, int], limit: int) -> list[str]:
    """The Tasks that are not longer than ``limit``; the shortest ones where all are."""
    if not lengths:
        return []
    bound = max(limit, min(lengths.values()))
    return [task for task, length in lengths.items() if length <= bound]


def _out_of_turn(
    state: DomainState, free: Sequence[str], config: DataSection, step: int, chance: random.Random
) -> str | None:
    """A Task that was solved sometimes and has rested; the likelier, the less new Tasks teach."""
    if chance.random() < state.useful_share:
        return None
    known = [task for task in sorted(free) if task in state.tasks]
    rested = [task for task in known if step - state.tasks[task].chosen_at > config.rest_steps]
    learnable = [task for task in rested if _in_band(state, task, config, chance)]
    return min(learnable, key=lambda task: (state.tasks[task].chosen_at, task), default=None)


def _in_turn(
    state: DomainState, free: Sequence[str], config: DataSection, stream: str, chance: random.Random
) -> tuple[str, DomainState]:
    """The next Task of the pass that is new, or whose pass rate is in the band, or that chance lets through."""
    passed_over = None
    for task, epoch, cursor in _walk(state, free, stream):
        moved = state.model_copy(update={"epoch": epoch, "cursor": cursor})
        accepted = (
            not config.curriculum
            or task not in state.tasks
            or chance.random() < config.explore
            or _in_band(state, task, config, chance)
        )
        if accepted:
            return task, moved
        passed_over = passed_over or (task, moved)
    assert passed_over is not None, "a pool without a Task"
    return passed_over


def _walk(state: DomainState, free: Sequence[str], stream: str) -> Iterator[tuple[str, int, int]]:
    """What is left of this pass, then the whole of the next."""
    for epoch in (state.epoch, state.epoch + 1):
        order = sorted((_place(stream, epoch, task), task) for task in free)
        first = bisect_right(order, state.cursor, key=lambda entry: entry[0]) if epoch == state.epoch else 0
        yield from ((task, epoch, place) for place, task in order[first:])


def _in_band(state: DomainState, task_id: str, config: DataSection, chance: random.Random) -> bool:
    return config.pass_rate_low <= chance.betavariate(*state.posterior(task_id)) <= config.pass_rate_high


def _place(stream: str, epoch: int, task_id: str) -> int:
    digest = hashlib.blake2b(f"{stream}:{epoch}:{task_id}".encode(), digest_size=6).digest()
    return int.from_bytes(digest)
