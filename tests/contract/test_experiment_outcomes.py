"""Counting requests of an Experiment into outcomes, on SQLite and on PostgreSQL."""

import asyncio

from core.experiment import Arm, Experiment
from gateway.capture.record import ArmExposure
from gateway.experiments.outcomes import Counted, count_request
from store.store import Store

ARMS = (Arm(name="promoted", version=1, share=0.5), Arm(name="candidate", version=2, share=0.5))


def counted(number: int, *, answered: str | None = "candidate", events: frozenset[str] = frozenset()) -> Counted:
    """A request of one Episode on the candidate."""
    exposure = ArmExposure(
        experiment_id="exp_a", arm="candidate", answered=answered, key="k", bucket=0.9, stage=0, reason="hash"
    )
    return Counted(
        exposure=exposure, episode_id="ep_1", request_id=f"req_{number}", at=1.0, events=events, output_tokens=3
    )


async def count(store: Store, *requests: Counted) -> None:
    """Each in a transaction of its own, all at once."""

    async def one(request: Counted) -> None:
        async with store.transaction() as work:
            await count_request(work, request)

    await asyncio.gather(*map(one, requests))


async def begin(store: Store) -> None:
    """The Experiment."""
    async with store.transaction() as work:
        await work.experiments.add(Experiment(id="exp_a", policy="coder", kind="ab", arms=ARMS, salt="s"))


async def test_requests_at_once_are_each_counted_once(store: Store) -> None:
    """Of writers that open an outcome together none is lost, and a request that is written again adds nothing."""
    await begin(store)
    await count(store, *(counted(number) for number in range(8)))
    await count(store, *(counted(number) for number in range(8)))
    async with store.reading() as work:
        found = await work.arm_outcomes.get("exp_a", "ep_1")
        assignment = await work.assignments.get("exp_a", "k")
    assert (found.requests, found.output_tokens, found.mixed) == (8, 24, False)
    assert (assignment.arm, assignment.stage) == ("candidate", 0)


async def test_what_another_arm_answered_marks_the_episode(store: Store) -> None:
    """It is mixed from then on; the other arm's events are not this one's; failures of its own are."""
    await begin(store)
    await count(store, counted(1, events=frozenset({"slow"})))
    await count(store, counted(2, answered="promoted", events=frozenset({"refusal"})))
    await count(store, counted(3, answered=None, events=frozenset({"error"})))
    await count(store, counted(4, answered=None))
    async with store.reading() as work:
        found = await work.arm_outcomes.get("exp_a", "ep_1")
    assert found.mixed
    assert found.events == {"slow": 1, "fallback": 2, "error": 1}


async def test_a_record_of_an_unknown_experiment_is_left_alone(store: Store) -> None:
    """An old journal can name what is no longer there: the Turns beside it must not be held up."""
    await count(store, counted(1))
    async with store.reading() as work:
        assert await work.arm_outcomes.of_episode("ep_1") == []
