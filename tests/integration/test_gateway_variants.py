"""Which Variant and which replica answers, what the headers say about it, and what no engine here can answer."""

import json

import pytest

from core.deployment import DeploymentStatus, SpeculationSeen
from core.variant import Speculation, Variant
from serving.engines.fake import FakeEngineServer
from tests.gateway_harness import POLICY, QUESTION, Harness, hone_headers, running_gateway
from tests.scripted_engine import USAGE, ScriptedEngine

CHAT = {"model": POLICY, "messages": QUESTION, "max_tokens": 16, "seed": 1}
PATH = "/v1/chat/completions"


@pytest.fixture
async def harness(fresh_sqlite_url, open_store, make_config):
    """A gateway on SQLite with one standard engine."""
    async with running_gateway(await open_store(fresh_sqlite_url), make_config) as harness:
        await harness.add_engine()
        yield harness


async def add_speculating(harness: Harness) -> FakeEngineServer:
    """A fast replica whose engine, while it speculates, refuses ``min_p``."""
    engine = await harness.add_engine("dep_fast", variant=Variant.FAST)
    await change(harness, "dep_fast", speculation=Speculation(method="ngram"))
    return engine


async def ask(harness: Harness, body=None, *, key: str = "user", **headers) -> dict[str, str]:
    """The ``x-hone-`` headers of an answer."""
    response = await harness.post(PATH, CHAT | (body or {}), key, **headers)
    assert response.status == 200, await response.text()
    return hone_headers(response)


async def change(harness: Harness, name: str, **fields) -> None:
    """Change what the store says of a replica."""
    async with harness.store.transaction() as work:
        deployment = await work.deployments.get(name)
        await work.deployments.put(deployment.model_copy(update=fields))
    await harness.gateway.routing.refresh()


async def test_fast_without_a_fast_replica_says_so(harness: Harness):
    """Standard answers for ``-fast``, and the header says why; a plain name has no reason."""
    headers = await ask(harness, {"model": "coder-fast"})
    assert (headers["variant"], headers["variant-reason"]) == ("standard", "no_fast_replica")
    assert "variant-reason" not in await ask(harness)
    assert harness.count("hone_variant_reasons_total", variant="standard", reason="no_fast_replica") == 1


async def test_fast_with_speculation_switched_off_says_so(harness: Harness):
    """A fast replica that does not speculate leaves ``-fast`` to standard until it speculates again."""
    await harness.add_engine("dep_fast", variant=Variant.FAST)
    assert (await ask(harness, {"model": "coder-fast"}))["variant"] == "fast"
    await change(harness, "dep_fast", speculating=False)
    headers = await ask(harness, {"model": "coder-fast"})
    assert (headers["variant"], headers["variant-reason"]) == ("standard", "speculation_off")
    await change(harness, "dep_fast", speculating=True)
    assert (await ask(harness, {"model": "coder-fast"}))["variant"] == "fast"


async def test_auto_chooses_by_request_and_says_why(harness: Harness):
    """NAME-auto is answered by the Variant of the rule, under that Variant's own name."""
    await harness.add_engine("dep_fast", variant=Variant.FAST)
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    asked = [
        ({}, {}, "fast", "interactive"),
        ({"tools": [tool]}, {}, "fast", "tools"),
        ({"response_format": {"type": "json_object"}}, {}, "fast", "constrained"),
        ({}, {"x-hone-latency": "batch"}, "standard", "latency_batch"),
        ({"max_tokens": 2}, {}, "standard", "short_answer"),
        ({"n": 4, "temperature": 1.0}, {}, "standard", "many_choices"),
    ]
    for body, headers, variant, reason in asked:
        response = await harness.post(PATH, CHAT | {"model": "coder-auto"} | body, **headers)
        said = hone_headers(response)
        assert (said["variant"], said["variant-reason"]) == (variant, reason)
        assert (await response.json())["model"] == ("coder-fast@0" if variant == "fast" else "coder@0")


