"""Requests through the gateway: answers, names, headers, streams, errors."""

import json
import re

import openai
import pytest

from core.variant import Variant
from gateway.inference.stream import EventSplitter, event_data
from tests.gateway_harness import BASE, POLICY, QUESTION, Harness, engine_name, hone_headers, running_gateway

CHAT = {"model": POLICY, "messages": QUESTION, "max_tokens": 8, "seed": 1}


@pytest.fixture
async def harness(fresh_sqlite_url, open_store, make_config):
    """A gateway on SQLite with one engine."""
    async with running_gateway(await open_store(fresh_sqlite_url), make_config) as harness:
        await harness.add_engine()
        yield harness


def chunks(body: bytes) -> list[str]:
    """The data of all events of a stream."""
    return [data.decode() for event in EventSplitter().feed(body) if (data := event_data(event)) is not None]


async def test_a_chat_answer_says_what_the_engine_said(harness: Harness):
    """Through the gateway the official client gets the engine's text, under the resolved public name."""
    answer = await harness.client().chat.completions.create(**CHAT)
    direct = await openai.AsyncOpenAI(api_key="-", base_url=harness.engine.url + "/v1").chat.completions.create(
        **(CHAT | {"model": BASE})
    )
    assert answer.choices[0].message.content == direct.choices[0].message.content
    assert answer.usage == direct.usage
    assert answer.model == "coder@0"
    assert answer.choices[0].logprobs is None


async def test_nothing_but_the_captured_fields_differs_from_the_engines_own_answer(harness: Harness):
    """Whole answers and streams, chat and completions, equal what the engine says without capture."""
    bodies = [
        ("/v1/chat/completions", CHAT),
        ("/v1/chat/completions", CHAT | {"n": 2, "stream": True, "stream_options": {"include_usage": True}}),
        ("/v1/chat/completions", CHAT | {"logprobs": True, "top_logprobs": 1}),
        ("/v1/completions", {"model": POLICY, "prompt": "say", "max_tokens": 5, "logprobs": 0}),
        ("/v1/completions", {"model": POLICY, "prompt": "say", "max_tokens": 5, "stream": True}),
        ("/v1/chat/completions", CHAT | {"return_token_ids": True, "stream": True}),
    ]
    for path, body in bodies:
        through = await harness.post(path, body)
        direct = await harness.http.post(harness.engine.url + path, json=body | {"model": BASE})
        assert _comparable(await through.read()) == _comparable(await direct.read())


async def test_headers_name_version_variant_episode_and_turn(harness: Harness):
    """The answer's headers say what answered and where it was recorded; a sent request id comes back."""
    response = await harness.post("/v1/chat/completions", CHAT, **{"x-request-id": "mine"})
    headers = hone_headers(response)
    turns = await harness.turns(headers["episode-id"])
    assert response.headers["x-request-id"] == "mine"
    assert headers["policy-version"] == "0"
    assert headers["variant"] == "standard"
    assert headers["turn-id"] == turns[0].id


@pytest.mark.parametrize("stream", [False, True])
async def test_capture_changes_no_byte_of_an_answer(harness: Harness, stream: bool):
    """Who grants training gets the very answer that others get, and that the engine gives when asked directly."""
    answers = []
    for key in ("user", "trainer"):
        response = await harness.post("/v1/chat/completions", CHAT | {"model": BASE, "stream": stream}, key=key)
        answers.append(await response.read())
    direct = await harness.http.post(
        f"{harness.engine.url}/v1/chat/completions", json=CHAT | {"model": BASE, "stream": stream}
    )
    answers.append(await direct.read())
    alike = [re.sub(rb'"(id|created)":("[^"]*"|\d+)', b"", answer) for answer in answers]
    assert alike[0] == alike[1] == alike[2]


async def test_a_stream_passes_and_ends(harness: Harness):
    """A streamed chat gives the same text as the whole answer, without token ids, log-probs or usage."""
    client = harness.client("trainer")
    whole = await client.chat.completions.create(**CHAT)
    text = ""
    async for chunk in await client.chat.completions.create(**CHAT, stream=True):
        assert chunk.model == "coder@0"
        assert chunk.usage is None
        assert chunk.choices[0].logprobs is None
        text += chunk.choices[0].delta.content or ""
    assert text == whole.choices[0].message.content
    raw = await harness.post("/v1/chat/completions", CHAT | {"stream": True}, key="trainer")
    body = await raw.read()
    assert raw.headers["content-type"].startswith("text/event-stream")
    assert b'token_ids":[' not in body.replace(b" ", b"")
    assert chunks(body)[-1] == "[DONE]"


