"""The StoredCompletion of a record equals what the client saw."""

from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.capture.stored import build_stored_completion
from serving.engines import fake_model, fake_shapes
from serving.engines.fake_model import Sampling
from tests.client_api_harness import captured, chat_completion, turns_of


def chunks(text: list[str], *, index: int = 0, number: int = 1) -> list[dict[str, Any]]:
    """A stream of one choice, with the fields that capture adds."""
    head = {"id": f"chatcmpl-{number:04}", "object": "chat.completion.chunk", "created": 5, "model": "engine"}
    first = {"index": index, "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}
    found = [head | {"choices": [first], "prompt_token_ids": [1, 2]}]
    for place, piece in enumerate(text):
        last = place == len(text) - 1
        part = {
            "index": index,
            "delta": {"content": piece},
            "logprobs": {"content": [{"token": piece, "logprob": -0.5}]},
            "finish_reason": "stop" if last else None,
            "token_ids": [place],
        }
        found.append(head | {"choices": [part]})
    usage = {"prompt_tokens": 2, "completion_tokens": len(text), "total_tokens": 2 + len(text)}
    return [*found, head | {"choices": [], "usage": usage}]


def test_a_whole_answer_is_kept_without_what_capture_added():
    """Ids and log-probs that the client did not ask for are null, everything else stays."""
    call = captured(1, request={"metadata": {"a": "b"}, "temperature": 0.5, "tool_choice": "auto"})
    shown = build_stored_completion(call, turns_of(call)).shown()
    expected = chat_completion(1, model="coder@1", prompt_token_ids=None)
    choice = expected["choices"][0] | {"logprobs": None, "token_ids": None}
    assert shown["choices"] == [choice]
    assert {name: shown[name] for name in expected if name != "choices"} == {
        name: value for name, value in expected.items() if name != "choices"
    }
    assert (shown["metadata"], shown["temperature"], shown["tool_choice"]) == ({"a": "b"}, 0.5, "auto")


def test_what_the_client_asked_for_stays():
    """Log-probs and token ids are kept when the request asked for them."""
    call = captured(1, request={"logprobs": True, "return_token_ids": True})
    [choice] = build_stored_completion(call, turns_of(call)).completion["choices"]
    assert choice["logprobs"]["content"][0]["logprob"] == -0.1
    assert choice["token_ids"] == [52]
    streamed = captured(1, chunks(["a", "b"]), request={"stream": True, "logprobs": True})
    [choice] = build_stored_completion(streamed, turns_of(streamed)).completion["choices"]
    assert [entry["token"] for entry in choice["logprobs"]["content"]] == ["a", "b"]


@given(st.lists(st.text(), min_size=1, max_size=8))
def test_a_stream_becomes_a_whole_answer(text):
    """The chunks' text is joined; finish reason, usage and id are those of the stream."""
    call = captured(1, chunks(text), request={"stream": True})
    shown = build_stored_completion(call, turns_of(call)).shown()
    assert shown["choices"] == [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "".join(text)},
            "logprobs": None,
            "finish_reason": "stop",
            "token_ids": None,
        }
    ]
    assert (shown["object"], shown["id"], shown["created"], shown["model"]) == (
        *("chat.completion", "chatcmpl-0001"),
        *(5, "coder@1"),
    )
    assert shown["usage"]["completion_tokens"] == len(text)


