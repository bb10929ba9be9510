"""Token-exact conversations through the gateway: what was sampled goes back as it was sampled."""

import asyncio
import itertools
import json

import pytest

from core import ids
from core.episode import Episode
from core.trajectory import BreakCause, build_trajectory, continues
from core.turn import Turn
from core.variant import Variant
from serving.engines.fake import FakeEngineServer
from serving.engines.fake_script import ScriptedAnswer
from tests.gateway_harness import POLICY, TENANT, Harness, hone_headers, running_gateway

TOOLS = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]
CHAT = "/v1/chat/completions"


@pytest.fixture
async def harness(fresh_sqlite_url, open_store, make_config):
    """A gateway before an engine whose sampled tokens are never those of a rendering."""
    async with running_gateway(await open_store(fresh_sqlite_url), make_config) as harness:
        (await harness.add_engine(versions=(1,))).twins = True
        await harness.mint()
        yield harness


async def attempt(harness: Harness, *, purpose: str = "train") -> str:
    """The id of an Episode of our own workers, or of a client's."""
    episode = Episode(
        id=ids.new_id(ids.EPISODE), tenant_id=TENANT, policy=POLICY, version=1, purpose=purpose, trainable=True
    )
    async with harness.store.transaction() as work:
        await work.episodes.add(episode)
    return episode.id


class Conversation:
    """A client that sends back what it was told."""

    def __init__(self, harness: Harness, episode_id: str | None, **fields) -> None:
        self.harness, self.episode_id, self.fields = harness, episode_id, fields
        self.messages = [{"role": "user", "content": "begin"}]
        self.headers: dict[str, str] = {}

    async def turn(self, *, expect: int = 200, **fields) -> dict:
        """Ask once; the whole message joins the conversation."""
        body = {"model": f"{POLICY}@1", "messages": self.messages, "max_tokens": 40, **self.fields, **fields}
        headers = self.headers | ({"x-hone-episode-id": self.episode_id} if self.episode_id else {})
        response = await self.harness.post(CHAT, body, "trainer", **headers)
        assert response.status == expect, await response.text()
        if expect != 200:
            return {}
        self.episode_id = hone_headers(response)["episode-id"]
        text = await response.text()
        if body.get("stream"):
            events = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
            said = "".join(event["choices"][0]["delta"].get("content") or "" for event in events if event["choices"])
            answer = {"choices": [{"message": {"role": "assistant", "content": said}}]}
        else:
            answer = json.loads(text)
        message = answer["choices"][0]["message"]
        self.messages = [*self.messages, {name: value for name, value in message.items() if value is not None}]
        return answer

    def hear(self, text: str, role: str = "user") -> None:
        """What comes next."""
        self.messages = [*self.messages, {"role": role, "content": text}]

    async def turns(self) -> list[Turn]:
        """What was recorded."""
        return await self.harness.turns(self.episode_id)


def fallbacks(harness: Harness, cause: str) -> float:
    """How many requests were rendered anew for a cause."""
    return harness.count("hone_exact_fallbacks_total", cause=cause)


def kept(harness: Harness) -> float:
    """How many requests went with ids that no rendering has."""
    return harness.count("hone_exact_turns_total", rendering="kept")


def all_continue(turns: list[Turn]) -> bool:
    """Whether there is no drift."""
    return all(continues(earlier, later) for earlier, later in itertools.pairwise(turns))


@pytest.mark.parametrize("stream", [False, True])
async def test_twenty_turns_of_an_attempt_do_not_drift(harness: Harness, stream):
    """Every prompt begins with the ids before it, though no rendering would."""
    talk = Conversation(harness, await attempt(harness), stream=stream)
    for number in range(20):
        await talk.turn(seed=number)
        talk.hear(f"go on {number}")
    turns = await talk.turns()
    assert len(turns) == 20 and all_continue(turns)
    assert len(build_trajectory(talk.episode_id, turns).branches) == 1
    assert kept(harness) == 19
    assert harness.count("hone_turn_links_total", link="continues") == 19


async def test_ids_that_cannot_fit_never_reach_the_engine(harness: Harness):
    """Where the ids of the prompt are known, the context is checked by them and not by an estimate."""
    talk = Conversation(harness, await attempt(harness))
    await talk.turn()
    talk.hear("go on")
    (first,) = await talk.turns()
    async with harness.store.transaction() as work:
        deployment = await work.deployments.get("dep_a")
        room = len(first.prompt_ids) + len(first.output_ids) + 40
        await work.deployments.put(deployment.model_copy(update={"max_model_len": room}))
    await harness.gateway.routing.refresh()
    asked = len(harness.engine.requests)
    await talk.turn(expect=400)
    assert len(harness.engine.requests) == asked
    await talk.turn(max_tokens=2)