async def test_several_choices_are_several_turns(harness: Harness):
    """With ``n`` the headers name one Turn per choice, and each Turn holds its own answer."""
    for stream in (False, True):
        body = CHAT | {"n": 3, "stream": stream, "temperature": 1}
        response = await harness.post("/v1/chat/completions", body, key="trainer")
        headers = hone_headers(response)
        turns = await harness.turns(headers["episode-id"])
        assert headers["turn-id"] == ",".join(turn.id for turn in turns)
        assert [turn.choice for turn in turns] == [0, 1, 2]
        assert len({turn.index for turn in turns}) == 1
        assert len({turn.output_ids for turn in turns}) == 3
        assert all(turn.exact for turn in turns)


async def test_completions_answer_and_are_recorded(harness: Harness):
    """A text completion gives text and leaves an exact Turn with the prompt as a user message."""
    client = harness.client("trainer")
    answer = await client.completions.with_raw_response.create(model=POLICY, prompt="say", max_tokens=5)
    turns = await harness.turns(answer.headers["x-hone-episode-id"])
    assert answer.parse().choices[0].text == turns[0].response["content"]
    assert turns[0].exact
    assert turns[0].endpoint == "completions"
    assert turns[0].messages == ({"role": "user", "content": "say"},)


async def test_every_request_field_reaches_the_engine(harness: Harness):
    """Unknown fields pass unchanged; only the model is replaced and what capture needs is added."""
    body = CHAT | {"top_k": 5, "unheard_of": {"a": [1.50, None]}, "logit_bias": {"5": -100}}
    await harness.post("/v1/chat/completions", body, key="trainer")
    sent = harness.engine.requests[-1]
    assert sent == body | {"model": BASE, "return_token_ids": True, "logprobs": True}
    await harness.post("/v1/chat/completions", body, key="user")
    assert harness.engine.requests[-1] == body | {"model": BASE}


async def test_names_resolve_to_versions_and_variants(harness: Harness):
    """Every form of the model name reaches the right engine name on the right replica."""
    version = await harness.mint()
    await harness.deploy("dep_a", versions=(1,))
    fast = await harness.add_engine("dep_fast", variant=Variant.FAST, versions=(1,))
    expected = {
        POLICY: ("coder@0", BASE),
        "coder-fast": ("coder-fast@0", BASE),
        f"coder@{version.version}": ("coder@1", engine_name(1)),
        "coder-fast@1": ("coder-fast@1", engine_name(1)),
        BASE: (BASE, BASE),
        "base-fast": ("base-fast", BASE),
    }
    for asked, (named, engine_model) in expected.items():
        answer = await harness.client().chat.completions.create(**(CHAT | {"model": asked}))
        replica = fast if "fast" in asked else harness.engine
        assert answer.model == named
        assert replica.requests[-1]["model"] == engine_model


async def test_models_lists_names_that_answer(harness: Harness):
    """``/v1/models`` names Base, Policy, live versions, fast variants and the choice between them."""
    await harness.mint()
    await harness.mint(live=False)
    await harness.deploy("dep_a", versions=(1,))
    await harness.add_engine("dep_fast", variant=Variant.FAST, versions=(1,))
    client = harness.client()
    names = [model.id async for model in client.models.list()]
    assert names == [
        "base", "base-fast", "base-auto", "coder", "coder-fast", "coder-auto", "coder@0", "coder-fast@0",
        "coder-auto@0", "coder@1", "coder-fast@1", "coder-auto@1",
    ]  # fmt: skip
    for name in names:
        assert (await client.models.retrieve(name)).id == name
        assert (await client.chat.completions.create(**(CHAT | {"model": name}))).choices


