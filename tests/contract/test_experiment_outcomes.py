"""Counting requests of an Experiment into outcomes, on SQLite and on PostgreSQL."""

import asyncio

from core.arm_outcome import ArmOutcome
from core.experiment import Arm, Assignment, Experiment
from core.guardrails import Guardrails
from gateway.capture.record import ArmExposure
from gateway.capture.turns import build_turns
from gateway.experiments.outcome_book import OutcomeBook
from gateway.experiments.outcomes import Counted, count_request, record_exposure
from store.store import Store
from tests.captured_calls import captured_call

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


async def test_requests_at_once_of_a_known_user_are_each_counted(store: Store) -> None:
    """A key that has its Assignment already holds up nobody: writers meet at the Episode's outcome."""
    await begin(store)
    async with store.transaction() as work:
        await work.assignments.add(Assignment(experiment_id="exp_a", key="k", arm="candidate", bucket=0.9))
    await count(store, *(counted(number) for number in range(8)))
    async with store.reading() as work:
        assert (await work.arm_outcomes.get("exp_a", "ep_1")).requests == 8


async def test_an_outcome_of_a_slow_clock_is_read_within_the_minute(store: Store) -> None:
    """Its time is far behind what was read last; one that was erased is forgotten at the same time."""
    await begin(store)
    moment = [0.0]
    book = OutcomeBook("exp_a", clock=lambda: moment[0])

    async def put(name: str, at: float) -> None:
        one = ArmOutcome(experiment_id="exp_a", episode_id=name, key="k", arm="candidate", updated_at=at)
        async with store.transaction() as work:
            await work.arm_outcomes.put(one)

    async def read() -> bool:
        async with store.reading() as work:
            return await book.read(work)

    await put("ep_1", 1_000.0)
    assert (await read(), await read()) == (True, False)
    await put("ep_late", 900.0)
    assert not await read()
    moment[0] = 61.0
    assert await read()
    assert set(book.outcomes) == {"ep_1", "ep_late"}
    await put("ep_2", 1_001.0)
    assert await read()
    async with store.transaction() as work:
        await work.erasure.episode("ten_a", "ep_1")
    moment[0] = 130.0
    assert await read()
    assert set(book.outcomes) == {"ep_late", "ep_2"}


async def test_several_answers_without_content_are_not_one_long_one(store: Store) -> None:
    """The engine's count is that of all choices: together they may be longer than one of them should be."""
    await begin(store)
    exposure = counted(1).exposure
    named = {"exposure": exposure, "consent": False, "payloads": [], "episode_id": "ep_1"}
    longest = Guardrails().long_tokens
    for number, tokens in ((1, longest + 2), (2, 3 * longest)):
        call = captured_call(number, turn_ids=["turn_a", "turn_b"], completion_tokens=tokens, **named)
        async with store.transaction() as work:
            await record_exposure(work, call, build_turns(call))
    async with store.reading() as work:
        found = await work.arm_outcomes.get("exp_a", "ep_1")
    assert (found.requests, found.events, found.output_tokens) == (2, {"long": 1}, 4 * longest + 2)


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
