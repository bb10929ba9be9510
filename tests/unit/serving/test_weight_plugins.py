"""What Hone's modules inside the engine say of its weights, without the engine."""

import hashlib
import json
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import torch

from serving.engine_plugin import hone_weight_digests, hone_weight_spans


def _output(index: int, *spans: tuple[str, int]) -> Any:
    versions = [SimpleNamespace(version=label, start=start, end=0) for label, start in spans] or None
    return SimpleNamespace(index=index, weight_versions=versions)


class Serving:
    """Stands for vLLM's serving classes: the methods that are wrapped, with their arguments."""

    async def chat_completion_stream_generator(self, request: Any, result_generator: Any) -> AsyncIterator[str]:
        async for _ in result_generator:
            yield 'data: {"choices":[]}\n\n'
        yield "data: [DONE]\n\n"

    async def chat_completion_full_generator(self, request: Any, result_generator: Any) -> Any:
        async for _ in result_generator:
            pass
        return SimpleNamespace(kv_transfer_params=None)

    async def completion_stream_generator(
        self, request: Any, inputs: Any, result_generator: Any
    ) -> AsyncIterator[str]:
        async for _ in result_generator:
            yield 'data: {"choices":[]}\n\n'
        yield "data: [DONE]\n\n"

    def request_output_to_completion_response(self, final_res_batch: Any, request: Any) -> Any:
        return SimpleNamespace(kv_transfer_params=None)


async def _results(*results: Any) -> AsyncIterator[Any]:
    for result in results:
        yield result


def _wrapped() -> Any:
    serving = type("Wrapped", (Serving,), {})
    hone_weight_spans._wrap_chat(serving)
    hone_weight_spans._wrap_completion(serving)
    return serving()


TWO = _output(0, ("default", 0), ("coder@2", 5))
REQUEST = SimpleNamespace(n=2)


def test_unlabelled_weights_say_nothing() -> None:
    """Without a label there is nothing to tell, so that answers of other fleets stay as vLLM writes them."""
    assert hone_weight_spans.spans_of(_output(0)) == []
    assert hone_weight_spans.spans_of(_output(0, ("default", 0))) == []
    assert hone_weight_spans.spans_of(TWO) == [["default", 0], ["coder@2", 5]]


async def test_streams_have_one_more_event_before_their_end_mark() -> None:
    """All choices of a stream are told at once, of several prompts in the order of the choices."""
    serving = _wrapped()
    chat = [piece async for piece in serving.chat_completion_stream_generator(None, _results(_result(TWO)))]
    assert [json.loads(chat[1][6:]), chat[2]] == [
        {"hone_weight_versions": {"0": [["default", 0], ["coder@2", 5]]}},
        "data: [DONE]\n\n",
    ]
    second = (1, _result(_output(1, ("coder@2", 0))))
    text = [piece async for piece in serving.completion_stream_generator(REQUEST, None, _results(second))]
    assert json.loads(text[1][6:]) == {"hone_weight_versions": {"3": [["coder@2", 0]]}}
    plain = [piece async for piece in serving.chat_completion_stream_generator(None, _results(_result(_output(0))))]
    assert plain == ['data: {"choices":[]}\n\n', "data: [DONE]\n\n"]


async def test_whole_answers_have_a_field() -> None:
    """A whole answer carries it where a KV connector would have its own, and nothing where nothing is to be told."""
    serving = _wrapped()
    told = await serving.chat_completion_full_generator(None, _results(_result(TWO)))
    assert told.kv_transfer_params == {"hone_weight_versions": {"0": [["default", 0], ["coder@2", 5]]}}
    batch = [_result(_output(0, ("coder@1", 0)), _output(1, ("coder@1", 0))), _result(_output(0, ("coder@2", 0)))]
    told = serving.request_output_to_completion_response(batch, REQUEST)
    assert set(told.kv_transfer_params["hone_weight_versions"]) == {"0", "1", "2"}
    plain = await serving.chat_completion_full_generator(None, _results(_result(_output(0))))
    assert plain.kv_transfer_params is None


def test_repacked_weights_keep_the_digest_of_their_bytes() -> None:
    """The digest taken beside the load is that of vLLM's own form; modules that kept their weight say nothing."""
    model = torch.nn.ModuleDict({"packed": torch.nn.Linear(2, 3), "plain": torch.nn.Linear(2, 3)})
    weight = model["packed"].weight
    with ThreadPoolExecutor(1) as thread:
        model["packed"]._hone_weight_digest = thread.submit(hone_weight_digests.digest, weight)
        found = hone_weight_digests.repacked_digests(model)
    assert found == {"packed.weight": hashlib.sha256(weight.detach().numpy().tobytes()).hexdigest()}


def _result(*outputs: Any) -> Any:
    return SimpleNamespace(outputs=list(outputs))
