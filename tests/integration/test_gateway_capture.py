"""What the gateway records: exact tokens, consent, Episodes, idempotency; and nothing lost in a store outage."""

import asyncio
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
from prometheus_client import CollectorRegistry

from core import ids
from core.episode import Episode, EpisodeStatus
from core.errors import StoreError
from core.policy import ServingStatus
from core.trajectory import build_trajectory
from gateway.app import create_app
from gateway.capture.journal import journal_root
from serving.engines import fake_model
from serving.engines.fake import _Refusal
from store.events import VERSIONS
from tests.gateway_harness import BASE, POLICY, QUESTION, TENANT, Harness, hone_headers, running_gateway, served

CHAT = {"model": POLICY, "messages": QUESTION, "max_tokens": 8, "seed": 1}
PATHS = {"/v1/chat/completions": CHAT, "/v1/completions": {"model": POLICY, "prompt": "say", "max_tokens": 8}}


@pytest.fixture
async def harness(fresh_sqlite_url, open_store, make_config):
    """A gateway on SQLite with one engine."""
    async with running_gateway(await open_store(fresh_sqlite_url), make_config) as harness:
        await harness.add_engine()
        yield harness


async def ask(harness: Harness, path: str = "/v1/chat/completions", body=None, key: str = "trainer", **headers):
    """One request; its headers."""
    response = await harness.post(path, CHAT if body is None else body, key, **headers)
    assert response.status == 200, await response.text()
    return hone_headers(response)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", list(PATHS))
async def test_a_turn_holds_exactly_what_the_engine_sampled(harness: Harness, path, stream):
    """Prompt ids, sampled ids and log-probs equal the engine's own report, whole or streamed."""
    body = PATHS[path] | {"temperature": 0.7}
    headers = await ask(harness, path, body | {"stream": stream})
    wanted = {"return_token_ids": True, "logprobs": True if "chat" in path else 0, "model": BASE}
    direct = await (await harness.http.post(harness.engine.url + path, json=body | wanted)).json()
    choice = direct["choices"][0]
    prompt_ids = direct.get("prompt_token_ids") or choice["prompt_token_ids"]
    logprobs = choice["logprobs"].get("token_logprobs") or [e["logprob"] for e in choice["logprobs"]["content"]]
    (turn,) = await harness.turns(headers["episode-id"])
    assert turn.prompt_ids == tuple(prompt_ids)
    assert turn.output_ids == tuple(choice["token_ids"])
    assert turn.output_logprobs == tuple(logprobs)
    assert turn.exact
    assert turn.finish_reason == choice["finish_reason"]
    assert turn.response["content"] == choice.get("text", choice.get("message", {}).get("content"))
    assert turn.usage.completion_tokens == len(choice["token_ids"])
    assert turn.sampling["temperature"] == 0.7


async def test_consent_comes_from_the_key_and_a_header_only_narrows_it(harness: Harness):
    """A key without the grant never trains, a granted one does unless the request says no."""
    cases = [("user", {}, False), ("user", {"x-hone-train": "true"}, False)]
    cases += [("trainer", {}, True), ("trainer", {"x-hone-train": "False"}, False)]
    for key, headers, trainable in cases:
        found = await ask(harness, key=key, **headers)
        (turn,) = await harness.turns(found["episode-id"])
        async with harness.store.reading() as work:
            episode = await work.episodes.get(found["episode-id"])
        assert (turn.trainable, episode.trainable) == (trainable, trainable)


async def test_an_echoing_completion_keeps_its_text_and_never_trains(harness: Harness):
    """Where capture would change the answer nothing is injected, and the Turn says that it is not exact."""
    body = {"model": POLICY, "prompt": "say", "max_tokens": 4, "echo": True}
    headers = await ask(harness, "/v1/completions", body, key="trainer")
    (turn,) = await harness.turns(headers["episode-id"])
    assert "return_token_ids" not in harness.engine.requests[-1]
    assert not turn.exact
    assert not turn.trainable
    assert harness.count("hone_capture_failures_total", cause="inexact") == 1