async def test_without_it_the_same_conversation_drifts(harness: Harness):
    """A client's conversation is rendered anew by default: the check above can fail."""
    talk = Conversation(harness, await attempt(harness, purpose="client"))
    for _ in range(3):
        await talk.turn()
        talk.hear("go on")
    turns = await talk.turns()
    causes = {branch.cause for branch in build_trajectory(talk.episode_id, turns).branches[1:]}
    assert causes == {BreakCause.RETOKENISED}
    assert not harness.engine.renders and "kv_transfer_params" not in harness.engine.requests[-1]


async def test_answers_have_the_shape_that_they_ever_had(harness: Harness):
    """Tool calls, reasoning, log-probs, usage and every other field come as without exactness; nothing is added."""
    shapes = []
    for exact in ("true", "false"):
        talk = Conversation(harness, await attempt(harness), tools=TOOLS, logprobs=True, top_logprobs=1)
        talk.headers = {"x-hone-token-exact": exact}
        harness.engine.script = [
            ScriptedAnswer(text="let me", calls=(("look", '{"at": 1}'),)),
            ScriptedAnswer(calls=(("look", "{}"), ("look", '{"at":2}'))),
        ]
        await talk.turn()
        talk.hear("seen", role="tool")
        answer = await talk.turn()
        shapes.append(shape(answer))
    assert kept(harness) == 1
    assert shapes[0] == shapes[1]
    assert answer["choices"][0]["finish_reason"] == "tool_calls"


def shape(value):
    """Names and kinds, and what was said, without ids and numbers that differ from call to call."""
    if isinstance(value, dict):
        return {name: shape(item) for name, item in value.items()}
    if isinstance(value, list):
        return [shape(item) for item in value]
    return value if isinstance(value, str) and not value.startswith(("chatcmpl", "call_", "ep_")) else type(value)


async def test_a_header_asks_for_it_where_training_is_granted(harness: Harness):
    """``true`` makes a client's conversation exact, ``false`` an attempt not; without a grant nothing changes."""
    for purpose, header, exact in (("client", "true", True), ("train", "false", False)):
        talk = Conversation(harness, await attempt(harness, purpose=purpose))
        talk.headers = {"x-hone-token-exact": header}
        for _ in range(2):
            await talk.turn()
            talk.hear("go on")
        assert all_continue(await talk.turns()) is exact
    renders = len(harness.engine.renders)
    body = {"model": POLICY, "messages": [{"role": "user", "content": "x"}], "store": True}
    answer = await (await harness.post(CHAT, body, "user", **{"x-hone-token-exact": "true"})).json()
    messages = [*body["messages"], answer["choices"][0]["message"], {"role": "user", "content": "y"}]
    await harness.post(CHAT, body | {"messages": messages}, "user", **{"x-hone-token-exact": "true"})
    assert len(harness.engine.renders) == renders


async def test_answers_of_another_process_are_read_from_the_store(harness: Harness):
    """After the memory is lost a conversation that has drifted goes on without a break."""
    talk = Conversation(harness, await attempt(harness), tools=TOOLS)
    for _ in range(4):
        await talk.turn()
        talk.hear("go on")
        assert await harness.gateway.recorder.flush(10.0)
        exact = harness.gateway.inference.exact
        exact._answered.clear()
        exact._tokens = 0
    turns = await talk.turns()
    assert len(turns) == 4 and all_continue(turns) and kept(harness) == 3


async def test_an_equal_answer_of_another_episode_is_not_taken(harness: Harness):
    """Two attempts with the same words each keep their own ids."""
    talks = [Conversation(harness, await attempt(harness)) for _ in range(2)]
    for twins, talk in zip((True, False), talks, strict=True):
        harness.engine.twins = twins
        harness.engine.script = [ScriptedAnswer(text="the same words")]
        await talk.turn()
        talk.hear("go on")
    for talk in talks:
        await talk.turn()
        assert all_continue(await talk.turns())


@pytest.mark.parametrize(
    ("cause", "change"),
    [
        ("unknown_answer", {"messages": "rewritten"}),
        ("template", {"messages": "system"}),
        ("other_model", {"model": f"{POLICY}@0"}),
        ("unsupported_field", {"echo": False}),
        ("engine_refused", {"refuse_renders": 403}),
        ("engine_refused", {"refuse_renders": 404}),
    ],
)
async def test_what_does_not_fit_is_rendered_anew_and_counted(harness: Harness, cause, change):
    """A changed history, another model, odd fields, an engine that does not render: an ordinary answer."""
    talk = Conversation(harness, await attempt(harness))
    await talk.turn()
    talk.hear("go on")
    change = dict(change)
    harness.engine.refuse_renders = change.pop("refuse_renders", None)
    what = change.pop("messages", None)
    if what == "rewritten":
        talk.messages[1] = {"role": "assistant", "content": "something else"}
    if what == "system":
        harness.engine.render_prefix = "changed"
    await talk.turn(**change)
    assert fallbacks(harness, cause) == 1
    assert "kv_transfer_params" not in harness.engine.requests[-1]


