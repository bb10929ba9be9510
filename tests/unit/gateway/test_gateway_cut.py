"""Cutting captured fields out of an answer gives what decoding it gives, or leaves it alone."""

import json

from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from gateway.inference import rewrite
from gateway.inference.cut import cut_chunk, cut_whole
from gateway.inference.request import CapturePlan
from gateway.inference.rewrite import AnswerRewriter
from gateway.inference.target import Target

TRICKY = st.sampled_from(
    ['"logprobs":{', ',"finish_reason":', '"token_ids":[1]', '"message":{', "]", "}", "\\", '"', "é", "\n", "x"]
)
TEXT = st.lists(TRICKY, max_size=8).map("".join)
CALLS = st.lists(st.fixed_dictionaries({"id": TEXT, "function": st.fixed_dictionaries({"arguments": TEXT})}))
IDS = st.lists(st.integers(0, 200_000), min_size=1, max_size=6)


def answer(text, calls, ids, prompt):
    """A whole answer as vLLM 0.32 writes it."""
    entries = [{"token": text[:3], "logprob": -0.5, "bytes": [1, 2], "top_logprobs": []} for _ in ids]
    message = {"role": "assistant", "content": text, "refusal": None, "tool_calls": calls, "reasoning": None}
    choice = {"index": 0, "message": message, "logprobs": {"content": entries}, "finish_reason": "stop"}
    usage = {"prompt_tokens": len(prompt), "total_tokens": len(prompt) + len(ids), "completion_tokens": len(ids)}
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": "engine-name",
        "choices": [choice | {"stop_reason": None, "token_ids": ids}],
        "usage": usage | {"prompt_tokens_details": None},
        "prompt_logprobs": None,
        "prompt_token_ids": prompt,
    }


def rewriter(*, single=True, variant="standard", captures=True):
    plan = CapturePlan(token_ids=captures, logprobs=captures, usage=False)
    names = {"engine_model": "engine-name", "public_model": "coder@1"}
    return AnswerRewriter(
        Target(policy="coder", version=1, variant=variant, deployment_id="dep", plan=plan, send=None, **names),
        single=single,
    )


def compact(body):
    return json.dumps(body, separators=(",", ":"), ensure_ascii=False).encode()


def chunk(text, calls, ids, finish):
    """An event of a stream as vLLM 0.32 writes it."""
    entries = [{"token": text[:3], "logprob": -0.5, "bytes": [1, 2], "top_logprobs": []} for _ in ids]
    delta = {"content": text, "tool_calls": calls}
    choice = {"index": 0, "delta": delta, "logprobs": {"content": entries}, "finish_reason": finish, "token_ids": ids}
    shared = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "engine-name"}
    return shared | {"choices": [choice]}


@given(TEXT, CALLS, IDS, st.sampled_from([None, "stop"]))
def test_cutting_an_event_equals_decoding_it(text, calls, ids, finish):
    """Whatever was said, both ways give the same bytes and the same piece of the message."""
    data = compact(chunk(text, calls, ids, finish))
    cut = cut_chunk(data)
    assert cut is not None
    fast, slow = rewriter(), rewriter(single=False)
    assert fast.chunk(data) == slow.chunk(data)
    assert [bytes(piece) for piece in fast.deltas[b"0"]] == [bytes(piece) for piece in slow.deltas[b"0"]] == [cut[1]]


@given(TEXT, IDS)
def test_events_with_more_than_a_part_of_the_answer_are_decoded(text, ids):
    """The prompt's ids, the usage, and pieces that say nothing are left to the decoder."""
    event = chunk(text, [], ids, None)
    assert cut_chunk(compact(event | {"prompt_token_ids": ids})) is None
    assert cut_chunk(compact(event | {"usage": {"prompt_tokens": 1}})) is None
    assert cut_chunk(compact(event | {"choices": []})) is None
    assert cut_chunk(compact({**event, "choices": [{**event["choices"][0], "delta": {}}]})) is None
    assert cut_chunk(compact({**event, "choices": [{**event["choices"][0], "logprobs": None}]})) is None