async def test_an_episode_is_continued_by_its_id(harness: Harness):
    """Turns with the Episode's id are one Episode in order, and their tokens form one Branch."""
    first = await ask(harness)
    episode_id = first["episode-id"]
    (turn,) = await harness.turns(episode_id)
    messages = [*QUESTION, turn.response, {"role": "user", "content": "and 3?"}]
    again = await ask(harness, body=CHAT | {"messages": messages}, **{"x-hone-episode-id": episode_id})
    assert again["episode-id"] == episode_id
    turns = await harness.turns(episode_id)
    assert [turn.index for turn in turns] == [0, 1]
    trajectory = build_trajectory(episode_id, turns)
    assert sum(len(branch.turns) for branch in trajectory.branches) == 2


async def test_an_episode_belongs_to_its_tenant(harness: Harness):
    """Another tenant's Episode, and one that does not exist, are both 404 and get no Turn."""
    mine = await ask(harness)
    for key, episode_id in (("other", mine["episode-id"]), ("user", "ep_nothing")):
        response = await harness.post("/v1/chat/completions", CHAT, key, **{"x-hone-episode-id": episode_id})
        assert response.status == 404
        assert (await response.json())["error"]["param"] == "x-hone-episode-id"
    assert len(await harness.turns(mine["episode-id"])) == 1


async def test_an_ended_episode_takes_no_turn(harness: Harness):
    """A Turn cannot slip into an Episode that was finished already."""
    episode = Episode(id=ids.new_id(ids.EPISODE), tenant_id=TENANT, policy=POLICY)
    async with harness.store.transaction() as work:
        await work.episodes.add(episode.model_copy(update={"status": EpisodeStatus.FINISHED}))
    response = await harness.post("/v1/chat/completions", CHAT, **{"x-hone-episode-id": episode.id})
    assert response.status == 409


async def test_a_conversation_that_expired_goes_on_as_a_new_episode(harness: Harness):
    """A client that comes back after its Episode expired gets its answer, in an Episode of its own."""
    expired = Episode(id=ids.new_id(ids.EPISODE), tenant_id=TENANT, status=EpisodeStatus.EXPIRED, policy=POLICY)
    async with harness.store.transaction() as work:
        await work.episodes.add(expired)
    headers = await ask(harness, **{"x-hone-episode-id": expired.id})
    assert headers["episode-id"] != expired.id
    (turn,) = await harness.turns(headers["episode-id"])
    assert turn.index == 0


async def test_an_episode_stays_on_the_version_it_began_with(harness: Harness):
    """After a promotion, Turns of an Episode in flight go on with the old version, new Episodes get the new one."""
    old = await ask(harness)
    await harness.mint()
    await harness.deploy("dep_a", versions=(1,))
    status, _ = await harness.admin(
        "POST", f"/policies/{POLICY}/promote", {"version": 1, "skip": ["evaluation", "shadow", "ramp"], "reason": "t"}
    )
    assert status == 200
    assert (await ask(harness))["policy-version"] == "1"
    assert (await ask(harness, **{"x-hone-episode-id": old["episode-id"]}))["policy-version"] == "0"
    pinned = await ask(harness, body=CHAT | {"model": "coder@1"}, **{"x-hone-episode-id": old["episode-id"]})
    assert pinned["policy-version"] == "1"
    assert [turn.version for turn in await harness.turns(old["episode-id"])] == [0, 0, 1]


async def test_a_conversation_outlives_its_version(harness: Harness):
    """When no replica holds the version any more, an unpinned conversation goes on with the promoted one."""
    version = await harness.mint()
    await harness.deploy("dep_a", versions=(1,))
    begun = await ask(harness, body=CHAT | {"model": "coder@1"})
    assert (await ask(harness, **{"x-hone-episode-id": begun["episode-id"]}))["policy-version"] == "1"
    async with harness.store.transaction() as work:
        for status in (ServingStatus.DRAINING, ServingStatus.UNLOADED):
            await work.versions.update(version.model_copy(update={"serving": status}))
    await harness.deploy("dep_a")
    assert (await ask(harness, **{"x-hone-episode-id": begun["episode-id"]}))["policy-version"] == "0"
    response = await harness.post("/v1/chat/completions", CHAT | {"model": "coder@1"})
    assert response.status == 409
    assert (await response.json())["error"]["code"] == "version_not_served"


