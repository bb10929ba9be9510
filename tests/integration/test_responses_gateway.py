"""The Responses API in the whole gateway: real routing, capture and store, before the fake engine."""

import asyncio
import itertools
from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest

from serving.engines.fake_script import ScriptedAnswer
from tests.gateway_harness import POLICY, Harness, running_gateway
from tests.tool_service_harness import KEY, running_service

WEATHER = {"type": "function", "name": "weather", "parameters": {"type": "object"}, "strict": True}


@pytest.fixture
async def harness(fresh_sqlite_url, open_store, make_config) -> AsyncIterator[Harness]:
    """A gateway on SQLite with one engine."""
    async with running_gateway(await open_store(fresh_sqlite_url), make_config) as harness:
        await harness.add_engine()
        yield harness


async def test_a_response_is_recorded_as_a_turn(harness: Harness):
    """Whole and streamed answers leave exact Turns with what the model saw and said."""
    client = harness.client("trainer")
    for stream in (False, True):
        harness.engine.script = [ScriptedAnswer(text="Four.", reasoning="Two twos.")]
        raw = await client.responses.with_raw_response.create(
            model=POLICY, input="2 + 2?", instructions="Be brief.", stream=stream
        )
        if stream:
            events = [event async for event in raw.parse()]
            response = events[-1].response
        else:
            response = raw.parse()
        assert response.output_text == "Four."
        assert response.model == "coder@0"
        (turn,) = await harness.turns(raw.headers["x-hone-episode-id"])
        assert turn.id == raw.headers["x-hone-turn-id"]
        assert turn.exact
        assert turn.trainable
        assert turn.messages == (
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "2 + 2?"},
        )
        assert turn.response["content"] == "Four."
        assert (response.usage.input_tokens, response.usage.output_tokens) == (
            len(turn.prompt_ids),
            len(turn.output_ids),
        )


async def test_a_conversation_is_one_episode_that_continues_token_by_token(harness: Harness):
    """A function call goes round by ``previous_response_id``; the second prompt begins with the first tokens."""
    client = harness.client("trainer")
    harness.engine.script = [ScriptedAnswer(calls=(("weather", '{"city": "Ulm"}'),)), ScriptedAnswer(text="Rain.")]
    first = await client.responses.with_raw_response.create(model=POLICY, input="Weather?", tools=[WEATHER])
    made = first.parse()
    second = await client.responses.with_raw_response.create(
        model=POLICY,
        previous_response_id=made.id,
        tools=[WEATHER],
        input=[{"type": "function_call_output", "call_id": made.output[0].call_id, "output": "rain"}],
    )
    assert second.parse().output_text == "Rain."
    episode = first.headers["x-hone-episode-id"]
    assert second.headers["x-hone-episode-id"] == episode
    turns = await harness.turns(episode)
    assert len(turns) == 2
    whole = turns[0].prompt_ids + turns[0].output_ids
    assert turns[1].prompt_ids[: len(whole)] == whole


async def test_consent_and_store_decide_what_is_kept(harness: Harness):
    """Without consent and with ``store: false`` only counters stay; a stored one keeps its words until deleted."""
    client = harness.client("user")
    kept = await client.responses.with_raw_response.create(model=POLICY, input="secret")
    unkept = await client.responses.with_raw_response.create(model=POLICY, input="secret", store=False)
    (turn,) = await harness.turns(kept.headers["x-hone-episode-id"])
    assert turn.content_kept
    assert not turn.trainable
    (counted,) = await harness.turns(unkept.headers["x-hone-episode-id"])
    assert not counted.content_kept
    await client.responses.delete(kept.parse().id)
    (turn,) = await harness.turns(kept.headers["x-hone-episode-id"])
    assert not turn.content_kept


async def test_the_engines_refusals_keep_their_shape(harness: Harness):
    """Unknown models, impossible lengths and missing keys are OpenAI's errors."""
    client = harness.client()
    with pytest.raises(openai.NotFoundError) as unknown:
        await client.responses.create(model="nobody", input="x")
    assert unknown.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError):
        await client.responses.create(model=POLICY, input="x", max_output_tokens=99_999)
    with pytest.raises(openai.AuthenticationError):
        await harness.client("hone-wrong").responses.create(model=POLICY, input="x")
    long: list[Any] = [{"role": "user", "content": "long " * 100} for _ in range(10)]
    with pytest.raises(openai.BadRequestError):
        await client.responses.create(model=POLICY, input=long)
    assert (await client.responses.create(model=POLICY, input=long, truncation="auto")).status == "completed"


async def test_a_dying_engine_fails_the_stream(harness: Harness):
    """A stream that the engine breaks off ends with ``response.failed`` and a Turn that says so."""
    harness.engine.die_after_tokens = 2
    harness.engine.script = [ScriptedAnswer(text="Four it is.")]
    raw = await harness.client("trainer").responses.with_raw_response.create(model=POLICY, input="x", stream=True)
    events = [event async for event in raw.parse()]
    assert events[-1].type == "response.failed"
    assert events[-1].response.output_text == "Fo"
    assert harness.count("hone_requests_total", route="/v1/responses", model=POLICY, status="599") == 1


async def test_leaving_a_stream_stops_the_engine(harness: Harness):
    """When the client leaves, the engine's request ends."""
    harness.engine.token_delay_seconds = 0.05
    harness.engine.script = [ScriptedAnswer(text="long " * 100)]
    stream = await harness.client().responses.create(model=POLICY, input="x", stream=True)
    async for event in stream:
        if event.type == "response.output_text.delta":
            break
    await stream.close()
    for _ in range(200):
        if harness.engine.running == 0:
            break
        await asyncio.sleep(0.02)
    assert harness.engine.running == 0


async def test_code_really_runs_in_a_box(fresh_sqlite_url, open_store, make_config):
    """The model's code runs in the sandbox, its variables live on in the next response, all in one Episode."""
    async with running_service(make_config) as service:
        overrides = {"gateway.tools_url": service.url, "worker.tools_key": KEY}
        async with running_gateway(await open_store(fresh_sqlite_url), make_config, overrides) as harness:
            engine = await harness.add_engine()
            client = harness.client("trainer")
            asked: dict[str, Any] = {
                "model": POLICY,
                "tools": [{"type": "code_interpreter", "container": {"type": "auto"}}],
                "include": ["code_interpreter_call.outputs"],
            }
            engine.script = [
                ScriptedAnswer(calls=(("code_interpreter", '{"code": "x = 6 * 7"}'),)),
                ScriptedAnswer(text="Kept."),
                ScriptedAnswer(calls=(("code_interpreter", '{"code": "print(x)"}'),)),
                ScriptedAnswer(text="It is 42."),
            ]
            first = await client.responses.create(**asked, input="Keep 6 * 7.")
            raw = await client.responses.with_raw_response.create(
                **asked, input="Show it.", previous_response_id=first.id, stream=True
            )
            final = [event async for event in raw.parse()][-1].response
            code, message = final.output
            assert code.outputs[0].logs == "42"
            assert code.container_id == first.output[0].container_id
            assert message.content[0].text == "It is 42."
            turns = await harness.turns(raw.headers["x-hone-episode-id"])
            assert len(turns) == 4
            for earlier, later in itertools.pairwise(turns):
                whole = earlier.prompt_ids + earlier.output_ids
                assert later.prompt_ids[: len(whole)] == whole