async def test_auto_goes_by_what_was_seen_lately(harness: Harness):
    """Low acceptance counts while it is fresh; later the fast Variant is tried again."""
    await harness.add_engine("dep_fast", variant=Variant.FAST)
    low = SpeculationSeen(acceptance=0.1, accepted_per_draft=0.1)
    await change(harness, "dep_fast", speculation_seen=low)
    assert (await ask(harness, {"model": "coder-auto"}))["variant-reason"] == "low_acceptance"
    await change(harness, "dep_fast", speculation_seen=low.model_copy(update={"read_at": low.read_at - 3600}))
    assert (await ask(harness, {"model": "coder-auto"}))["variant"] == "fast"


async def test_auto_without_fast_and_with_a_pin(harness: Harness):
    """Without fast replicas NAME-auto is standard; a pin stays a pin; another latency is a clear error."""
    headers = await ask(harness, {"model": "coder-auto"})
    assert (headers["variant"], headers["variant-reason"]) == ("standard", "no_fast_replica")
    await harness.mint()
    await harness.deploy("dep_a", versions=(1,))
    headers = await ask(harness, {"model": "coder-auto@1"})
    assert headers["policy-version"] == "1"
    response = await harness.post(PATH, CHAT, **{"x-hone-latency": "soon"})
    error = (await response.json())["error"]
    assert (response.status, error["param"]) == (400, "x-hone-latency")


async def test_a_field_that_fast_refuses_goes_to_standard(harness: Harness):
    """The distribution is the same, so the answer means the same; zero and null ask for nothing."""
    fast = await add_speculating(harness)
    for model in ("coder-fast", "coder-auto"):
        headers = await ask(harness, {"model": model, "min_p": 0.2})
        assert (headers["variant"], headers["variant-reason"]) == ("standard", "unsupported_field; min_p")
    assert fast.requests == []
    for nothing in (0, None):
        assert (await ask(harness, {"model": "coder-fast", "min_p": nothing}))["variant"] == "fast"


async def test_a_field_that_nobody_takes_is_refused_before_an_engine_sees_it(harness: Harness):
    """Without a standard replica the error names field and reason; without the field the fast one answers."""
    fast = await add_speculating(harness)
    await harness.engine.stop()
    await change(harness, "dep_a", status=DeploymentStatus.UNHEALTHY)
    for model in ("coder", "coder-fast", "coder-auto"):
        response = await harness.post(PATH, CHAT | {"model": model, "min_p": 0.2})
        error = (await response.json())["error"]
        assert (response.status, error["code"], error["param"]) == (400, "invalid_request", "min_p")
        assert "vLLM does not apply it under speculative decoding" in error["message"]
        assert hone_headers(await harness.post(PATH, CHAT | {"model": model}))["variant"] == "fast"
    assert not any("min_p" in request for request in fast.requests)


async def test_an_unreachable_standard_replica_leaves_no_refused_field_to_fast(harness: Harness):
    """A retry on another replica keeps to what its engine takes."""
    fast = await add_speculating(harness)
    await harness.engine.stop()
    response = await harness.post(PATH, CHAT | {"min_p": 0.2})
    assert response.status == 400
    assert fast.requests == []


async def test_an_episode_stays_on_its_replica(harness: Harness):
    """All Turns of an Episode are answered by one of three replicas; other Episodes spread."""
    for name in ("dep_b", "dep_c"):
        await harness.add_engine(name)
    first = await ask(harness)
    for _ in range(5):
        await ask(harness, **{"x-hone-episode-id": first["episode-id"]})
    assert sorted(len(engine.requests) for engine in harness.engines.values()) == [0, 0, 6]
    for _ in range(9):
        await ask(harness)
    assert sorted(len(engine.requests) for engine in harness.engines.values()) == [4, 5, 6]


async def test_a_conversation_that_another_process_began_stays_too(harness: Harness):
    """What is not remembered here is read from the store."""
    await harness.add_engine("dep_b")
    first = await ask(harness)
    (turn,) = await harness.turns(first["episode-id"])
    harness.gateway.episodes.ended(first["episode-id"])
    for _ in range(3):
        await ask(harness, **{"x-hone-episode-id": first["episode-id"]})
        assert await harness.gateway.recorder.flush(10.0)
        harness.gateway.episodes.ended(first["episode-id"])
    turns = await harness.turns(first["episode-id"])
    assert {one.deployment_id for one in turns} == {turn.deployment_id}


