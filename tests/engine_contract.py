"""What every engine must do for the fleet and for the gateway's recorder. Subclass a suite and give ``served``."""

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import aiohttp
import pytest

from core.errors import AdapterRejected, EngineError, EngineUnavailable
from serving.engines.base import Engine

TOKENS = [40, 41, 42, 43, 44, 45]
MESSAGES = [{"role": "user", "content": "Say hello."}]
RECORDED = {"return_token_ids": True, "temperature": 0, "max_tokens": 6}


class Adapted(Engine, Protocol):
    """An adapter as its class makes it."""

    def __init__(self, url: str, *, health_seconds: float = ...) -> None: ...


@dataclass
class Served:
    """An engine under test; no adapter is loaded when a test begins."""

    engine: Adapted
    base: str
    adapters: tuple[Path, Path]
    """Two adapters that fit the Base and differ."""


class EngineContract:
    """The port, for every adapter and every server that it speaks with."""

    async def test_health_is_true_while_the_engine_answers(self, served: Served) -> None:
        """A running engine says that it is healthy, and one that is away is not, without an error."""
        away = type(served.engine)("http://127.0.0.1:9", health_seconds=0.5)
        assert await served.engine.health()
        assert not await away.health()
        with pytest.raises(EngineUnavailable):
            await away.models()
        await away.close()

    async def test_the_base_is_listed_first(self, served: Served) -> None:
        """The Base comes first, and adapters appear and disappear behind it."""
        assert await served.engine.models() == [served.base]
        await served.engine.load_adapter("one", str(served.adapters[0]))
        assert await served.engine.models() == [served.base, "one"]
        await served.engine.unload_adapter("one")
        assert await served.engine.models() == [served.base]

    async def test_prompt_logprobs_cover_all_tokens_but_the_first(self, served: Served) -> None:
        """Each token but the first has a finite, repeatable log-prob."""
        first = await served.engine.prompt_logprobs(served.base, TOKENS)
        again = await served.engine.prompt_logprobs(served.base, TOKENS)
        assert len(first) == len(TOKENS) and first[0] is None
        assert all(value is not None and -9999 < value <= 0 for value in first[1:])
        assert first[1:] == pytest.approx(again[1:], abs=1e-3)

    async def test_adapters_answer_side_by_side(self, served: Served) -> None:
        """Two adapters and the Base give different log-probs at the same time, and loading changes no other."""
        base = await served.engine.prompt_logprobs(served.base, TOKENS)
        for name, path in zip(("one", "two"), served.adapters, strict=True):
            await served.engine.load_adapter(name, str(path))
        one = await served.engine.prompt_logprobs("one", TOKENS)
        two = await served.engine.prompt_logprobs("two", TOKENS)
        assert one[1:] != pytest.approx(two[1:], abs=1e-4)
        assert one[1:] != pytest.approx(base[1:], abs=1e-4)
        assert await served.engine.prompt_logprobs(served.base, TOKENS) == pytest.approx(base, abs=1e-3)

    async def test_an_unknown_model_is_an_engine_error(self, served: Served) -> None:
        """Scoring under a name that is not served fails, and the engine stays healthy."""
        with pytest.raises(EngineError):
            await served.engine.prompt_logprobs("nobody", TOKENS)
        assert await served.engine.health()

    async def test_a_missing_adapter_is_rejected(self, served: Served, tmp_path: Path) -> None:
        """A folder without an adapter is refused and not listed, and the engine stays healthy."""
        with pytest.raises(AdapterRejected):
            await served.engine.load_adapter("missing", str(tmp_path / "missing"))
        assert await served.engine.models() == [served.base]
        assert await served.engine.health()

    async def test_a_name_is_loaded_once(self, served: Served) -> None:
        """Loading other weights under a name in use is refused: names are immutable."""
        await served.engine.load_adapter("one", str(served.adapters[0]))
        with pytest.raises(AdapterRejected):
            await served.engine.load_adapter("one", str(served.adapters[1]))

    async def test_unloading_an_unknown_name_is_no_error(self, served: Served) -> None:
        """An unload may be repeated."""
        await served.engine.unload_adapter("nobody")

    async def test_sampled_tokens_come_with_the_logprobs_that_scoring_gives(self, served: Served) -> None:
        """Greedy sampling repeats itself, and its log-probs are those of the same tokens when they are scored."""
        first = await served.engine.generate(served.base, TOKENS, max_tokens=8)
        again = await served.engine.generate(served.base, TOKENS, max_tokens=8)
        scored = await served.engine.prompt_logprobs(served.base, [*TOKENS, *first.token_ids])
        assert first.token_ids == again.token_ids and 1 <= len(first.token_ids) <= 8
        assert first.logprobs == pytest.approx(scored[len(TOKENS) :], abs=1e-3)
        with pytest.raises(EngineError):
            await served.engine.generate("nobody", TOKENS, max_tokens=1)

    async def test_an_engine_says_its_release_and_its_load(self, served: Served) -> None:
        """The engine's load can be read, in one shape for all engines, and so can its version."""
        metrics = await served.engine.metrics()
        assert metrics.running >= 0 and metrics.waiting >= 0 and 0 <= metrics.kv_use <= 1
        assert metrics.raw
        assert await served.engine.version()


