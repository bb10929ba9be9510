"""Building Turns from what an engine sent."""

import json
from itertools import pairwise

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.capture.turns import build_episode, build_turns, merge_delta
from tests.captured_calls import captured_call


def capture(payloads, *, endpoint="chat.completions", choices=1, broken=None, kept=None, **fields):
    """A CapturedCall with consent, of these engine payloads; ``kept`` changes further fields of the record."""
    changes = {
        "endpoint": endpoint,
        "request": json.dumps({"model": "coder"} | fields).encode(),
        "payloads": [json.dumps(payload).encode() for payload in payloads],
        "turn_ids": [f"turn_{number}" for number in range(choices)],
        "idempotency_key": "key_a",
        "broken": broken,
    }
    return captured_call(**(changes | (kept or {})))


def entries(logprobs):
    """Chat log-probs."""
    return {"content": [{"token": "x", "logprob": value, "bytes": None, "top_logprobs": []} for value in logprobs]}


def chunk(token_ids, logprobs, *, index=0, finish=None, text="x", **more):
    """One chunk of a chat stream."""
    choice = {"index": index, "delta": {"content": text}, "logprobs": entries(logprobs), "finish_reason": finish}
    return {"choices": [choice | {"token_ids": token_ids}]} | more


TOKENS = st.lists(st.tuples(st.integers(0, 10**6), st.floats(-50, 0)), min_size=1, max_size=12)


@given(TOKENS, st.data())
def test_a_streams_turn_does_not_depend_on_its_chunks(tokens, data):
    """However the engine groups tokens into chunks, the Turn holds all of them in order."""
    places = data.draw(st.sets(st.integers(0, len(tokens)), max_size=4)) | {0, len(tokens)}
    ordered = sorted(places)
    payloads = [chunk([], [], prompt_token_ids=[1, 2])]
    for start, end in pairwise(ordered):
        finish = "stop" if end == len(tokens) else None
        group = tokens[start:end]
        payloads.append(chunk([t for t, _ in group], [p for _, p in group], finish=finish))
    (turn,) = build_turns(capture(payloads))
    assert turn.prompt_ids == (1, 2)
    assert turn.output_ids == tuple(token for token, _ in tokens)
    assert turn.output_logprobs == tuple(logprob for _, logprob in tokens)
    assert (turn.exact, turn.trainable, turn.finish_reason) == (True, True, "stop")


@pytest.mark.parametrize(
    "payload",
    [
        chunk(None, [-0.1], finish="stop", prompt_token_ids=[1]),
        chunk([5], [], finish="stop", prompt_token_ids=[1]),
        chunk([5, 6], [-0.1], finish="stop", prompt_token_ids=[1]),
        chunk([5], [-9999.0], finish="stop", prompt_token_ids=[1]),
        chunk([5], [-0.1], finish="stop"),
    ],
)
def test_incomplete_tokens_never_train(payload):
    """Without prompt ids, sampled ids or one real log-prob per token the Turn is kept, inexact and untrainable."""
    (turn,) = build_turns(capture([payload]))
    assert (turn.exact, turn.trainable, turn.output_logprobs) == (False, False, ())


def test_a_broken_stream_keeps_what_was_sampled():
    """A cancelled choice never trains and leaves its idempotency key free; one that had ended is whole."""
    payloads = [chunk([5], [-0.1], prompt_token_ids=[1]), chunk([6], [-0.2], index=1, finish="stop")]
    first, second = build_turns(capture(payloads, choices=2, broken="cancelled"))
    assert (first.finish_reason, first.trainable, first.idempotency_key) == ("cancelled", False, None)
    assert (second.finish_reason, second.trainable, second.idempotency_key) == ("stop", True, "key_a")