@pytest.mark.parametrize(
    ("body", "status", "code", "param"),
    [
        (b"{", 400, "invalid_request", None),
        (b'{"model": "coder"} x', 400, "invalid_request", None),
        (b"[]", 400, "invalid_request", None),
        (b'{"model": "coder", "messages": [{"role": "user", "content": "\xff"}]}', 400, "invalid_request", None),
        ({"messages": QUESTION}, 400, "invalid_request", "model"),
        (CHAT | {"model": "nobody"}, 404, "model_not_found", "model"),
        (CHAT | {"model": "coder@9"}, 404, "model_not_found", "model"),
        (CHAT | {"model": "a b"}, 400, "invalid_request", "model"),
        (CHAT | {"max_tokens": 0}, 400, "invalid_request", "max_tokens"),
        (CHAT | {"max_tokens": -1}, 400, "invalid_request", "max_tokens"),
        (CHAT | {"max_tokens": "8"}, 400, "invalid_request", "max_tokens"),
        (CHAT | {"max_completion_tokens": 1.5}, 400, "invalid_request", "max_completion_tokens"),
        (CHAT | {"max_tokens": 99_999}, 400, "context_length_exceeded", "max_tokens"),
        (CHAT | {"n": 0}, 400, "invalid_request", "n"),
        (CHAT | {"stream": "yes"}, 400, "invalid_request", "stream"),
        ({"model": POLICY}, 400, "invalid_request", "messages"),
    ],
)
async def test_bad_requests_get_openais_error_body(harness: Harness, body, status, code, param):
    """Every malformed or impossible request is answered with the right status, code and parameter."""
    response = await harness.post("/v1/chat/completions", body)
    error = (await response.json())["error"]
    assert (response.status, error["code"], error["param"]) == (status, code, param)
    assert error["type"] == "invalid_request_error"
    assert error["message"]


async def test_keys_and_scopes_are_checked(harness: Harness):
    """No key and a wrong key are 401, a key without the scope is 403, in OpenAI's shape."""
    with pytest.raises(openai.AuthenticationError) as wrong:
        await harness.client("hone-wrong").chat.completions.create(**CHAT)
    assert wrong.value.code == "invalid_api_key"
    response = await harness.http.post(harness.url + "/v1/chat/completions", json=CHAT)
    assert response.status == 401
    assert response.headers["www-authenticate"] == "Bearer"
    await harness.add_key("feedback", scopes=set())
    with pytest.raises(openai.PermissionDeniedError):
        await harness.client("feedback").chat.completions.create(**CHAT)
    with pytest.raises(openai.PermissionDeniedError):
        await harness.client("feedback").models.list()


async def test_unknown_routes_and_methods_have_openais_shape(harness: Harness):
    """404 and 405 carry OpenAI's error body too."""
    missing = await harness.http.get(harness.url + "/v1/nothing")
    wrong = await harness.http.put(harness.url + "/v1/chat/completions")
    assert (missing.status, (await missing.json())["error"]["code"]) == (404, "not_found")
    assert (wrong.status, (await wrong.json())["error"]["code"]) == (405, "method_not_allowed")
    assert "POST" in wrong.headers["allow"]


async def test_health_readiness_and_metrics_answer(harness: Harness):
    """Probes answer without a key, and metrics name the route, the model and the status."""
    await harness.post("/v1/chat/completions", CHAT)
    assert (await harness.http.get(harness.url + "/health")).status == 200
    assert (await harness.http.get(harness.url + "/ready")).status == 200
    text = await (await harness.http.get(harness.url + "/metrics")).text()
    assert 'hone_requests_total{model="coder",route="/v1/chat/completions",status="200"} 1.0' in text
    assert "hone_recorder_buffered_turns" in text


def _comparable(body: bytes) -> list[object]:
    """All JSON objects of an answer or a stream, without what differs between any two answers."""
    texts = chunks(body) if body.startswith(b"data:") else [body.decode()]
    return [text if text == "[DONE]" else _without(json.loads(text)) for text in texts]


def _without(answer: dict) -> dict:
    for name in ("id", "created", "model"):
        answer.pop(name)
    for holder in (answer, *answer["choices"]):
        for name in ("token_ids", "prompt_token_ids"):
            if holder.get(name) is None:
                holder.pop(name, None)
    return answer
