"""Which Task of a Domain comes next."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from core.config.learner_data import DataSection
from learner.curriculum import DomainState, learned, length_limit, next_task, within_length

PLAIN = DataSection(curriculum=False)


def choose(state: DomainState, pool: list[str], config: DataSection, step: int, size: int = 1, seed: int = 0):
    """``size`` Tasks for one step, and the state after them."""
    chosen: list[str] = []
    for slot in range(size):
        task, state = next_task(state, pool, config=config, stream=f"{seed}:d", step=step, slot=slot, taken=chosen)
        chosen.append(task)
    return chosen, state


@given(seed=st.integers(0, 99), tasks=st.integers(1, 12), passes=st.integers(1, 3))
def test_a_pass_visits_every_task_once(seed: int, tasks: int, passes: int) -> None:
    """Without a curriculum, each pass holds every Task once, in an order of its own."""
    pool, state, walks = [f"t{index}" for index in range(tasks)], DomainState(), []
    for number in range(passes):
        walk = []
        for index in range(tasks):
            (task,), state = choose(state, pool, PLAIN, number * tasks + index, seed=seed)
            walk.append(task)
        walks.append(walk)
    assert all(sorted(walk) == sorted(pool) for walk in walks)


def test_the_first_pass_is_plain_for_a_curriculum_too() -> None:
    """Tasks that nobody attempted are never passed over."""
    pool, state, walk = [f"t{index}" for index in range(30)], DomainState(), []
    for step in range(10):
        tasks, state = choose(state, pool, DataSection(), step, 3)
        walk += tasks
    assert sorted(walk) == sorted(pool)


@given(size=st.integers(1, 9), seed=st.integers(0, 20))
def test_a_step_repeats_a_task_only_when_there_is_no_other(size: int, seed: int) -> None:
    """A step's Tasks differ as long as the pool allows."""
    pool = [f"t{index}" for index in range(5)]
    tasks, _ = choose(DomainState(), pool, DataSection(), 0, size, seed)
    assert len(set(tasks)) == min(size, len(pool))


@given(added=st.sets(st.text("abc", min_size=1, max_size=4), max_size=5), seed=st.integers(0, 20))
def test_added_tasks_leave_the_order_of_the_others(added: set[str], seed: int) -> None:
    """What is left of a pass keeps its order when Tasks are added, and new ones fall in between."""
    pool = [f"t{index}" for index in range(8)]
    _, state = choose(DomainState(), pool, PLAIN, 0, 3, seed)

    def rest(of: list[str]) -> list[str]:
        walk, now = [], state
        for step in range(1, 40):
            (task,), now = choose(now, of, PLAIN, step, seed=seed)
            if now.epoch > state.epoch:
                return walk
            walk.append(task)
        return walk

    assert [task for task in rest([*pool, *added]) if task in pool] == rest(pool)


def played(config: DataSection, rates: dict[str, float], steps: int) -> tuple[Counter[str], DomainState]:
    """How often each Task is chosen when attempts succeed at fixed rates."""
    state, counts = DomainState(), Counter[str]()
    for step in range(steps):
        tasks, state = choose(state, sorted(rates), config, step, 2)
        counts.update(tasks)
        for task in tasks:
            solved = 8 * rates[task]
            useful = 0 < rates[task] < 1
            state = learned(state, task, solved=solved, failed=8 - solved, useful=useful, memory=config.memory)
    return counts, state


def test_tasks_in_the_band_are_preferred_and_none_is_given_up() -> None:
    """Tasks solved half the time are chosen far more often than hopeless or solved ones, which still come up."""
    rates = {
        f"{kind}{index}": rate for kind, rate in (("no", 0.0), ("mid", 0.5), ("yes", 1.0)) for index in range(10)
    }
    counts, _ = played(DataSection(), rates, 400)
    by_kind = Counter[str]()
    for task, count in counts.items():
        by_kind[task.rstrip("0123456789")] += count
    assert by_kind["mid"] > 2 * (by_kind["no"] + by_kind["yes"])
    assert min(counts[task] for task in rates) >= 2


def test_where_new_tasks_teach_nothing_those_that_do_come_again() -> None:
    """With hundreds of hopeless Tasks, the few that are solved sometimes come out of turn, and rest in between."""
    rates = {f"no{index:03d}": 0.0 for index in range(300)} | {f"mid{index}": 0.5 for index in range(6)}
    config = DataSection(rest_steps=4)
    counts, _ = played(config, rates, 120)
    share = sum(counts[f"mid{index}"] for index in range(6)) / sum(counts.values())
    assert share > 5 * 6 / 306


def test_what_a_policy_learned_brings_a_task_back() -> None:
    """Old outcomes fade: a Task that failed for long and is now solved half the time is back in the band."""
    state = DomainState()
    for _ in range(6):
        state = learned(state, "t", solved=0, failed=8, useful=False, memory=0.7)
    low = state.posterior("t")
    for _ in range(5):
        state = learned(state, "t", solved=4, failed=4, useful=True, memory=0.7)
    high = state.posterior("t")
    assert low[0] / sum(low) < 0.1
    assert 0.35 < high[0] / sum(high) < 0.6


@given(
    longest=st.integers(1, 100_000), start=st.integers(0, 100_000), steps=st.integers(1, 50), step=st.integers(0, 60)
)
def test_length_grows_to_the_longest(longest: int, start: int, steps: int, step: int) -> None:
    """The limit begins at the start, never falls, and is the longest Task from the last step on."""
    now = length_limit(longest, start=start, steps=steps, step=step)
    after = length_limit(longest, start=start, steps=steps, step=step + 1)
    assert min(start, longest) <= now <= after <= longest or start == 0
    assert length_limit(longest, start=start, steps=steps, step=steps) == longest


@given(lengths=st.dictionaries(st.text(min_size=1), st.integers(0, 50), min_size=1), limit=st.integers(0, 60))
def test_no_domain_is_emptied_by_the_limit(lengths: dict[str, int], limit: int) -> None:
    """Only Tasks within the limit are left, or the shortest where none is."""
    kept = within_length(lengths, limit)
    assert kept
    assert all(lengths[task] <= max(limit, min(lengths.values())) for task in kept)
