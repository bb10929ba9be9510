"""A stored completion from request to retrieval, through the whole gateway and a fake engine."""

import pytest

from core.access import Scope
from tests.gateway_harness import POLICY, QUESTION, Harness, running_gateway


@pytest.fixture
async def harness(fresh_sqlite_url, open_store, make_config):
    """A gateway on SQLite with one engine."""
    async with running_gateway(await open_store(fresh_sqlite_url), make_config) as harness:
        await harness.add_engine()
        yield harness


async def test_a_whole_answer_is_retrieved_as_it_was_given(harness: Harness):
    """The stored completion has the answer's id, choices and usage, and the request's metadata."""
    completions = harness.client().chat.completions
    given = await completions.create(
        model=POLICY, messages=QUESTION, max_tokens=5, n=2, store=True, metadata={"a": "b"}
    )
    assert await harness.gateway.recorder.flush(10.0)
    found = await completions.retrieve(given.id)
    assert found.choices == given.choices
    assert (found.usage, found.model, found.created) == (given.usage, given.model, given.created)
    assert found.metadata == {"a": "b"}
    assert [one.id async for one in completions.list()] == [given.id]
    assert [one.content async for one in completions.messages.list(given.id)] == [QUESTION[0]["content"]]


async def test_a_stream_is_retrieved_whole(harness: Harness):
    """The stored completion has the text of all chunks and the usage that the client did not ask for."""
    completions = harness.client().chat.completions
    text = ""
    async for chunk in await completions.create(
        model=POLICY, messages=QUESTION, max_tokens=5, store=True, stream=True
    ):
        completion_id, text = chunk.id, text + (chunk.choices[0].delta.content or "")
    assert await harness.gateway.recorder.flush(10.0)
    found = await completions.retrieve(completion_id)
    assert found.choices[0].message.content == text
    assert found.usage.completion_tokens > 0
    assert (await completions.delete(completion_id)).deleted
    assert (await completions.list()).data == []


async def test_nothing_is_stored_unasked(harness: Harness):
    """Without ``store`` a completion cannot be retrieved, with consent or without."""
    for key in ("user", "trainer"):
        await harness.client(key).chat.completions.create(model=POLICY, messages=QUESTION, max_tokens=5)
    assert await harness.gateway.recorder.flush(10.0)
    assert (await harness.client().chat.completions.list()).data == []


async def test_an_episode_from_opening_to_reward(harness: Harness):
    """Turns asked under an opened Episode are its Turns once it is closed, and take Feedback; then it takes none."""
    await harness.add_key("rater", scopes={Scope.FEEDBACK})
    opened = await harness.post("/v1/episodes", {"model": POLICY}, "trainer")
    episode_id = (await opened.json())["id"]
    answered = await harness.post(
        "/v1/chat/completions",
        {"model": POLICY, "messages": QUESTION, "max_tokens": 5},
        "trainer",
        **{"x-hone-episode-id": episode_id},
    )
    assert answered.headers["x-hone-episode-id"] == episode_id
    turn_id = answered.headers["x-hone-turn-id"]
    said = await harness.post("/v1/feedback", {"turn_id": turn_id, "name": "good", "value": True}, "rater")
    assert said.status == 201
    closed = await harness.post(f"/v1/episodes/{episode_id}/close", {"reward": 1.0}, "trainer")
    assert (await closed.json())["status"] == "scored"
    late = await harness.post(
        "/v1/chat/completions",
        {"model": POLICY, "messages": QUESTION, "max_tokens": 5},
        "trainer",
        **{"x-hone-episode-id": episode_id},
    )
    assert late.status == 409
    async with harness.store.reading() as work:
        episode = await work.episodes.get(episode_id)
    assert (episode.turn_ids, episode.trainable, episode.reward) == ((turn_id,), True, 1.0)