def test_prompts_of_one_completion_go_to_their_choices():
    """Several prompts with ``n`` answers each: every Turn has its own prompt, text and ids."""
    choices = [
        {
            "index": i,
            "text": f"t{i}",
            "finish_reason": "length",
            "token_ids": [i],
            "prompt_token_ids": [10 + i // 2],
            "logprobs": {"token_logprobs": [-0.5], "tokens": ["x"]},
        }
        for i in range(4)
    ]
    found = build_turns(
        capture([{"choices": choices}], endpoint="completions", choices=4, prompt=["a", "b"], n=2, temperature=0)
    )
    assert [turn.messages[0]["content"] for turn in found] == ["a", "a", "b", "b"]
    assert [turn.prompt_ids for turn in found] == [(10,), (10,), (11,), (11,)]
    assert [turn.response["content"] for turn in found] == ["t0", "t1", "t2", "t3"]
    assert all(turn.exact and turn.sampling == {"n": 2, "temperature": 0} for turn in found)


def test_usage_and_speculation_come_from_the_engine():
    """Cached prompt tokens and draft counts are taken over where the engine reports them."""
    payload = chunk([5], [-0.1], finish="stop", prompt_token_ids=[1, 2]) | {
        "usage": {"prompt_tokens_details": {"cached_tokens": 1}},
        "metrics": {
            "speculative_decoding": {
                "num_draft_tokens": 8,
                "num_accepted_draft_tokens": 5,
                "num_spec_steps": 4,
                "acceptance_histogram": [1, 1, 2],
            }
        },
    }
    (turn,) = build_turns(capture([payload]))
    assert (turn.usage.prompt_tokens, turn.usage.completion_tokens, turn.usage.cached_tokens) == (2, 1, 1)
    assert (turn.speculation.drafted, turn.speculation.accepted, turn.speculation.steps) == (8, 5, 4)
    assert turn.speculation.accepted_at == (3, 2)


def test_everything_of_a_turn_comes_from_the_record():
    """What the gateway knew when it answered stands in the Turn, and the Episode row comes with the first one."""
    kept = {
        "surface": "responses",
        "stored": True,
        "parent_turn_id": "turn_before",
        "fallback_from": "coder",
        "variant": "fast",
        "index": 3,
    }
    (turn,) = build_turns(capture([chunk([5], [-0.1], finish="stop", prompt_token_ids=[1])], kept=kept))
    assert {name: getattr(turn, name) for name in kept} == kept
    assert (turn.episode_id, turn.deployment_id, turn.version) == (f"ep_{0:026d}", "dep_a", 1)
    episode = build_episode(captured_call())
    assert (episode.id, episode.policy, episode.trainable, episode.created_at) == (
        f"ep_{0:026d}",
        "coder",
        True,
        1_000,
    )
    assert build_episode(captured_call(opens_episode=False)) is None


def test_where_the_engine_reports_no_ids_its_own_counts_are_taken():
    """An outside model's answer has usage and no token ids."""
    payload = {
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "x"}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 7, "completion_tokens": 9},
    }
    (turn,) = build_turns(capture([payload]))
    assert (turn.usage.prompt_tokens, turn.usage.completion_tokens, turn.exact) == (7, 9, False)


def test_without_consent_and_store_there_are_only_counters():
    """Whatever the record carries by mistake, no message, answer, id or text option gets into the Turn."""
    payloads = [chunk([5], [-0.1], finish="stop", prompt_token_ids=[1])]
    kept = {"consent": False, "prompt_tokens": 11, "completion_tokens": 13}
    words = {"messages": [{"role": "user", "content": "secret"}], "stop": ["secret"], "temperature": 0.5, "n": 2}
    first, second = build_turns(capture(payloads, choices=2, kept=kept, **words))
    assert (first.usage.prompt_tokens, first.usage.completion_tokens) == (11, 13)
    assert (second.usage.prompt_tokens, second.usage.completion_tokens) == (0, 0)
    for turn in (first, second):
        assert (turn.content_kept, turn.exact, turn.trainable) == (False, False, False)
        assert turn.sampling == {"temperature": 0.5, "n": 2}
        assert "secret" not in turn.model_dump_json()
        assert (turn.prompt_ids, turn.output_ids, turn.output_logprobs) == ((), (), ())
    assert [turn.id for turn in build_turns(capture([], kept=kept | {"request": b""}))] == ["turn_0"]


def test_a_stored_answer_without_consent_is_kept_and_never_trains():
    """``store`` keeps the content for the API alone."""
    kept = {"consent": False, "stored": True}
    (turn,) = build_turns(capture([chunk([5], [-0.1], finish="stop", prompt_token_ids=[1])], kept=kept))
    assert (turn.content_kept, turn.exact, turn.trainable, turn.stored) == (True, True, False, True)


def test_another_shape_is_a_decode_error():
    """What is not OpenAI's shape is refused as a whole, never half recorded."""
    with pytest.raises(msgspec.DecodeError):
        build_turns(capture([{"choices": [{"index": 0, "token_ids": "no"}]}]))


def test_tool_calls_are_put_together_by_index():
    """Streamed tool calls grow argument by argument; their ids and names are not repeated."""
    message = {"role": "assistant"}
    for delta in (
        {"role": "assistant", "content": ""},
        {"tool_calls": [{"index": 0, "id": "a", "type": "function", "function": {"name": "f", "arguments": ""}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": '{"x"'}}]},
        {"tool_calls": [{"index": 1, "id": "b", "function": {"name": "g", "arguments": "{}"}}]},
        {"tool_calls": [{"index": 0, "id": "a", "function": {"name": "f", "arguments": ": 1}"}}]},
    ):
        merge_delta(message, delta)
    assert message == {
        "role": "assistant",
        "content": "",
        "tool_calls": [
            {"id": "a", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}},
            {"id": "b", "function": {"name": "g", "arguments": "{}"}},
        ],
    }


@given(st.lists(st.text(max_size=4), max_size=8))
def test_streamed_text_is_the_concatenation(pieces):
    """Deltas of text add up to the whole text."""
    message = {"role": "assistant"}
    for piece in pieces:
        merge_delta(message, {"content": piece, "refusal": None})
    assert message.get("content", "") == "".join(pieces)


def test_a_turn_knows_its_own_calls_consent():
    """A call that the client only wants stored is kept, and does not count as consented."""
    payload = chunk([3], [-0.5], finish="stop", prompt_token_ids=[1])
    (given,) = build_turns(capture([payload]))
    (stored,) = build_turns(capture([payload], kept={"consent": False, "stored": True}))
    assert (given.consented, stored.consented) == (True, False)
    assert (stored.content_kept, stored.stored, stored.trainable) == (True, True, False)
    assert not given.without_content().consented
