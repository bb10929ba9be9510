"""Client Episodes over HTTP: opened, closed with a reward, read; and what of them may train."""

import asyncio

import pytest

from core.access import Scope, Tenant
from core.episode import EpisodeStatus, StopReason
from core.policy import PolicySpan
from learner.intake import Attempt, refusal
from serving.engines.fake import FakeEngineServer
from tests import nouns
from tests.client_api_harness import POLICY, ClientApi, running_client_api


@pytest.fixture
async def api(store, make_config):
    """The client routes with one engine of the Base."""
    async with running_client_api(store, make_config) as api, FakeEngineServer(base_name="base") as engine:
        await api.add_engine("dep_a", engine)
        yield api


async def open_one(api: ClientApi, key: str = "user", headers: dict[str, str] | None = None, **body: object):
    return await api.call("POST", "/v1/episodes", {"model": POLICY} | body, key, **(headers or {}))


async def add_turns(api: ClientApi, episode_id: str, count: int = 2, **fields: object) -> list[str]:
    prefix = (1, 2, 3)
    turns = []
    for index in range(count):
        turn = nouns.turn(
            episode_id=episode_id, index=index, prompt_ids=prefix, policy_spans=(PolicySpan(version=0),), **fields
        )
        turns.append(turn)
        prefix += (*turn.output_ids, 7)
    async with api.store.transaction() as work:
        await work.turns.add_many(turns)
    return [turn.id for turn in turns]


async def test_an_open_episode_can_be_continued_and_read(api: ClientApi):
    """Opening writes a running client Episode of the Policy with its metadata."""
    status, opened = await open_one(api, metadata={"user": "u1"})
    assert (status, opened["status"], opened["model"], opened["object"]) == (201, "running", POLICY, "episode")
    async with api.store.reading() as work:
        stored = await work.episodes.get(opened["id"])
    assert (stored.purpose, stored.policy, stored.version, stored.metadata) == (
        "client",
        POLICY,
        None,
        {"user": "u1"},
    )
    status, shown = await api.call("GET", f"/v1/episodes/{opened['id']}")
    assert (status, shown["turns"], shown["feedback"]) == (200, [], [])


async def test_a_version_in_the_name_pins_it(api: ClientApi):
    """``coder@0`` opens an Episode on version 0; a name that nothing serves is 404."""
    assert (await open_one(api, model="coder@0"))[1]["version"] == 0
    assert (await open_one(api, model="coder@99"))[0] == 404
    assert (await open_one(api, model="absent"))[0] == 404
    assert (await open_one(api, task_id="task_absent"))[0] == 404


async def test_closing_with_a_reward_makes_it_trainable(api: ClientApi):
    """Afterwards the Episode is scored, names its durable Turns, has Verdict and Reward, and the learner takes it."""
    _, opened = await open_one(api, "trainer")
    turn_ids = await add_turns(api, opened["id"], trainable=True)
    status, closed = await api.call("POST", f"/v1/episodes/{opened['id']}/close", {"reward": 0.5}, "trainer")
    assert (status, closed["status"], closed["reward"], closed["success"]) == (200, "scored", 0.5, False)
    async with api.store.reading() as work:
        episode = await work.episodes.get(opened["id"])
        [verdict] = await work.verdicts.for_episode(opened["id"])
        reward = await work.rewards.get(opened["id"])
        turns = await work.turns.for_episode(opened["id"])
    assert episode.turn_ids == tuple(turn_ids)
    assert episode.stop_reason is StopReason.ANSWERED
    assert (verdict.verifier, verdict.score, reward.value, reward.weights) == ("client", 0.5, 0.5, {"client": 1.0})
    assert refusal(Attempt(episode, tuple(turns)), line=[0], max_staleness=0) is None


async def test_success_alone_is_a_reward(api: ClientApi):
    """True counts 1, false counts 0, and a full reward is a success."""
    for said, reward, success in (
        ({"success": True}, 1.0, True),
        ({"success": False}, 0.0, False),
        ({"reward": 1}, 1.0, True),
    ):
        _, opened = await open_one(api)
        _, closed = await api.call("POST", f"/v1/episodes/{opened['id']}/close", said)
        assert (closed["reward"], closed["success"]) == (reward, success)


