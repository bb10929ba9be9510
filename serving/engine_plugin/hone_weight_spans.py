"""Runs inside a vLLM API server: says in every answer which weights sampled which tokens.

vLLM tracks a label of its weights per sampled token (``CompletionOutput.weight_versions``, 0.32) and gives it only
on its token-in, token-out route. Here it also goes into the answers of chat and text completions, once a label was
given to the weights: a whole answer has it in ``kv_transfer_params``, which an engine without a KV connector leaves
empty, and a stream has one more event, before its end mark. The gateway takes both out again.

The field is ``hone_weight_versions``: choice index as text → list of [label, first token], in order.

vLLM finds ``register`` as an entry point of the group ``vllm.general_plugins``, as that of ``hone_engine_plugin``.
"""

import json
import multiprocessing
from collections.abc import AsyncIterator
from typing import Any

FIELD = "hone_weight_versions"
UNLABELLED = "default"
"""vLLM's label of weights that nobody gave one."""
_END_MARK = "data: [DONE]"

Spans = dict[str, list[list[Any]]]


def register() -> None:
    """Wrap the answers of vLLM's two serving classes; vLLM calls this in every engine process."""
    process = multiprocessing.current_process()
    if multiprocessing.parent_process() is not None and not process.name.startswith("ApiServer"):
        return
    from vllm.entrypoints.openai.chat_completion.serving import OpenAIServingChat  # noqa: PLC0415 - the engine's own
    from vllm.entrypoints.openai.completion.serving import OpenAIServingCompletion  # noqa: PLC0415

    if getattr(OpenAIServingChat, "_hone_weight_spans", False):
        return
    OpenAIServingChat._hone_weight_spans = True
    _wrap_chat(OpenAIServingChat)
    _wrap_completion(OpenAIServingCompletion)


def spans_of(output: Any) -> list[list[Any]]:
    """[label, first token] of a finished ``CompletionOutput``; empty where its weights never had a label."""
    spans = [[span.version, span.start] for span in output.weight_versions or ()]
    return [] if all(label == UNLABELLED for label, _ in spans) else spans


def _note(spans: Spans, outputs: Any, first_choice: int = 0) -> None:
    for output in outputs:
        found = spans_of(output)
        if found:
            spans[str(first_choice + output.index)] = found


def _told(response: Any, spans: Spans) -> Any:
    if spans and hasattr(response, "kv_transfer_params"):
        response.kv_transfer_params = {**(response.kv_transfer_params or {}), FIELD: spans}
    return response


async def _with_event(pieces: AsyncIterator[str], spans: Spans) -> AsyncIterator[str]:
    async for piece in pieces:
        if spans and piece.startswith(_END_MARK):
            yield f"data: {json.dumps({FIELD: spans}, separators=(',', ':'))}\n\n"
        yield piece


def _wrap_chat(serving: Any) -> None:
    stream, full = serving.chat_completion_stream_generator, serving.chat_completion_full_generator

    async def watch(results: AsyncIterator[Any], spans: Spans) -> AsyncIterator[Any]:
        async for result in results:
            _note(spans, result.outputs)
            yield result

    def streamed(self: Any, request: Any, result_generator: Any, *args: Any, **kwargs: Any) -> AsyncIterator[str]:
        spans: Spans = {}
        return _with_event(stream(self, request, watch(result_generator, spans), *args, **kwargs), spans)

    async def whole(self: Any, request: Any, result_generator: Any, *args: Any, **kwargs: Any) -> Any:
        spans: Spans = {}
        return _told(await full(self, request, watch(result_generator, spans), *args, **kwargs), spans)

    serving.chat_completion_stream_generator, serving.chat_completion_full_generator = streamed, whole


def _wrap_completion(serving: Any) -> None:
    stream, respond = serving.completion_stream_generator, serving.request_output_to_completion_response

    async def watch(results: AsyncIterator[Any], spans: Spans, choices: int) -> AsyncIterator[Any]:
        async for prompt, result in results:
            _note(spans, result.outputs, prompt * choices)
            yield prompt, result

    def streamed(self: Any, request: Any, inputs: Any, result_generator: Any, *args: Any, **kwargs: Any) -> Any:
        spans: Spans = {}
        watched = watch(result_generator, spans, request.n or 1)
        return _with_event(stream(self, request, inputs, watched, *args, **kwargs), spans)

    def whole(self: Any, final_res_batch: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
        spans: Spans = {}
        first = 0
        for result in final_res_batch:
            _note(spans, result.outputs, first)
            first += len(result.outputs)
        return _told(respond(self, final_res_batch, request, *args, **kwargs), spans)

    serving.completion_stream_generator, serving.request_output_to_completion_response = streamed, whole
