"""The contract of the repository of ArmOutcomes, on SQLite and on PostgreSQL."""

import pytest

from core.arm_outcome import ArmOutcome
from core.errors import Conflict, NotFound
from core.experiment import Arm, Experiment
from store.repositories.arm_outcomes import cursor_of
from store.store import Store

ARMS = (Arm(name="promoted", version=1, share=0.5), Arm(name="candidate", version=2, share=0.5))


def outcome(number: int, **fields: object) -> ArmOutcome:
    """An outcome of the Experiment ``exp_a``, changed at the time ``number``."""
    values = {
        "experiment_id": "exp_a",
        "episode_id": f"ep_{number}",
        "key": f"key_{number}",
        "arm": "candidate",
        "updated_at": float(number),
    }
    return ArmOutcome(**(values | fields))


async def begin(store: Store) -> None:
    """Two Experiments."""
    async with store.transaction() as work:
        for name in ("exp_a", "exp_b"):
            await work.experiments.add(Experiment(id=name, policy="coder", kind="ab", arms=ARMS, salt="s"))


async def test_an_outcome_round_trips_and_is_replaced(store: Store) -> None:
    """It comes back as it went in; a later one takes its place; an unknown one is NotFound, or None."""
    await begin(store)
    first = outcome(1, events={"error": 2}, reward=0.5, domain="maths", recent=("req_1",))
    async with store.transaction() as work:
        await work.arm_outcomes.put(first)
        assert await work.arm_outcomes.get("exp_a", "ep_1", lock=True) == first
        later = first.model_copy(update={"reward": 1.0, "updated_at": 5.0})
        await work.arm_outcomes.put(later)
    async with store.reading() as work:
        assert await work.arm_outcomes.get("exp_a", "ep_1") == later
        assert await work.arm_outcomes.find("exp_b", "ep_1") is None
        with pytest.raises(NotFound):
            await work.arm_outcomes.get("exp_a", "ep_9")


async def test_outcomes_are_read_in_order_of_their_change(store: Store) -> None:
    """Page by page every one once; one that changed since comes again; equal times are told apart."""
    await begin(store)
    async with store.transaction() as work:
        for number in (3, 1, 2):
            await work.arm_outcomes.put(outcome(number))
        await work.arm_outcomes.put(outcome(4, updated_at=3.0))
        await work.arm_outcomes.put(outcome(1, experiment_id="exp_b"))
    async with store.reading() as work:
        page = await work.arm_outcomes.after("exp_a", None, 3)
        assert [one.episode_id for one in page] == ["ep_1", "ep_2", "ep_3"]
        rest = await work.arm_outcomes.after("exp_a", cursor_of(page[-1]), 3)
        assert [one.episode_id for one in rest] == ["ep_4"]
        assert await work.arm_outcomes.after("exp_a", cursor_of(rest[-1])) == []
    async with store.transaction() as work:
        await work.arm_outcomes.put(outcome(1, updated_at=9.0, reward=1.0))
    async with store.reading() as work:
        again = await work.arm_outcomes.after("exp_a", cursor_of(rest[-1]))
    assert [(one.episode_id, one.reward) for one in again] == [("ep_1", 1.0)]


async def test_outcomes_are_counted_and_found_by_key_and_episode(store: Store) -> None:
    """By arm, with those that saw two arms apart; of a key only what was before."""
    await begin(store)
    async with store.transaction() as work:
        for number in range(4):
            arm = "promoted" if number % 2 else "candidate"
            await work.arm_outcomes.put(outcome(number, arm=arm, key="k", mixed=number == 3))
        await work.arm_outcomes.put(outcome(0, experiment_id="exp_b", key="k"))
    async with store.reading() as work:
        assert await work.arm_outcomes.counts("exp_a") == {"candidate": 2, "promoted": 1, "mixed": 1}
        assert await work.arm_outcomes.counts("exp_c") == {}
        assert [one.experiment_id for one in await work.arm_outcomes.of_episode("ep_0")] == ["exp_a", "exp_b"]
        earlier = await work.arm_outcomes.of_key("k", before=2.0)
        assert earlier[0].episode_id == "ep_1"
        assert len(earlier) == 3


async def test_a_stopped_experiment_never_runs_again(store: Store) -> None:
    """Who moves a ramp on, and read it before it was ended, gets a Conflict."""
    await begin(store)
    async with store.transaction() as work:
        read = await work.experiments.get("exp_a", lock=True)
        await work.experiments.update(read.model_copy(update={"stage": 1}))
        await work.experiments.update(read.model_copy(update={"status": "stopped"}))
        with pytest.raises(Conflict):
            await work.experiments.update(read)
        await work.experiments.update(read.model_copy(update={"status": "stopped", "stopped_because": "why"}))
        with pytest.raises(NotFound):
            await work.experiments.update(read.model_copy(update={"id": "exp_absent"}))
