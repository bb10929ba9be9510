"""What is kept of stored responses, and what their deletion erases."""

from collections.abc import AsyncIterator

import openai
import pytest

from core.turn import Turn
from gateway.responses_api import archive
from store.store import Store
from tests.gateway_harness import served
from tests.responses_fakes import FakeHostedTools, FakeInference, Said, responses_app
from tests.responses_harness import CODE_CALL, CODE_TOOL, Api


@pytest.fixture
async def opened(fresh_sqlite_url, open_store) -> Store:
    """The store that responses are kept in."""
    return await open_store(fresh_sqlite_url)


@pytest.fixture
async def api(opened) -> AsyncIterator[Api]:
    """The Responses API on SQLite."""
    inference, hosted = FakeInference(), FakeHostedTools()
    async with served(responses_app(inference, opened, hosted)) as url:
        api = Api(url, inference, hosted)
        async with api.client:
            yield api


async def turns_of(store: Store, *turn_ids: str) -> list[Turn]:
    async with store.reading() as work:
        return [await work.turns.get(turn_id) for turn_id in turn_ids]


@pytest.mark.parametrize(("untrained", "kept"), [(set(), True), ({1}, False), ({2}, False)])
@pytest.mark.parametrize("key", [{}, {"idempotency-key": "k"}])
async def test_an_episode_without_consent_leaves_nothing_behind(api: Api, opened: Store, untrained, kept, key):
    """Where the Episode withdraws consent for any model call of a response, deleting it erases all its Turns."""
    api.inference.untrained = untrained
    api.say(Said(calls=[CODE_CALL]), Said(text="1"))
    made = await api.client.responses.create(model="coder", input="secret", tools=[CODE_TOOL], extra_headers=key)
    assert await api.inference.write(opened)
    await api.client.responses.delete(made.id)
    turns = await turns_of(opened, "turn_1", "turn_2")
    assert [turn.content_kept for turn in turns] == [kept, kept]
    assert not any(turn.stored for turn in turns)


async def test_a_replayed_answer_is_not_taken_to_be_granted(api: Api, opened: Store):
    """What the first answer was recorded with is not known: deleting erases what was said."""
    api.inference.replays = True
    api.say(Said(text="Four."))
    made = await api.client.responses.create(model="coder", input="secret")
    await api.client.responses.delete(made.id)
    (turn,) = await turns_of(opened, "turn_1")
    assert not turn.content_kept


async def test_what_is_not_durable_yet_is_not_deleted_yet(api: Api, opened: Store):
    """Until a response's Turns are in the store deleting it is 503, and nothing is forgotten; then it erases them."""
    api.inference.untrained = {1}
    api.say(Said(text="Four."))
    made = await api.client.responses.create(model="coder", input="secret")
    for state in ("stuck", "lost"):
        setattr(api.inference, state, True)
        with pytest.raises(openai.InternalServerError) as refused:
            await api.client.responses.delete(made.id)
        assert refused.value.status_code == 503
        assert int(refused.value.response.headers["retry-after"]) >= 1
        assert await api.client.responses.retrieve(made.id) == made
        setattr(api.inference, state, False)
    await api.client.responses.delete(made.id)
    (turn,) = await turns_of(opened, "turn_1")
    assert not turn.content_kept


async def test_lost_turns_do_not_hold_up_a_deletion_for_ever(api: Api, monkeypatch):
    """What is not in the store long after the answer will not come, and the response can be deleted."""
    monkeypatch.setattr(archive, "LATELY_SECONDS", 0.0)
    api.inference.lost = True
    api.say(Said(text="Four."))
    made = await api.client.responses.create(model="coder", input="x")
    await api.client.responses.delete(made.id)
    with pytest.raises(openai.NotFoundError):
        await api.client.responses.retrieve(made.id)