async def test_closing_twice(api: ClientApi):
    """The same statement again changes nothing, also at the same time; another one is 409."""
    _, opened = await open_one(api)
    path = f"/v1/episodes/{opened['id']}/close"
    answers = await asyncio.gather(
        *(api.call("POST", path, {"reward": 1.0, "metadata": {"a": "b"}}) for _ in range(4))
    )
    assert [status for status, _ in answers] == [200] * 4
    assert answers[0][1] == answers[1][1]
    assert (await api.call("POST", path, {}))[0] == 200
    assert (await api.call("POST", path, {"reward": 0.0}))[0] == 409
    async with api.store.reading() as work:
        assert len(await work.verdicts.for_episode(opened["id"])) == 1


async def test_a_reward_may_come_later(api: ClientApi):
    """An Episode that was closed without a judgement is finished, and takes one afterwards."""
    _, opened = await open_one(api)
    path = f"/v1/episodes/{opened['id']}/close"
    _, finished = await api.call("POST", path, {"metadata": {"n": "1"}})
    assert (finished["status"], finished["reward"]) == ("finished", None)
    _, scored = await api.call("POST", path, {"reward": 0.25, "metadata": {"m": "2"}})
    assert (scored["status"], scored["metadata"]) == ("scored", {"n": "1", "m": "2"})
    assert scored["finished_at"] == finished["finished_at"]


async def test_a_truncated_answer_is_told_from_an_ended_one(api: ClientApi):
    """An Episode with a Turn that met its token limit is marked as truncated."""
    _, opened = await open_one(api)
    await add_turns(api, opened["id"], finish_reason="length")
    _, closed = await api.call("POST", f"/v1/episodes/{opened['id']}/close", {"reward": 1.0})
    assert closed["stop_reason"] == "truncated"


@pytest.mark.parametrize("body", [{"reward": 1.5}, {"reward": -0.1}, {"reward": "x"}, {"score": 1}])
async def test_odd_rewards_are_refused(api: ClientApi, body):
    """A reward is a number from 0 to 1."""
    _, opened = await open_one(api)
    assert (await api.call("POST", f"/v1/episodes/{opened['id']}/close", body))[0] == 400


async def test_what_clients_may_not_close(api: ClientApi):
    """Expired Episodes and those of the sandbox are refused with 409."""
    expired = nouns.episode(status=EpisodeStatus.EXPIRED)
    rollout = nouns.episode(purpose="train")
    async with api.store.transaction() as work:
        await work.episodes.add(expired)
        await work.episodes.add(rollout)
    for episode in (expired, rollout):
        assert (await api.call("POST", f"/v1/episodes/{episode.id}/close", {"reward": 1.0}))[0] == 409


async def test_turns_that_are_not_durable_hold_up_closing(api: ClientApi):
    """While the recorder cannot write, closing is 503 and the Episode stays open."""
    _, opened = await open_one(api)
    api.parts.recorder.durable = False
    status, _ = await api.call("POST", f"/v1/episodes/{opened['id']}/close", {"reward": 1.0})
    assert status == 503
    _, shown = await api.call("GET", f"/v1/episodes/{opened['id']}")
    assert shown["status"] == "running"


async def test_an_episode_shows_turns_branches_and_feedback(api: ClientApi):
    """Turns come without token ids, Branches name them, and Turns without content are in no Branch."""
    _, opened = await open_one(api)
    first, second = await add_turns(api, opened["id"])
    bare = nouns.turn(episode_id=opened["id"], index=5).without_content()
    async with api.store.transaction() as work:
        await work.turns.add_many([bare])
    await api.call("POST", "/v1/feedback", {"turn_id": first, "name": "good", "value": True})
    _, shown = await api.call("GET", f"/v1/episodes/{opened['id']}")
    assert [turn["id"] for turn in shown["turns"]] == [first, second, bare.id]
    assert [turn["content_kept"] for turn in shown["turns"]] == [True, True, False]
    assert shown["turns"][0]["response"]["content"] == "4"
    assert shown["branches"] == [{"turn_ids": [first, second], "cause": "first"}]
    assert [one["turn_id"] for one in shown["feedback"]] == [first]
    assert not {"prompt_ids", "output_logprobs", "deployment_id"} & shown["turns"][0].keys()


