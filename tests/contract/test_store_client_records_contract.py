"""The contract of the repositories of StoredCompletions, Feedback and replaced Turns, on SQLite and on PostgreSQL."""

import asyncio

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from core import ids
from core.errors import NotFound
from core.feedback import Feedback, FeedbackKind
from core.stored_completion import StoredCompletion
from store.store import Store
from tests import nouns

ASKED = [{"role": "user", "content": "2 + 2?\0"}]


def completion(number: int = 0, **fields: object) -> StoredCompletion:
    """A StoredCompletion of ``ten_a``."""
    values = {
        "tenant_id": "ten_a",
        "id": f"chatcmpl-{number:03}",
        "model": "coder@1",
        "asked_model": "coder",
        "episode_id": "ep_a",
        "turn_ids": ("turn_a",),
        "completion": {"id": f"chatcmpl-{number:03}", "choices": [{"message": {"content": "4\0"}}]},
        "created_at": float(number),
    }
    return StoredCompletion(**(values | fields))


def feedback(**fields: object) -> Feedback:
    """A Feedback of ``ten_a``."""
    values = {
        "id": ids.new_id(ids.FEEDBACK),
        "tenant_id": "ten_a",
        "key_id": "key_a",
        "episode_id": "ep_a",
        "name": "good",
        "kind": FeedbackKind.BOOLEAN,
        "value": True,
    }
    return Feedback(**(values | fields))


async def test_a_stored_completion_round_trips(store: Store) -> None:
    """It comes back as it went in, with what was asked; the same id again is not added."""
    one = completion(metadata={"a": "b"})
    async with store.transaction() as work:
        assert await work.stored_completions.add(one, ASKED)
        assert not await work.stored_completions.add(one.model_copy(update={"model": "x"}), [])
        assert await work.stored_completions.add(one.model_copy(update={"tenant_id": "ten_b"}), [])
    async with store.reading() as work:
        assert await work.stored_completions.get("ten_a", one.id) == one
        assert await work.stored_completions.messages("ten_a", one.id) == ASKED
        assert await work.stored_completions.messages("ten_b", one.id) == []
        with pytest.raises(NotFound):
            await work.stored_completions.get("ten_c", one.id)
        with pytest.raises(NotFound):
            await work.stored_completions.messages("ten_c", one.id)


async def test_labels_follow_an_update_and_a_deletion(store: Store) -> None:
    """Metadata filters see only what is there now, and only the tenant's own."""
    one = completion(metadata={"a": "1", "b": "2"})
    theirs = one.model_copy(update={"tenant_id": "ten_b"})
    async with store.transaction() as work:
        await work.stored_completions.add(one, ASKED)
        await work.stored_completions.add(theirs, ASKED)
        changed = one.model_copy(update={"metadata": {"a": "3"}})
        await work.stored_completions.update(changed)
        for wanted, found in (({"a": "1"}, []), ({"a": "3"}, [changed]), ({"b": "2"}, []), ({}, [changed])):
            assert await work.stored_completions.list("ten_a", metadata=wanted) == found
        assert await work.stored_completions.list("ten_b", metadata={"a": "1", "b": "2"}) == [theirs]
        assert await work.stored_completions.messages("ten_a", one.id) == ASKED
        await work.stored_completions.delete("ten_a", one.id)
        with pytest.raises(NotFound):
            await work.stored_completions.delete("ten_a", one.id)
        with pytest.raises(NotFound):
            await work.stored_completions.update(changed)
        assert await work.stored_completions.add(one, ASKED)
        assert await work.stored_completions.list("ten_a", metadata={"a": "1"}) == [one]


async def test_pages_hold_everything_once(fresh_sqlite_url: str, open_store) -> None:
    """Whatever the times, the page size and the direction, joined pages are the ordered whole."""
    store = await open_store(fresh_sqlite_url)
    counter = iter(range(10_000))

    @settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
    @given(st.lists(st.integers(0, 3), max_size=9), st.integers(1, 4), st.booleans())
    def pages_join(times: list[int], limit: int, newest_first: bool) -> None:
        asyncio.run_coroutine_threadsafe(check(times, limit, newest_first), loop).result()

    async def check(times: list[int], limit: int, newest_first: bool) -> None:
        tenant = f"ten_{next(counter)}"
        entries = [completion(n, tenant_id=tenant, created_at=float(at)) for n, at in enumerate(times)]
        async with store.transaction() as work:
            for one in entries:
                await work.stored_completions.add(one, [])
        seen: list[StoredCompletion] = []
        async with store.reading() as work:
            while page := await work.stored_completions.list(
                tenant, limit=limit, newest_first=newest_first, after=seen[-1].id if seen else None
            ):
                seen += page
        assert seen == sorted(entries, key=lambda one: (one.created_at, one.id), reverse=newest_first)

    loop = asyncio.get_running_loop()
    await asyncio.to_thread(pages_join)


async def test_feedback_is_added_once_for_a_key(store: Store) -> None:
    """A second one under the same idempotency key is the first; without a key, or for another tenant, it is new."""
    first = feedback(idempotency_key="once")
    async with store.transaction() as work:
        assert await work.feedback.add(first) == first
        assert await work.feedback.add(feedback(idempotency_key="once", value=False)) == first
        for other in (feedback(), feedback(), feedback(tenant_id="ten_b", idempotency_key="once")):
            assert await work.feedback.add(other) == other
        assert len(await work.feedback.list("ten_a")) == 3
        assert len(await work.feedback.list("ten_b")) == 1


async def test_feedback_is_filtered_and_paged(store: Store) -> None:
    """Every filter restricts, and pages joined by ``after`` are the whole, oldest first, even at equal times."""
    entries = [
        feedback(id=f"fb_{n}", created_at=float(n // 2), episode_id=f"ep_{n % 2}", turn_id=f"turn_{n}" if n else None)
        for n in range(6)
    ]
    async with store.transaction() as work:
        for one in reversed(entries):
            await work.feedback.add(one)
    async with store.reading() as work:
        assert await work.feedback.list("ten_a") == entries
        assert await work.feedback.list("ten_a", episode_id="ep_1") == entries[1::2]
        assert await work.feedback.list("ten_a", turn_id="turn_3") == [entries[3]]
        assert await work.feedback.list("ten_a", name="bad") == []
        assert await work.feedback.list("ten_b") == []
        seen: list[Feedback] = []
        while page := await work.feedback.list("ten_a", limit=4, after=seen[-1].id if seen else None):
            seen += page
        assert seen == entries
        assert await work.feedback.list("ten_a", after="fb_absent") == []


async def test_a_replaced_turn_gives_up_its_blob(store: Store) -> None:
    """The row is replaced; the blob that it no longer names is reported, and one that it still names is not."""
    large = nouns.turn(prompt_ids=tuple(range(100_000)))
    small = nouns.turn()
    key = f"turns/{large.episode_id}/{large.id}"
    async with store.transaction() as work:
        await work.turns.add_many([large, small])
        assert await work.turns.replace(large.model_copy(update={"stored": True})) is None
        assert (await work.turns.get(large.id)).stored
        assert await work.turns.replace(large.without_content()) == key
        assert await work.turns.get(large.id) == large.without_content()
        assert await work.turns.replace(small.without_content()) is None
        with pytest.raises(NotFound):
            await work.turns.replace(nouns.turn())
        assert await work.turns.episode_of(small.id, tenant_id="ten_a") == "ep_a"
        assert await work.turns.episode_of(small.id, tenant_id="ten_b") is None
        assert await work.turns.episode_of("turn_absent", tenant_id="ten_a") is None