async def test_a_pinned_episode_is_served_by_its_version_or_not_at_all(harness: Harness):
    """An Episode made for a version gets it under the unpinned name, and 409 where nobody holds it."""
    version = await harness.mint()
    episode = Episode(id=ids.new_id(ids.EPISODE), tenant_id=TENANT, policy=POLICY, version=version.version)
    async with harness.store.transaction() as work:
        await work.episodes.add(episode)
    response = await harness.post("/v1/chat/completions", CHAT, **{"x-hone-episode-id": episode.id})
    assert response.status == 409
    await harness.deploy("dep_a", versions=(1,))
    assert (await ask(harness, **{"x-hone-episode-id": episode.id}))["policy-version"] == "1"


async def test_a_repeated_request_adds_no_second_turn(harness: Harness):
    """The same idempotency key names the same Episode and Turn, and the store keeps one."""
    first = await ask(harness, **{"idempotency-key": "once"})
    second = await ask(harness, **{"idempotency-key": "once"})
    assert first | {"replayed": "true"} == second
    assert len(await harness.turns(first["episode-id"])) == 1
    other = await ask(harness, key="other", **{"idempotency-key": "once"})
    assert other["episode-id"] != first["episode-id"]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_repeated_request_waits_for_the_one_under_way(harness: Harness, stream):
    """Requests at once under one key are answered with the same Turn, and leave one Turn and one Episode."""
    harness.engine.token_delay_seconds = 0.02
    body = CHAT | {"stream": stream}
    answers = await asyncio.gather(*(ask(harness, body=body, **{"idempotency-key": "once"}) for _ in range(3)))
    answers.append(await ask(harness, body=body, **{"idempotency-key": "once"}))
    assert sorted(answer.pop("replayed", "false") for answer in answers) == ["false", "true", "true", "true"]
    assert all(answer == answers[0] for answer in answers)
    assert [turn.id for turn in await harness.turns(answers[0]["episode-id"])] == [answers[0]["turn-id"]]
    async with harness.store.reading() as work:
        assert len(await work.episodes.list(policy=POLICY)) == 1


async def test_a_failed_request_leaves_its_key_to_the_next(harness: Harness):
    """When the first of two requests under one key fails the second is answered and recorded."""
    harness.engine.fail_requests = 3
    posts = (harness.post("/v1/chat/completions", CHAT, **{"idempotency-key": "once"}) for _ in range(2))
    responses = await asyncio.gather(*posts)
    assert sorted(response.status for response in responses) == [200, 502]
    (answered,) = (hone_headers(response) for response in responses if response.status == 200)
    assert len(await harness.turns(answered["episode-id"])) == 1
    assert not harness.gateway.answers._underway


@pytest.mark.parametrize(
    ("value", "trains"),
    [(None, True), ("true", True), ("1", True), ("false", False), ("0", False), ("no", False), ("", False)],
)
async def test_only_a_clear_yes_keeps_consent(harness: Harness, value, trains):
    """``x-hone-train`` absent, ``true`` or ``1`` leaves the key's consent; anything else withdraws it."""
    headers = await ask(harness, key="trainer", **({} if value is None else {"x-hone-train": value}))
    (turn,) = await harness.turns(headers["episode-id"])
    assert turn.trainable is trains