@given(TEXT, CALLS, IDS, IDS)
def test_cutting_equals_decoding(text, calls, ids, prompt):
    """Whatever was said, both ways give the same bytes, the same usage and the same message."""
    body = compact(answer(text, calls, ids, prompt))
    assert cut_whole(body) is not None
    fast, slow = rewriter(), rewriter()
    cut = fast.answer(body)
    original, rewrite.cut_whole = rewrite.cut_whole, lambda _: None
    try:
        decoded = slow.answer(body)
    finally:
        rewrite.cut_whole = original
    assert cut == decoded
    assert fast.usage == slow.usage
    assert {key: bytes(raw) for key, raw in fast.messages.items()} == {
        key: bytes(raw) for key, raw in slow.messages.items()
    }
    seen = json.loads(cut)
    assert seen["choices"][0]["message"]["content"] == text
    assert seen["choices"][0]["logprobs"] is seen["choices"][0]["token_ids"] is seen["prompt_token_ids"] is None


@given(TEXT, IDS, IDS)
def test_other_forms_are_left_to_the_decoder(text, ids, prompt):
    """Spaces, and fields in another order or missing, are not cut."""
    whole = answer(text, [], ids, prompt)
    without_ids = whole | {"choices": [whole["choices"][0] | {"token_ids": None}]}
    for body in (json.dumps(whole).encode(), compact(without_ids), b"{}", b"", Raw(b"[1]")):
        assert cut_whole(bytes(body)) is None


@given(TEXT, IDS, IDS, st.permutations(["index", "message", "logprobs", "finish_reason", "token_ids"]))
def test_nothing_captured_is_left_in_several_choices(text, ids, prompt, order):
    """With several choices, their fields in any order, each one loses what was captured."""
    whole = answer(text, [], ids, prompt)
    choices = [{name: whole["choices"][0][name] for name in order} | {"index": number} for number in (0, 1, 2)]
    seen = json.loads(rewriter(single=False).answer(compact(whole | {"choices": choices})))
    assert [(choice["logprobs"], choice["token_ids"]) for choice in seen["choices"]] == [(None, None)] * 3
    alone = json.loads(rewriter().answer(compact(whole | {"choices": choices[:1]})))
    assert alone["choices"][0]["logprobs"] is alone["choices"][0]["token_ids"] is None


COUNTS = {"mean_acceptance_length": 1.5, "acceptance_histogram": [1, 2], "num_draft_tokens": 8}
TIMINGS = st.dictionaries(st.sampled_from(["time_to_first_token_ms", "mean_itl_ms"]), st.floats(0, 9), max_size=2)
OTHERS = {"kv_transfer_params": None, "ec_transfer_params": None}


@given(TEXT, IDS, TIMINGS, st.booleans())
def test_counts_of_draft_tokens_are_not_for_the_client(text, ids, timings, captures):
    """Byte for byte, a fast answer is what it would be had the engine not been told to count."""

    def seen(metrics):
        whole = answer(text, [{"arguments": '"metrics":{"speculative_decoding":{}}'}], ids, ids)
        body = compact(whole | OTHERS | {"metrics": metrics})
        return rewriter(variant="fast", captures=captures).answer(body)

    unset = dict.fromkeys(("time_to_first_token_ms", "mean_itl_ms"))
    plain = {**unset, **timings, "speculative_decoding": None} if timings else None
    assert seen({**unset, **timings, "speculative_decoding": COUNTS}) == seen(plain)


@given(TIMINGS, st.booleans())
def test_an_events_counts_of_draft_tokens_are_left_out(timings, captures):
    """A fast stream's usage event has no ``metrics`` but what the engine tells anyway, and usage is still read."""
    usage = {"prompt_tokens": 3, "total_tokens": 5, "completion_tokens": 2}
    event = {"id": "chatcmpl-1", "model": "engine-name", "choices": [], "usage": usage}
    fast = rewriter(variant="fast", captures=captures)
    found = fast.chunk(compact(event | {"metrics": timings | {"speculative_decoding": COUNTS}}))
    plain = event | ({"metrics": timings} if timings else {}) | {"model": "coder@1"}
    assert found == compact(plain) and fast.usage.completion_tokens == 2


def test_answers_of_standard_engines_keep_their_metrics():
    """Where no engine of ours speculates, nothing is looked for."""
    body = compact(answer("x", [], [1], [2]) | {"metrics": {"speculative_decoding": COUNTS}})
    assert json.loads(rewriter().answer(body))["metrics"] == {"speculative_decoding": COUNTS}