async def test_consent_is_narrowed_and_never_widened(api: ClientApi):
    """Only a grant makes an Episode trainable, and body or header can take it back."""
    found = [
        (await open_one(api))[1],
        (await open_one(api, "trainer"))[1],
        (await open_one(api, "trainer", train=False))[1],
        (await open_one(api, "trainer", {"x_hone_train": "false"}))[1],
    ]
    assert [one["trainable"] for one in found] == [False, True, False, False]


async def test_opening_twice_under_one_key(api: ClientApi):
    """A repeated request opens no second Episode; the same key for another model is 409, for another tenant free."""
    headers = {"idempotency_key": "once"}
    answers = await asyncio.gather(*(open_one(api, headers=headers) for _ in range(4)))
    assert {status for status, _ in answers} == {201}
    assert len({opened["id"] for _, opened in answers}) == 1
    assert (await open_one(api, headers=headers, model="base"))[0] == 409
    status, theirs = await open_one(api, "other", headers)
    assert status == 201
    assert theirs["id"] != answers[0][1]["id"]


async def test_tenants_and_scopes(api: ClientApi):
    """Another tenant finds nothing; a feedback key may close and neither open nor read."""
    _, opened = await open_one(api)
    path = f"/v1/episodes/{opened['id']}"
    assert (await api.call("GET", path, key="other"))[0] == 404
    assert (await api.call("POST", path + "/close", {"reward": 1.0}, "other"))[0] == 404
    assert (await api.call("GET", "/v1/episodes", key="other"))[1]["data"] == []
    assert (await open_one(api, "rater"))[0] == 403
    assert (await api.call("GET", path, key="rater"))[0] == 403
    assert (await api.call("POST", path + "/close", {"reward": 1.0}, "rater"))[0] == 200
    assert (await api.call("GET", path, key="admin"))[0] == 403


async def test_a_key_opens_only_what_it_may_use(api: ClientApi):
    """A model outside the key's list is 403."""
    await api.add_key("narrow", {"inference"}, models=("base",))
    assert (await open_one(api, "narrow"))[0] == 403
    assert (await open_one(api, "narrow", model="base"))[0] == 201


async def test_lists_page_newest_first(api: ClientApi):
    """Pages joined by ``after`` hold every Episode once; filters restrict."""
    opened = [(await open_one(api, model="base" if n == 2 else POLICY))[1]["id"] for n in range(5)]
    seen: list[str] = []
    more = True
    while more:
        after = f"&after={seen[-1]}" if seen else ""
        _, page = await api.call("GET", f"/v1/episodes?limit=2{after}")
        seen += [one["id"] for one in page["data"]]
        more = page["has_more"]
    assert seen == opened[::-1]
    _, page = await api.call("GET", "/v1/episodes?model=base&status=running")
    assert [one["id"] for one in page["data"]] == [opened[2]]


async def test_labels_are_redacted_where_the_tenant_asks(api: ClientApi):
    """Metadata given at opening and at closing is kept without personal data; closing twice is the same statement."""
    async with api.store.transaction() as work:
        await work.tenants.add(Tenant(id="ten_r", name="R", redact=True))
    await api.add_key("careful", {Scope.INFERENCE, Scope.FEEDBACK}, tenant="ten_r")
    status, opened = await open_one(api, "careful", metadata={"who": "jane@example.com", "jane@example.com": "x"})
    assert (status, opened["metadata"]) == (201, {"who": "<EMAIL_ADDRESS>", "<EMAIL_ADDRESS>": "x"})
    for _ in range(2):
        said = {"reward": 1.0, "metadata": {"by": "jane@example.com"}}
        status, closed = await api.call("POST", f"/v1/episodes/{opened['id']}/close", said, "careful")
        assert (status, closed["metadata"]) == (200, opened["metadata"] | {"by": "<EMAIL_ADDRESS>"})
    async with api.store.reading() as work:
        assert "jane" not in (await work.episodes.get(opened["id"])).model_dump_json()