async def test_a_request_that_cannot_fit_never_reaches_the_engine(harness: Harness):
    """Too many tokens asked for, too many ids, or too long a text for any tokenizer: OpenAI's code, no request."""
    await change(harness, "dep_a", max_model_len=64)
    async with harness.store.transaction() as work:
        base = await work.bases.get("base")
        await work.bases.put(base.model_copy(update={"token_bytes": 4}))
    await harness.gateway.routing.refresh()
    refused = [
        (PATH, CHAT | {"max_tokens": 65}, "max_tokens"),
        (PATH, CHAT | {"messages": [{"role": "user", "content": "x" * 300}]}, "messages"),
        ("/v1/completions", {"model": POLICY, "prompt": list(range(1, 64)), "max_tokens": 8}, "prompt"),
    ]
    for path, body, param in refused:
        response = await harness.post(path, body)
        error = (await response.json())["error"]
        assert (response.status, error["code"], error["param"]) == (400, "context_length_exceeded", param)
    assert harness.engine.requests == []
    assert (await harness.post(PATH, CHAT)).status == 200


async def test_what_only_the_engine_can_count_has_the_same_code(harness: Harness):
    """An engine's own refusal, whole or for a stream, is told as ``context_length_exceeded``."""
    harness.engine.max_model_len = 32
    for stream in (False, True):
        long = [{"role": "user", "content": "many words " * 20}]
        response = await harness.post(PATH, CHAT | {"messages": long, "max_tokens": 1, "stream": stream})
        error = json.loads(await response.read())["error"]
        assert (response.status, error["code"], error["param"]) == (400, "context_length_exceeded", "messages")


async def test_a_compacted_conversation_is_recorded_as_a_branch(harness: Harness):
    """A request that names what it compacts is a new Branch by that cause, linked to the Turn before."""
    spoken = [*QUESTION, {"role": "assistant", "content": "a"}, {"role": "tool", "tool_call_id": "c", "content": "x"}]
    first = await ask(harness, {"messages": spoken}, key="trainer")
    named = {"x-hone-episode-id": first["episode-id"]}
    shorter = [
        *QUESTION,
        {"role": "assistant", "content": "a"},
        {"role": "tool", "tool_call_id": "c", "content": "-"},
    ]
    await ask(harness, {"messages": shorter}, key="trainer", **named, **{"x-hone-compacts": first["turn-id"]})
    before, after = await harness.turns(first["episode-id"])
    assert (before.compacted, after.compacted, after.parent_turn_id) == (False, True, before.id)
    assert harness.count("hone_turn_links_total", link="compaction") == 1
    shown = await harness.http.get(
        f"{harness.url}/v1/episodes/{first['episode-id']}", headers=harness.headers("trainer")
    )
    detail = await shown.json()
    assert [branch["cause"] for branch in detail["branches"]] == ["first", "compaction"]
    assert detail["breaks"] == {"compaction": 1}
    wrong = await harness.post(PATH, CHAT, **{"x-hone-compacts": "no turn"})
    assert wrong.status == 400


@pytest.mark.parametrize("key", ["user", "trainer"])
@pytest.mark.parametrize("stream", [False, True])
async def test_what_the_prefix_cache_had_is_counted(fresh_sqlite_url, open_store, make_config, key, stream):
    """With and without kept content, whole and streamed: Turn, Episode and metrics say what the engine said."""
    async with running_gateway(await open_store(fresh_sqlite_url), make_config) as harness:
        engine = ScriptedEngine()
        await engine.start()
        harness.engines["dep_a"] = engine
        await harness.deploy("dep_a")
        headers = await ask(harness, {"stream": stream}, key=key)
        (turn,) = await harness.turns(headers["episode-id"])
        prompt = 2 if key == "trainer" else USAGE["prompt_tokens"]
        cached = min(prompt, USAGE["prompt_tokens_details"]["cached_tokens"])
        assert (turn.usage.prompt_tokens, turn.usage.cached_tokens) == (prompt, cached)
        _, shown = await harness.admin("GET", f"/episodes/{headers['episode-id']}")
        assert shown["prefix"] == {
            "turns": 1, "prompt_tokens": prompt, "cached_tokens": cached, "hit_rate": cached / prompt,
        }  # fmt: skip
        assert harness.count("hone_prompt_tokens_total", model=POLICY) == prompt
        assert harness.count("hone_cached_prompt_tokens_total", model=POLICY) == cached
