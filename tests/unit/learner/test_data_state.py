"""The choice of Tasks as a whole: it is a function of its state, and the state survives."""

import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.config.learner_data import DataSection
from core.errors import LearnerError
from learner.data_state import DataState, GroupOutcome, TaskPool

POOL = TaskPool(
    lengths={name: {f"{name}{index}": 10 * index + 1 for index in range(12)} for name in ("a", "b", "old")},
    quotas={"a": 3.0, "b": 1.0},
)


def outcomes(tasks: tuple[str, ...], step: int) -> list[GroupOutcome]:
    """Made-up outcomes that step and Task decide."""
    found = []
    for task in tasks:
        solved = random.Random(f"{step}:{task}").randint(0, 8)
        domain = task.rstrip("0123456789")
        found.append(GroupOutcome(domain=domain, task_id=task, solved=solved, attempts=8, useful=0 < solved < 8))
    return found


def walk(state: DataState, config: DataSection, first: int, last: int, ahead: int, *, save_at: int = -1):
    """Steps as the learner does them, ``ahead`` of their outcomes; the state goes through JSON after ``save_at``."""
    chosen = {}
    for step in range(first, last):
        for planned in range(step, step + max(ahead, 1)):
            state = state.plan(planned, 3, pool=POOL, config=config)
        chosen[step] = state.planned[step]
        state = state.learn(outcomes(chosen[step], step), done=step + 1, config=config)
        for planned in range(step + 1, step + ahead + 1):
            state = state.plan(planned, 3, pool=POOL, config=config)
        if step == save_at:
            return chosen, DataState.model_validate_json(state.model_dump_json())
    return chosen, state


@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 50),
    ahead=st.integers(0, 3),
    cut=st.integers(0, 18),
    length_start=st.sampled_from([0, 20]),
)
def test_an_interrupted_run_picks_the_tasks_of_the_uninterrupted_one(seed, ahead, cut, length_start) -> None:
    """Saved after any step and read again, the state goes on with the very same Tasks, plans ahead included."""
    config = DataSection(length_start=length_start, length_steps=10, rest_steps=1)
    begin = DataState(seed=seed, earlier=("old",))
    whole, end = walk(begin, config, 0, 20, ahead)
    before, saved = walk(begin, config, 0, 20, ahead, save_at=cut)
    after, resumed_end = walk(saved, config, cut + 1, 20, ahead)
    assert {**before, **after} == whole
    assert resumed_end == end


def test_domains_come_by_quota_floor_and_replay() -> None:
    """Quotas 3 to 1, a tenth of replay, nothing adapted: 27, 9 and 4 of 40 groups."""
    config = DataSection(adapt=0.0, replay=0.1, floor=0.05)
    chosen, _ = walk(DataState(seed=1, earlier=("old",)), config, 0, 40, 1)
    counts = Counter(task.rstrip("0123456789") for tasks in chosen.values() for task in tasks)
    assert counts == {"a": 81, "b": 27, "old": 12}


def test_long_tasks_wait_their_turn() -> None:
    """With a length curriculum, the first step's Tasks are short, and in the end all come up."""
    config = DataSection(length_start=20, length_steps=20, curriculum=False)
    chosen, _ = walk(DataState(seed=1), config, 0, 60, 1)
    lengths = {step: max(POOL.lengths[task.rstrip("0123456789")][task] for task in chosen[step]) for step in chosen}
    assert lengths[0] <= 20
    assert max(lengths.values()) == 111


def test_another_seed_picks_other_tasks() -> None:
    """The seed decides the order."""
    first, _ = walk(DataState(seed=1), DataSection(), 0, 5, 0)
    second, _ = walk(DataState(seed=2), DataSection(), 0, 5, 0)
    assert first != second


def test_without_a_task_there_is_nothing_to_plan() -> None:
    """Empty Domains, and Domains without a share, are an error that says what to do."""
    with pytest.raises(LearnerError, match="no Task") as caught:
        DataState(seed=0).plan(0, 2, pool=TaskPool(lengths={"a": {}}, quotas={}), config=DataSection())
    assert "import Tasks" in (caught.value.hint or "")