async def test_an_engine_that_refuses_the_ids_is_asked_the_ordinary_way(harness: Harness):
    """Its refusal of what the gateway added never reaches the client."""
    talk = Conversation(harness, await attempt(harness))
    await talk.turn()
    talk.hear("go on")
    harness.engine.refuse_ids = "`kv_transfer_params['prompt_token_ids']` must be a non-empty list"
    await talk.turn()
    assert fallbacks(harness, "engine_refused") == 1
    assert len(await talk.turns()) == 2


async def test_a_client_that_leaves_stops_the_sampling(harness: Harness):
    """Closing the connection of an exact stream ends the engine's request."""
    talk = Conversation(harness, await attempt(harness))
    await talk.turn()
    talk.hear("go on")
    harness.engine.token_delay_seconds = 0.2
    harness.engine.script = [ScriptedAnswer(text="a long answer " * 20)]
    headers = harness.headers("trainer", **{"x-hone-episode-id": talk.episode_id})
    body = {"model": f"{POLICY}@1", "messages": talk.messages, "stream": True, "max_tokens": 400}
    async with harness.http.post(harness.url + CHAT, headers=headers, json=body) as response:
        await response.content.readany()
        assert "kv_transfer_params" in harness.engine.requests[-1] and harness.engine.running == 1
        response.close()
    async with asyncio.timeout(10):
        while harness.engine.running:
            await asyncio.sleep(0.01)


async def test_the_memory_is_bounded_and_forgets_the_oldest(fresh_sqlite_url, open_store, make_config):
    """Beyond the configured number of ids the oldest answers are read from the store again."""
    overrides = {"gateway.token_exact_cache_tokens": 1000, "gateway.token_exact": "all"}
    async with running_gateway(await open_store(fresh_sqlite_url), make_config, overrides) as harness:
        engine: FakeEngineServer = await harness.add_engine(versions=(1,))
        engine.twins = True
        await harness.mint()
        talks = [Conversation(harness, None) for _ in range(30)]
        for number, talk in enumerate(talks):
            talk.messages[0]["content"] = f"conversation {number}"
            await talk.turn()
            talk.hear("go on")
        exact = harness.gateway.inference.exact
        assert exact._tokens == sum(item.size for item in exact._answered.values()) <= 1000
        assert await harness.gateway.recorder.flush(10.0)
        for talk in talks:
            await talk.turn()
            assert all_continue(await talk.turns())


async def test_each_of_several_answers_can_be_continued(harness: Harness):
    """With ``n`` the client goes on from the answer that it likes."""
    talk = Conversation(harness, await attempt(harness), n=3)
    first = talk.messages
    answer = await talk.turn()
    for choice in answer["choices"]:
        said = {"role": "assistant", "content": choice["message"]["content"]}
        talk.messages = [*first, said, {"role": "user", "content": "go on"}]
        await talk.turn(n=1)
        earlier, later = (await talk.turns())[choice["index"]], (await talk.turns())[-1]
        assert continues(earlier, later)


async def test_variants_continue_each_other_and_a_replica_that_is_away_is_replaced(harness: Harness):
    """The fast replica of the same version takes the ids, and so does whoever answers when it has died."""
    fast = await harness.add_engine("dep_fast", variant=Variant.FAST, versions=(1,))
    talk = Conversation(harness, await attempt(harness))
    for model in (f"{POLICY}@1", f"{POLICY}-fast@1"):
        await talk.turn(model=model)
        talk.hear("go on")
    assert "kv_transfer_params" in fast.requests[-1]
    await fast.stop()
    await talk.turn(model=f"{POLICY}-fast@1")
    turns = await talk.turns()
    assert [turn.deployment_id for turn in turns] == ["dep_a", "dep_fast", "dep_a"] and all_continue(turns)


async def test_reasoning_that_the_client_leaves_out_stays_out(harness: Harness):
    """The ids of an answer with reasoning are not brought back where the messages lack it."""
    harness.engine.script = [ScriptedAnswer(reasoning="well", text="two")]
    talk = Conversation(harness, await attempt(harness))
    await talk.turn()
    del talk.messages[-1]["reasoning"]
    talk.hear("go on")
    await talk.turn()
    assert fallbacks(harness, "reasoning") == 1


async def test_a_mistake_of_ours_costs_tokens_and_no_answer(harness: Harness, monkeypatch: pytest.MonkeyPatch):
    """Whatever goes wrong while ids are joined, the client is answered the ordinary way, and it is counted."""

    async def broken(url: str, body: bytes) -> None:
        raise RuntimeError("broken")

    talk = Conversation(harness, await attempt(harness))
    await talk.turn()
    talk.hear("go on")
    monkeypatch.setattr(harness.gateway.inference.exact, "render", broken)
    await talk.turn()
    assert fallbacks(harness, "failed") == 1
    assert len(await talk.turns()) == 2