async def test_a_version_refused_between_readings_is_explained(harness: Harness):
    """Minted and refused before the gateway looked: 409 with the fleet's reason soon after the event, not 404."""
    async with harness.store.transaction() as work:
        version = await work.versions.mint(POLICY, kind="lora", origin="grpo", parent_version=0, checkpoint_id=None)
        refused = {"serving": ServingStatus.REFUSED, "serving_reason": "it failed its probe"}
        await work.versions.update(version.model_copy(update=refused))
    await harness.store.events.publish(VERSIONS)
    async with asyncio.timeout(10.0):
        while (await harness.post("/v1/chat/completions", CHAT | {"model": "coder@1"})).status == 404:
            await asyncio.sleep(0.05)
    response = await harness.post("/v1/chat/completions", CHAT | {"model": "coder@1"})
    error = (await response.json())["error"]
    assert (response.status, error["code"]) == (409, "version_not_served")
    assert "it failed its probe" in error["message"]


@pytest.mark.parametrize("stream", [False, True])
async def test_without_consent_only_counters_are_kept(harness: Harness, stream):
    """Neither in the store nor in the journal is there a word of what was said; temperature and limits may stay."""
    secret = [{"role": "user", "content": "the launch code is 0000"}]
    body = CHAT | {"messages": secret, "temperature": 0.5, "stop": ["code"], "stream": stream}
    headers = await ask(harness, body=body, key="user")
    written = b"".join(path.read_bytes() for path in journal_root(harness.config).rglob("*.journal"))
    assert headers["turn-id"].encode() in written
    assert b"launch" not in written
    (turn,) = await harness.turns(headers["episode-id"])
    assert (turn.content_kept, turn.exact, turn.trainable) == (False, False, False)
    assert (turn.messages, turn.response, turn.prompt_ids, turn.output_ids) == ((), {}, (), ())
    assert turn.sampling == {"temperature": 0.5, "max_tokens": 8, "seed": 1}
    assert harness.count("hone_capture_failures_total", cause="inexact") == 0


@pytest.mark.parametrize("failure", [StoreError("down"), OSError("down"), RuntimeError("down")])
async def test_a_store_outage_loses_nothing(harness: Harness, monkeypatch, failure):
    """While every transaction fails, answers and streams go on; afterwards every Turn is durable."""
    away = True
    healthy_write, healthy_read = harness.store.transaction, harness.store.reading
    await ask(harness)
    assert await harness.gateway.recorder.flush(5.0)

    def failing(healthy):
        @asynccontextmanager
        async def transaction():
            if away:
                raise failure
            async with healthy() as work:
                yield work

        return transaction

    monkeypatch.setattr(harness.store, "transaction", failing(healthy_write))
    monkeypatch.setattr(harness.store, "reading", failing(healthy_read))
    answers = await asyncio.gather(*(ask(harness, body=CHAT | {"stream": i % 2 == 0, "seed": i}) for i in range(20)))
    continued = await ask(harness, **{"x-hone-episode-id": answers[0]["episode-id"]})
    await asyncio.sleep(0.5)
    assert harness.gateway.recorder.buffered == 21
    assert harness.gateway.recorder.last_error
    away = False
    assert continued["episode-id"] == answers[0]["episode-id"]
    assert len(await harness.turns(answers[0]["episode-id"])) == 2
    async with harness.store.reading() as work:
        wanted = {answer["turn-id"] for answer in answers}
        assert await work.turns.existing(wanted) == wanted
        assert (await work.episodes.get(answers[1]["episode-id"])).policy == POLICY
    assert harness.gateway.recorder.lost == 0


async def test_a_full_journal_loses_turns_and_counts_them_but_no_answer(harness: Harness, monkeypatch):
    """Beyond its bound the recorder drops and counts; clients notice nothing, and what was taken is written later."""
    recorder, healthy = harness.gateway.recorder, harness.store.transaction

    @asynccontextmanager
    async def away():
        raise StoreError("down")
        yield

    monkeypatch.setattr(harness.store, "transaction", away)
    kept = [await ask(harness) for _ in range(2)]
    monkeypatch.setattr(recorder._journal, "_capacity", recorder.buffered_bytes)
    for _ in range(3):
        await ask(harness)
    assert (recorder.lost, recorder.buffered) == (3, 2)
    assert harness.count("hone_lost_turns_total", cause="journal_full") == 3
    monkeypatch.setattr(harness.store, "transaction", healthy)
    for answer in kept:
        assert [turn.id for turn in await harness.turns(answer["episode-id"])] == [answer["turn-id"]]
    assert recorder.buffered == 0