def test_interleaved_choices_and_tool_calls_are_told_apart():
    """Two choices of one stream, one of which calls a tool piece by piece."""
    head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 5, "model": "engine"}

    def part(index: int, delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
        return head | {"choices": [{"index": index, "delta": delta, "finish_reason": finish}]}

    function = {"name": "add", "arguments": '{"a"'}
    stream = [
        part(1, {"role": "assistant", "content": "hel"}),
        part(
            0,
            {"role": "assistant", "tool_calls": [{"index": 0, "id": "c", "type": "function", "function": function}]},
        ),
        part(1, {"content": "lo"}, "stop"),
        part(0, {"tool_calls": [{"index": 0, "function": {"arguments": ": 1}"}}]}, "tool_calls"),
    ]
    call = captured(1, stream, request={"stream": True, "n": 2}, turn_ids=["turn_x", "turn_y"])
    first, second = build_stored_completion(call, turns_of(call)).completion["choices"]
    assert first["message"]["tool_calls"] == [
        {"id": "c", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
    ]
    assert first["message"]["content"] is None
    assert second["message"]["content"] == "hello"
    assert (first["finish_reason"], second["finish_reason"]) == ("tool_calls", "stop")


@settings(max_examples=20)
@given(st.integers(0, 2**16), st.integers(1, 3))
def test_streamed_and_whole_answers_of_an_engine_are_stored_alike(seed, n):
    """The same generations give the same choices and usage, streamed or not."""
    identity = fake_model.base_identity("base")
    sampling = Sampling(max_tokens=6, seed=seed, greedy=False, stop=(), ignore_eos=False)
    generations = [fake_model.generate(identity, [1, 2, 3], sampling, choice) for choice in range(n)]
    call = fake_shapes.Call(
        model="base", chat=True, prompt_ids=[1, 2, 3], n=n, logprobs=0, return_token_ids=True, include_usage=True
    )
    turn_ids = [f"turn_{choice}" for choice in range(n)]
    whole = captured(1, [fake_shapes.whole(call, generations)], request={"n": n}, turn_ids=turn_ids)
    streamed = captured(
        1, list(fake_shapes.stream(call, generations)), request={"n": n, "stream": True}, turn_ids=turn_ids
    )
    one = build_stored_completion(whole, turns_of(whole)).completion
    other = build_stored_completion(streamed, turns_of(streamed)).completion
    for first, second in zip(one["choices"], other["choices"], strict=True):
        assert first["message"]["content"] == second["message"]["content"]
        assert (first["index"], first["finish_reason"], first["logprobs"]) == (
            *(second["index"], second["finish_reason"]),
            second["logprobs"],
        )
    assert one["id"] == other["id"]
    assert {name: other["usage"][name] for name in ("prompt_tokens", "completion_tokens")} == {
        name: one["usage"][name] for name in ("prompt_tokens", "completion_tokens")
    }


def test_redacted_calls_store_only_redacted_text():
    """What was said comes from the Turns; log-probs and free texts of the request are left out."""
    answer = chat_completion(1)
    answer["choices"][0]["message"]["content"] = "call Bob"
    answer["choices"][0]["message"]["reasoning"] = "Bob again"
    tools = [{"type": "function", "function": {"name": "f", "description": "for Bob"}}]
    call = captured(1, [answer], redact=True, request={"logprobs": True, "tools": tools, "temperature": 0.1})
    found = build_stored_completion(call, turns_of(call, response={"role": "assistant", "content": "call <PERSON>"}))
    text = msgspec.json.encode(found.shown()).decode()
    assert "Bob" not in text
    assert found.completion["choices"][0]["message"]["content"] == "call <PERSON>"
    assert found.completion["choices"][0]["logprobs"] is None
    assert found.completion["temperature"] == 0.1


def test_metadata_beyond_the_bounds_costs_only_the_labels():
    """The completion is kept without them."""
    call = captured(1, request={"metadata": {"a": 1}})
    assert build_stored_completion(call, turns_of(call)).metadata == {}


def test_redacted_calls_keep_no_field_that_engines_add():
    """Whatever an engine adds to a whole answer may spell the prompt: only the API's own fields are stored."""
    added = {
        "prompt_text": "I am Bob",
        "prompt_logprobs": [{"5": {"decoded_token": "Bob"}}],
        "kv_transfer_params": {},
    }
    call = captured(1, [chat_completion(1, **added)], redact=True)
    found = build_stored_completion(call, turns_of(call)).completion
    assert "Bob" not in msgspec.json.encode(found).decode()
    assert set(found) <= set(chat_completion()) - {"prompt_token_ids"} | {
        *("request_id", "seed", "temperature", "top_p", "presence_penalty", "frequency_penalty")
    }
    kept = build_stored_completion(captured(1, [chat_completion(1, **added)]), turns_of(call)).completion
    assert kept["prompt_text"] == "I am Bob"
