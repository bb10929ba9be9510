"""The engine contracts on a running SGLang; not collected by itself, ``bench/gpu/sglang_contract.py`` starts it."""

import json
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from serving.engines.fake_sglang import FakeSglangServer
from serving.engines.sglang import SglangEngine
from tests.engine_contract import EngineContract, Served
from tests.weight_contract import Controlled, WeightContract

pytestmark = [pytest.mark.timeout(300)]


@pytest.fixture
async def engine() -> AsyncIterator[SglangEngine]:
    """The adapter of the server that was started for this run."""
    engine = SglangEngine(os.environ["SGLANG_URL"], base="base", request_seconds=120.0)
    yield engine
    await engine.close()


class TestSglang(EngineContract):
    """SGLang as Engine."""

    @pytest.fixture
    async def served(self, engine: SglangEngine) -> AsyncIterator[Served]:
        """The server without adapters."""
        one, two = (Path(path) for path in os.environ["SGLANG_ADAPTERS"].split(os.pathsep))
        base, *others = await engine.models()
        for name in others:
            await engine.unload_adapter(name)
        yield Served(engine=engine, base=base, adapters=(one, two))


class TestSglangWeights(WeightContract):
    """SGLang as WeightControl."""

    @pytest.fixture
    async def controlled(self, engine: SglangEngine) -> AsyncIterator[Controlled]:
        """The server under its own weights."""
        base, other = (Path(path) for path in os.environ["SGLANG_WEIGHTS"].split(os.pathsep))
        names = await engine.models()
        yield Controlled(
            engine=engine,
            base=names[0],
            weights=(base, other),
            wrong=Path(os.environ["SGLANG_WRONG"]),
            long_tokens=48,
        )


CHAT = {"messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 4, "temperature": 0, "logprobs": True}
TEXT = {"prompt": [40, 41, 42], "max_tokens": 4, "temperature": 0, "logprobs": 1, "return_token_ids": True}
NATIVE = {
    "input_ids": [40, 41, 42],
    "sampling_params": {"max_new_tokens": 4, "temperature": 0},
    "return_logprob": True,
}
EXCHANGES: list[tuple[str, dict[str, Any] | None]] = [
    ("/generate", {**NATIVE, "logprob_start_len": 0}),
    ("/generate", {**NATIVE, "stream": True}),
    ("/generate", {**NATIVE, "lora_path": "nobody"}),
    ("/v1/chat/completions", {**CHAT, "return_token_ids": True}),
    ("/v1/chat/completions", {**CHAT, "return_token_ids": True, "stream": True}),
    (
        "/v1/chat/completions",
        {
            **CHAT,
            "stream": True,
            "return_input_ids_in_sglext": True,
            "return_output_ids_in_sglext": True,
            "stream_options": {"include_usage": True},
        },
    ),
    ("/v1/completions", TEXT),
    ("/v1/completions", {**TEXT, "stream": True, "stream_options": {"include_usage": True}}),
    ("/v1/completions", {**TEXT, "max_tokens": 10**6}),
    ("/load_lora_adapter", {"lora_name": "none", "lora_path": "/nowhere"}),
    ("/pause_generation", {"mode": "retract"}),
    ("/flush_cache", {}),
    ("/update_weights_from_disk", {"model_path": "/nowhere"}),
    ("/weights_checker", {"action": "checksum", "selector": "target"}),
    ("/continue_generation", {"torch_empty_cache": False}),
    ("/update_weight_version", {"new_version": "default", "abort_all_requests": False}),
    ("/model_info", None),
    ("/server_info", None),
    ("/v1/models", None),
]


def shape(value: Any) -> Any:
    """What a JSON value is made of: keys and kinds, a list as its first item."""
    if isinstance(value, dict):
        return {key: shape(item) for key, item in value.items()}
    if isinstance(value, list):
        return [shape(value[0])] if value else []
    return "number" if isinstance(value, int | float) and not isinstance(value, bool) else type(value).__name__


def lacks(mine: Any, real: Any, path: str = "") -> list[str]:
    """Where the stand-in says what SGLang does not say, or says it in another form; None and [] fit everything."""
    if "NoneType" in (mine, real) or [] in (mine, real):
        return []
    if isinstance(mine, dict) and isinstance(real, dict):
        if "model.embed_tokens.weight" in mine:
            return []
        found = [f"{path}.{key} is not SGLang's" for key in mine.keys() - real.keys()]
        return found + [
            one for key in mine.keys() & real.keys() for one in lacks(mine[key], real[key], f"{path}.{key}")
        ]
    if isinstance(mine, list) and isinstance(real, list):
        return lacks(mine[0], real[0], f"{path}[]")
    return [] if mine == real else [f"{path}: {mine} for {real}"]


async def exchange(url: str, path: str, body: dict[str, Any] | None, base: str) -> tuple[int, list[Any]]:
    """Status and shapes of an answer, each event of a stream on its own."""
    named = {**body, "model": base} if body is not None and path.startswith("/v1/") else body
    async with (
        aiohttp.ClientSession() as session,
        session.request("GET" if body is None else "POST", url + path, json=named) as response,
    ):
        text = await response.text()
    if text.startswith("data: "):
        events = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
        assert events.pop() == "[DONE]"
        return response.status, [shape(json.loads(event)) for event in (events[0], events[1], events[-2], events[-1])]
    return response.status, [shape(json.loads(text)) if text.startswith("{") else "text"]


@pytest.mark.parametrize(("path", "body"), EXCHANGES, ids=[str(number) for number in range(len(EXCHANGES))])
async def test_the_stand_in_has_sglangs_forms(engine: SglangEngine, path: str, body: dict[str, Any] | None) -> None:
    """Statuses are SGLang's, and whatever the stand-in says SGLang says too, in the same form."""
    base = (await engine.models())[0]
    real = await exchange(engine.url, path, body, base)
    async with FakeSglangServer(base_name=base, max_model_len=1024) as stand_in:
        if path == "/flush_cache":
            await exchange(stand_in.url, "/pause_generation", {"mode": "retract"}, base)
        mine = await exchange(stand_in.url, path, body, base)
    assert mine[0] == real[0], (mine, real)
    assert [one for left, right in zip(mine[1], real[1], strict=True) for one in lacks(left, right)] == []