async def test_one_unacceptable_turn_does_not_hold_up_the_others(harness: Harness, monkeypatch):
    """A Turn that a healthy store refuses again and again is put aside and counted; the rest is written."""
    first = await ask(harness)
    assert await harness.gateway.recorder.flush(5.0)
    healthy = harness.store.transaction

    @asynccontextmanager
    async def refusing():
        async with healthy() as work:
            add_many = work.turns.add_many

            async def picky(turns):
                if any(turn.request_id == "poison" for turn in turns):
                    raise ValueError("unacceptable")
                return await add_many(turns)

            work.turns.add_many = picky
            yield work

    monkeypatch.setattr(harness.store, "transaction", refusing)
    bad = await ask(harness, **{"x-hone-episode-id": first["episode-id"], "x-request-id": "poison"})
    good = await ask(harness)
    assert len(await harness.turns(good["episode-id"])) == 1
    assert len(await harness.turns(first["episode-id"])) == 1
    assert harness.count("hone_lost_turns_total", cause="rejected") == 1
    (aside,) = (journal_root(harness.config) / "rejected").iterdir()
    assert aside.name == f"{bad['turn-id']}.call"


async def test_a_stopped_gateway_has_written_everything(fresh_sqlite_url, open_store, make_config):
    """Stopping drains the recorder: what was answered just before is durable."""
    store = await open_store(fresh_sqlite_url)
    async with running_gateway(store, make_config, {"gateway.recorder_flush_seconds": 5.0}) as harness:
        await harness.add_engine()
        answers = [await ask(harness) for _ in range(3)]
    async with store.reading() as work:
        wanted = {answer["turn-id"] for answer in answers}
        assert await work.turns.existing(wanted) == wanted


async def test_a_failing_capture_never_shows_in_the_answer(harness: Harness, monkeypatch):
    """When handing over to the recorder crashes the client still gets its answer, and the failure is counted."""

    def crash(*_):
        raise RuntimeError("broken recorder")

    monkeypatch.setattr(harness.gateway.recorder, "record", crash)
    await ask(harness)
    await ask(harness, body=CHAT | {"stream": True})
    assert harness.count("hone_capture_failures_total", cause="hand_over") == 2


async def test_an_engine_that_refuses_the_added_fields_is_asked_again_without_them(harness: Harness, monkeypatch):
    """Capture breaks no request: an engine that knows no ``return_token_ids`` answers, and the Turn is not exact."""
    generate = harness.engine._generate

    def old_engine(body, *, chat):
        if "return_token_ids" in body:
            raise _Refusal(400, "return_token_ids: extra fields not permitted", "BadRequestError")
        return generate(body, chat=chat)

    monkeypatch.setattr(harness.engine, "_generate", old_engine)
    headers = await ask(harness)
    (turn,) = await harness.turns(headers["episode-id"])
    assert not turn.exact
    assert harness.count("hone_capture_failures_total", cause="engine_refused_fields") == 1


async def test_two_gateways_on_one_postgres_agree_on_an_episode(fresh_postgres_url, open_store, make_config):
    """A conversation that changes gateways keeps its version and its order, also straight after its first Turn."""
    overrides = {"store.url": fresh_postgres_url}
    store = await open_store(fresh_postgres_url)
    async with running_gateway(store, make_config, overrides) as first:
        await first.add_engine()
        other = create_app(first.config, store, registry=CollectorRegistry())
        async with served(other) as url:
            begun = await ask(first)
            harness = replace(first, app=other, url=url)
            carried = {"x-hone-episode-id": begun["episode-id"]}
            second = await ask(harness, **carried)
            third = await ask(first, **carried)
            assert second["episode-id"] == third["episode-id"] == begun["episode-id"]
            await first.turns(begun["episode-id"])
            turns = await harness.turns(begun["episode-id"])
    assert [turn.id for turn in turns] == [begun["turn-id"], second["turn-id"], third["turn-id"]]


