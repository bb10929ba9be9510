"""Stored completions through the official client, on SQLite and on PostgreSQL."""

import openai
import pytest

from core.access import Scope, Tenant
from core.errors import NotFound
from core.turn import Timing
from tests.client_api_harness import POLICY, ClientApi, captured, running_client_api, turns_of


@pytest.fixture
async def api(store, make_config):
    """The client routes on each database in turn."""
    async with running_client_api(store, make_config) as api:
        yield api


async def keep(api: ClientApi, number: int, **fields: object) -> None:
    call = captured(number, **fields)
    await api.keep(call, turns_of(call))


async def test_a_stored_completion_comes_back_as_it_was(api: ClientApi):
    """Retrieving gives the client's own answer: public name, no added fields, usage, metadata."""
    await keep(api, 1, request={"metadata": {"team": "red"}, "seed": 7})
    found = await api.client().chat.completions.retrieve("chatcmpl-0001")
    assert found.id == "chatcmpl-0001"
    assert found.model == "coder@1"
    assert found.created == 1_700_000_001
    assert found.system_fingerprint == "fp_1"
    assert found.usage.total_tokens == 4
    assert found.choices[0].message.content == "4"
    assert found.choices[0].logprobs is None
    assert found.metadata == {"team": "red"}
    extra = found.model_extra
    assert extra["seed"] == 7
    assert extra["prompt_token_ids"] is None
    assert found.choices[0].model_extra["token_ids"] is None


async def test_lists_page_in_order_and_filter(api: ClientApi):
    """Automatic paging gives all in order of time; model and metadata restrict; both orders work."""
    for number in range(7):
        labels = {"even": str(number % 2 == 0), "n": str(number)}
        await keep(api, number, request={"metadata": labels, "model": POLICY if number < 5 else "base"})
    every = [f"chatcmpl-{number:04}" for number in range(7)]
    completions = api.client().chat.completions
    assert [one.id async for one in completions.list(limit=3)] == every
    assert [one.id async for one in completions.list(limit=2, order="desc")] == every[::-1]
    assert [one.id async for one in completions.list(metadata={"even": "True"})] == every[::2]
    assert [one.id async for one in completions.list(metadata={"even": "True", "n": "4"})] == [every[4]]
    assert [one.id async for one in completions.list(model=POLICY)] == every[:5]
    assert [one.id async for one in completions.list(model="coder@1")] == every
    assert [one.id async for one in completions.list(model="gone")] == []
    page = await completions.list(limit=3, after=every[2])
    assert [one.id for one in page.data] == every[3:6]
    assert page.has_more
    assert (await completions.list(after="chatcmpl-none")).data == []


async def test_messages_are_what_was_asked(api: ClientApi):
    """The request's messages come in pages with ids of their own; parts stand apart from text."""
    call = captured(1)
    parts = [{"type": "text", "text": "and?"}]
    asked = ({"role": "system", "content": "short"}, {"role": "user", "content": parts})
    await api.keep(call, turns_of(call, messages=asked))
    messages = api.client().chat.completions.messages
    found = [one async for one in messages.list("chatcmpl-0001", limit=1)]
    assert [one.id for one in found] == ["chatcmpl-0001-0", "chatcmpl-0001-1"]
    assert found[0].content == "short"
    assert found[1].content is None
    assert found[1].content_parts[0].text == "and?"
    newest = await messages.list("chatcmpl-0001", order="desc")
    assert [one.id for one in newest.data] == ["chatcmpl-0001-1", "chatcmpl-0001-0"]


async def test_labels_are_replaced(api: ClientApi):
    """An update replaces all metadata, and filters follow it."""
    await keep(api, 1, request={"metadata": {"team": "red", "old": "1"}})
    completions = api.client().chat.completions
    changed = await completions.update("chatcmpl-0001", metadata={"team": "blue"})
    assert changed.metadata == {"team": "blue"}
    assert (await completions.list(metadata={"old": "1"})).data == []
    assert len((await completions.list(metadata={"team": "blue"})).data) == 1
    assert (await completions.update("chatcmpl-0001", metadata=None)).metadata == {}
    with pytest.raises(openai.BadRequestError, match="at most 16"):
        await completions.update("chatcmpl-0001", metadata={str(n): "x" for n in range(17)})


async def test_deleting_erases_what_was_said(api: ClientApi):
    """Without consent a deleted completion leaves only counters of its Turn; its blob goes too."""
    call = captured(1)
    [turn] = turns_of(call)
    large = turn.model_copy(update={"prompt_ids": tuple(range(100_000))})
    await api.keep(call, [large])
    key = f"turns/{turn.episode_id}/{turn.id}"
    assert await api.store.blobs.exists(key)
    gone = await api.client().chat.completions.delete("chatcmpl-0001")
    assert (gone.id, gone.deleted, gone.object) == ("chatcmpl-0001", True, "chat.completion.deleted")
    with pytest.raises(openai.NotFoundError):
        await api.client().chat.completions.retrieve("chatcmpl-0001")
    with pytest.raises(openai.NotFoundError):
        await api.client().chat.completions.messages.list("chatcmpl-0001")
    async with api.store.reading() as work:
        left = await work.turns.get(turn.id)
    assert left == turn.without_content()
    assert not await api.store.blobs.exists(key)