class VllmAnswersContract:
    """vLLM's own answers, as the gateway's recorder reads them: one suite for the fake and for a real vLLM."""

    async def test_a_request_ends_on_the_adapter_that_it_began_with(self, served: Served) -> None:
        """Unloading an adapter does not disturb a stream that it is answering."""
        await served.engine.load_adapter("one", str(served.adapters[0]))
        body = {"model": "one", "prompt": TOKENS, "max_tokens": 24, "ignore_eos": True, "stream": True}
        body |= {"return_token_ids": True}
        tokens = 0
        async for chunk in _stream(served.engine.url + "/v1/completions", body):
            if tokens == 0:
                await served.engine.unload_adapter("one")
            tokens += len(chunk["choices"][0]["token_ids"])
        assert tokens == 24

    async def test_a_whole_chat_answer_carries_ids_and_logprobs(self, served: Served) -> None:
        """A chat answer has the prompt's ids at the top, and ids and log-probs of one length in each choice."""
        body = {"model": served.base, "messages": MESSAGES, "logprobs": True, **RECORDED}
        answer = await _post(served.engine.url + "/v1/chat/completions", body)
        choice = answer["choices"][0]
        assert answer["usage"]["prompt_tokens"] == len(answer["prompt_token_ids"])
        assert answer["usage"]["completion_tokens"] == len(choice["token_ids"])
        assert len(choice["logprobs"]["content"]) == len(choice["token_ids"])
        assert choice["finish_reason"] in {"stop", "length"} and choice["message"]["role"] == "assistant"

    async def test_a_whole_completion_carries_ids_and_logprobs(self, served: Served) -> None:
        """A completion has the prompt's ids, its own ids and log-probs in each choice."""
        body = {"model": served.base, "prompt": TOKENS, "logprobs": 0, **RECORDED}
        choice = (await _post(served.engine.url + "/v1/completions", body))["choices"][0]
        assert choice["prompt_token_ids"] == TOKENS
        assert len(choice["logprobs"]["token_logprobs"]) == len(choice["token_ids"])

    async def test_a_chat_stream_carries_the_same_as_the_whole_answer(self, served: Served) -> None:
        """Streamed ids, log-probs, text and usage add up to those of the greedy whole answer."""
        body = {"model": served.base, "messages": MESSAGES, "logprobs": True, **RECORDED}
        whole = await _post(served.engine.url + "/v1/chat/completions", body)
        streamed = {**body, "stream": True, "stream_options": {"include_usage": True}}
        chunks = [one async for one in _stream(served.engine.url + "/v1/chat/completions", streamed)]
        choices = [chunk["choices"][0] for chunk in chunks if chunk["choices"]]
        ids = [token for choice in choices for token in choice.get("token_ids") or []]
        logprobs = [e["logprob"] for c in choices for e in (c.get("logprobs") or {}).get("content") or []]
        expected = whole["choices"][0]
        assert chunks[0]["prompt_token_ids"] == whole["prompt_token_ids"]
        assert choices[0]["delta"]["role"] == "assistant"
        assert all(not chunk.get("prompt_token_ids") for chunk in chunks[1:])
        assert ids == expected["token_ids"]
        assert logprobs == pytest.approx([e["logprob"] for e in expected["logprobs"]["content"]], abs=1e-3)
        assert "".join(c["delta"].get("content") or "" for c in choices) == expected["message"]["content"]
        assert choices[-1]["finish_reason"] == expected["finish_reason"]
        assert chunks[-1]["choices"] == []
        assert chunks[-1]["usage"]["completion_tokens"] == len(ids)

    async def test_a_completion_stream_carries_the_prompt_ids_in_its_first_choice(self, served: Served) -> None:
        """Streamed completions carry the prompt's ids once, in the choice."""
        body = {"model": served.base, "prompt": TOKENS, "logprobs": 0, "stream": True, **RECORDED}
        chunks = [one async for one in _stream(served.engine.url + "/v1/completions", body)]
        assert chunks[0]["choices"][0]["prompt_token_ids"] == TOKENS
        assert all(not chunk["choices"][0].get("prompt_token_ids") for chunk in chunks[1:])
        assert all(
            len(choice["token_ids"]) == len(choice["logprobs"]["token_logprobs"])
            for chunk in chunks
            for choice in chunk["choices"]
        )

    async def test_several_choices_come_with_their_index(self, served: Served) -> None:
        """With n=2 both choices carry ids of their own."""
        body = {"model": served.base, "messages": MESSAGES, **RECORDED, "n": 2, "temperature": 1.0, "seed": 1}
        answer = await _post(served.engine.url + "/v1/chat/completions", body)
        assert [choice["index"] for choice in answer["choices"]] == [0, 1]
        assert all(choice["token_ids"] for choice in answer["choices"])

    @pytest.mark.parametrize(
        ("change", "status", "kind"),
        [
            ({"model": "nobody"}, 404, "NotFoundError"),
            ({"max_tokens": 10**6}, 400, "BadRequestError"),
            ({"n": 2, "temperature": 0}, 400, "BadRequestError"),
        ],
    )
    async def test_errors_have_one_shape(
        self, served: Served, change: dict[str, Any], status: int, kind: str
    ) -> None:
        """Wrong requests get an error object with message, type, param and code."""
        body = {"model": served.base, "messages": MESSAGES, **RECORDED, **change}
        error = (await _post(served.engine.url + "/v1/chat/completions", body, expect=status))["error"]
        assert (error["code"], error["type"]) == (status, kind)
        assert error["message"] and "param" in error


async def _post(url: str, body: dict[str, Any], expect: int = 200) -> dict[str, Any]:
    async with aiohttp.ClientSession() as session, session.post(url, json=body) as response:
        answer: dict[str, Any] = await response.json()
        assert response.status == expect, answer
        return answer


async def _stream(url: str, body: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
    async with aiohttp.ClientSession() as session, session.post(url, json=body) as response:
        assert response.status == 200, await response.text()
        done = False
        async for line in response.content:
            if line.startswith(b"data: [DONE]"):
                done = True
            elif line.startswith(b"data: "):
                yield json.loads(line.removeprefix(b"data: "))
        assert done, "the stream ended without [DONE]"