def test_the_fake_models_letters_are_letters():
    """The toy model that these tests trust really gives text, so that equal text means something."""
    sampling = fake_model.Sampling(max_tokens=5, seed=1, greedy=False, stop=(), ignore_eos=False)
    assert fake_model.generate("base:base", [1, 2, 3], sampling).text


@pytest.mark.parametrize("stream", [False, True])
async def test_a_repeated_request_gets_the_very_same_answer(harness: Harness, stream: bool):
    """A retry under the same key is given the recorded answer and its Turns, and no model is asked again."""
    body, key = CHAT | {"temperature": 1, "stream": stream}, {"idempotency-key": "once"}
    first = await harness.post("/v1/chat/completions", body, key="trainer", **key)
    asked = len(harness.engine.requests)
    again = await harness.post("/v1/chat/completions", body, key="trainer", **key)
    assert await again.read() == await first.read()
    assert again.headers["x-hone-turn-id"] == first.headers["x-hone-turn-id"]
    assert again.headers["x-hone-replayed"] == "true"
    assert len(harness.engine.requests) == asked
    assert len(await harness.turns(first.headers["x-hone-episode-id"])) == 1
    stranger = await harness.post("/v1/chat/completions", body, key="other", **key)
    assert stranger.headers.get("x-hone-turn-id") != first.headers["x-hone-turn-id"]


async def test_a_key_belongs_to_one_request(harness: Harness):
    """The same idempotency key with another body is refused, and nothing is recorded for it."""
    key = {"idempotency-key": "mine"}
    await harness.post("/v1/chat/completions", CHAT, key="trainer", **key)
    other = await harness.post("/v1/chat/completions", CHAT | {"max_tokens": 3}, key="trainer", **key)
    assert (other.status, (await other.json())["error"]["param"]) == (409, "idempotency-key")


async def test_a_repeat_that_another_process_answered_adds_no_turn(harness: Harness):
    """What this process does not remember is found in the store: the new answer has the first one's Turns."""
    key = {"idempotency-key": "elsewhere"}
    first = await harness.post("/v1/chat/completions", CHAT, key="trainer", **key)
    turns = await harness.turns(first.headers["x-hone-episode-id"])
    harness.gateway.answers._answers.clear()
    again = await harness.post("/v1/chat/completions", CHAT, key="trainer", **key)
    assert again.headers["x-hone-turn-id"] == first.headers["x-hone-turn-id"]
    assert await harness.turns(first.headers["x-hone-episode-id"]) == turns


async def test_an_episode_opened_without_consent_stays_so(harness: Harness):
    """Whoever withdraws training at the opening of a conversation need not say so again at each of its Turns."""
    withdrawn = {"x-hone-train": "false"}
    first = await harness.post("/v1/chat/completions", CHAT | {"store": True}, key="trainer", **withdrawn)
    episode = first.headers["x-hone-episode-id"]
    await harness.post("/v1/chat/completions", CHAT, key="trainer", **{"x-hone-episode-id": episode})
    turns = await harness.turns(episode)
    assert [turn.trainable for turn in turns] == [False, False]
    assert [turn.content_kept for turn in turns] == [True, False]


async def test_an_episode_can_be_named_by_metadata(harness: Harness):
    """Clients that cannot send headers continue an Episode by ``metadata.hone_episode_id``."""
    first = await harness.post("/v1/chat/completions", CHAT, key="trainer")
    episode = first.headers["x-hone-episode-id"]
    named = CHAT | {"metadata": {"hone_episode_id": episode}}
    again = await harness.post("/v1/chat/completions", named, key="trainer")
    assert again.headers["x-hone-episode-id"] == episode
    assert [turn.index for turn in await harness.turns(episode)] == [0, 1]