async def test_deleting_keeps_what_may_train(api: ClientApi):
    """With consent the Turn stays whole and is marked as no longer stored."""
    call = captured(1, consent=True)
    [turn] = turns_of(call)
    await api.keep(call, [turn])
    await api.client().chat.completions.delete("chatcmpl-0001")
    async with api.store.reading() as work:
        assert await work.turns.get(turn.id) == turn.model_copy(update={"stored": False})


async def test_tenants_see_only_their_own(api: ClientApi):
    """Another tenant's completion is not found by any route, and the same id may exist for both."""
    await keep(api, 1)
    other = api.client("other").chat.completions
    for attempt in (
        other.retrieve("chatcmpl-0001"),
        other.update("chatcmpl-0001", metadata={}),
        other.delete("chatcmpl-0001"),
        other.messages.list("chatcmpl-0001"),
    ):
        with pytest.raises(openai.NotFoundError):
            await attempt
    assert (await other.list()).data == []
    call = captured(1, tenant_id="ten_b", turn_ids=["turn_b"], public_model="theirs")
    await api.keep(call, turns_of(call))
    assert (await other.retrieve("chatcmpl-0001")).model == "theirs"
    assert (await api.client().chat.completions.retrieve("chatcmpl-0001")).model == "coder@1"
    await other.delete("chatcmpl-0001")
    assert len((await api.client().chat.completions.list()).data) == 1


async def test_only_inference_keys_may_ask(api: ClientApi):
    """A key for feedback or administration gets 403, no key 401."""
    for key in ("rater", "admin"):
        with pytest.raises(openai.PermissionDeniedError):
            await api.client(key).chat.completions.list()
    with pytest.raises(openai.AuthenticationError):
        await api.client("nobody").chat.completions.list()


async def test_the_hook_may_run_twice(api: ClientApi):
    """Writing the same record again changes nothing, also not labels that were set in between."""
    await keep(api, 1)
    await api.client().chat.completions.update("chatcmpl-0001", metadata={"a": "b"})
    await keep(api, 1)
    [found] = (await api.client().chat.completions.list()).data
    assert found.metadata == {"a": "b"}


async def test_what_cannot_be_stored_fails_nothing(api: ClientApi):
    """An answer without an id, a broken call and one without store leave the Turns written and nothing stored."""
    await keep(api, 1, payloads=[{"choices": []}])
    await keep(api, 2, broken="cancelled")
    await keep(api, 3, stored=False)
    await keep(api, 4, surface="responses")
    assert (await api.client().chat.completions.list()).data == []
    async with api.store.reading() as work:
        assert len(await work.turns.existing([f"turn_{n:04}" for n in range(1, 5)])) == 4
        with pytest.raises(NotFound):
            await work.stored_completions.get("ten_a", "chatcmpl-0001")


async def test_odd_ids_and_filters_are_the_callers_fault(api: ClientApi):
    """NUL characters and oversized values are refused with 400 on both databases."""
    for path in ("/v1/chat/completions/a%00b", "/v1/chat/completions?after=%00", f"/v1/chat/completions/{'x' * 300}"):
        status, body = await api.call("GET", path)
        assert status == 400, (path, body)
    status, body = await api.call("GET", "/v1/chat/completions?metadata[a]=%00")
    assert (status, body["error"]["param"]) == (400, "metadata")
    status, _ = await api.call("GET", "/v1/chat/completions?limit=0")
    assert status == 400


async def test_a_repeated_request_stores_no_second_completion(api: ClientApi):
    """A later answer under an idempotency key has the first one's Turns, which say something else: it is not kept."""
    for number, request_id in ((1, "req_first"), (2, "req_again")):
        call = captured(number, turn_ids=["turn_x"], idempotency_key="k", request_id=request_id)
        timing = Timing(started_at=call.started_at, total_seconds=call.total_seconds)
        turns = turns_of(call, request_id=request_id, timing=timing, idempotency_key="k")
        for _ in range(2):
            await api.keep(call, turns)
    assert [one.id async for one in api.client().chat.completions.list()] == ["chatcmpl-0001"]


async def test_labels_are_redacted_where_the_tenant_asks(api: ClientApi):
    """Metadata that is given later is kept without personal data."""
    async with api.store.transaction() as work:
        await work.tenants.add(Tenant(id="ten_r", name="R", redact=True))
    await api.add_key("careful", {Scope.INFERENCE}, tenant="ten_r")
    await keep(api, 1, tenant_id="ten_r", redact=True)
    completions = api.client("careful").chat.completions
    changed = await completions.update("chatcmpl-0001", metadata={"who": "jane@example.com"})
    assert changed.metadata == {"who": "<EMAIL_ADDRESS>"}
    assert (await completions.retrieve("chatcmpl-0001")).metadata == changed.metadata
