"""What is added to requests and taken out of answers."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from core.errors import InvalidRequest
from gateway.inference.request import MAX_ANSWERS, engine_body, parse_request
from gateway.inference.rewrite import AnswerRewriter, engine_error_in
from gateway.inference.target import Target

NAME = Raw(b'"engine-name"')
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.text(max_size=5)
    | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
UNDERSTOOD = {
    "model", "stream", "n", "max_tokens", "max_completion_tokens", "prompt", "echo", "use_beam_search",
    "return_token_ids", "logprobs", "top_logprobs", "logprob_token_ids", "stream_options",
}  # fmt: skip
OTHERS = st.dictionaries(st.text(max_size=8).filter(lambda name: name not in UNDERSTOOD), JSON, max_size=6)


def rewriter(plan):
    return AnswerRewriter(
        Target(
            policy="coder",
            version=1,
            variant="standard",
            deployment_id="dep",
            engine_model="engine-name",
            public_model="coder@1",
            plan=plan,
            send=None,
        )
    )


def parsed(endpoint="chat.completions", **fields):
    return parse_request(endpoint, json.dumps({"model": "coder"} | fields).encode())


@given(OTHERS, st.sampled_from(["chat.completions", "completions"]))
def test_unknown_fields_reach_the_engine_unchanged(others, endpoint):
    """Whatever the client sends arrives, beside the engine's model name and what capture adds."""
    request = parse_request(endpoint, json.dumps(others | {"model": "coder"}).encode())
    sent = json.loads(engine_body(request, NAME, request.plan))
    added = {"return_token_ids": True, "logprobs": True if endpoint == "chat.completions" else 0}
    assert sent == others | {"model": "engine-name"} | added
    for plan in (None, request.plan.without_content()):
        assert json.loads(engine_body(request, NAME, plan)) == others | {"model": "engine-name"}


@given(OTHERS, OTHERS, st.booleans(), st.booleans())
def test_stripping_undoes_injecting(answer, choice, asks_ids, asks_logprobs):
    """An engine's answer with captured fields becomes what it would have been without them."""
    extra = {"token_ids": [1], "prompt_token_ids": [2]}
    full_choice = choice | {"index": 0, "logprobs": {"content": []}} | extra
    full = answer | {"model": "engine-name", "prompt_token_ids": [2], "choices": [full_choice]}
    request = parsed(return_token_ids=asks_ids, logprobs=asks_logprobs)
    seen = json.loads(rewriter(request.plan).answer(json.dumps(full).encode()))
    nulls = dict.fromkeys(extra)
    wanted_choice = choice | {"index": 0, "logprobs": {"content": []} if asks_logprobs else None}
    wanted_choice |= extra if asks_ids else nulls
    wanted = answer | {"model": "coder@1", "prompt_token_ids": [2] if asks_ids else None}
    assert seen == wanted | {"choices": [wanted_choice]}


@pytest.mark.parametrize(
    ("endpoint", "fields", "token_ids", "logprobs"),
    [
        ("chat.completions", {}, True, True),
        ("chat.completions", {"logprobs": True}, True, False),
        ("chat.completions", {"logprobs": False, "return_token_ids": False}, True, True),
        ("chat.completions", {"return_token_ids": True}, False, True),
        ("chat.completions", {"top_logprobs": 3}, True, False),
        ("chat.completions", {"top_logprobs": 0}, True, True),
        ("chat.completions", {"logprob_token_ids": [5]}, True, False),
        ("chat.completions", {"use_beam_search": True}, False, False),
        ("completions", {"logprobs": 0}, True, False),
        ("completions", {"logprobs": None}, True, True),
        ("completions", {"echo": True}, False, False),
        ("chat.completions", {"echo": True}, True, True),
    ],
)
def test_nothing_is_added_that_would_change_the_answer(endpoint, fields, token_ids, logprobs):
    """Fields are added only where the client's own answer stays what it is."""
    plan = parsed(endpoint, **fields).plan
    assert (plan.token_ids, plan.logprobs) == (token_ids, logprobs)


def test_the_usage_chunk_is_shown_to_those_who_asked():
    """A usage chunk that nobody asked for is dropped, and noted all the same."""
    usage = json.dumps({"model": "m", "choices": [], "usage": {"total_tokens": 1}}).encode()
    choice = {"index": 0, "delta": {"content": "x"}}
    chunk = json.dumps({"model": "m", "choices": [choice], "usage": {"total_tokens": 1}}).encode()
    silent = rewriter(parsed(stream=True).plan)
    asked = rewriter(parsed(stream=True, stream_options={"include_usage": True}).plan)
    assert silent.chunk(usage) is None
    assert silent.usage is not None
    assert json.loads(asked.chunk(usage))["usage"] == {"total_tokens": 1}
    assert "usage" in json.loads(asked.chunk(chunk))


def test_chunks_that_only_carry_token_ids_are_not_shown():
    """An engine with a tool parser sends empty deltas only because of the capture."""
    choice = {"index": 0, "delta": {}, "token_ids": [7], "finish_reason": None}
    chunk = json.dumps({"model": "m", "choices": [choice]}).encode()
    last = json.dumps({"model": "m", "choices": [choice | {"finish_reason": "stop"}]}).encode()
    hidden = rewriter(parsed(stream=True).plan)
    open_ = rewriter(parsed(stream=True, return_token_ids=True, logprobs=True).plan)
    assert hidden.chunk(chunk) is None
    assert hidden.chunk(last) is not None
    assert open_.chunk(chunk) is not None


@pytest.mark.parametrize("asked", [{"return_token_ids": True}, {"logprobs": True}])
def test_client_that_asked_for_ids_or_logprobs_sees_chunks_without_text(asked):
    """Half a character has a token and no text yet: who asked for ids or log-probs gets those of every token."""
    choice = {"index": 0, "delta": {}, "logprobs": {"content": [1]}, "token_ids": [7], "finish_reason": None}
    chunk = json.dumps({"model": "m", "choices": [choice]}).encode()
    shown = rewriter(parsed(stream=True, **asked).plan).chunk(chunk)
    assert shown is not None
    (kept,) = json.loads(shown)["choices"]
    assert kept["token_ids"] == ([7] if "return_token_ids" in asked else None)
    assert kept["logprobs"] == ({"content": [1]} if "logprobs" in asked else None)


@pytest.mark.parametrize(
    ("endpoint", "fields", "choices"),
    [
        ("chat.completions", {}, 1),
        ("chat.completions", {"n": 4}, 4),
        ("completions", {"prompt": "a", "n": 2}, 2),
        ("completions", {"prompt": ["a", "b"], "n": 2}, 4),
        ("completions", {"prompt": [1, 2, 3]}, 1),
        ("completions", {"prompt": [[1], [2]]}, 2),
        ("completions", {"prompt": []}, 1),
    ],
)
def test_choices_are_counted_before_the_answer(endpoint, fields, choices):
    """There are as many Turns as answers: ``n`` times the number of prompts."""
    assert parsed(endpoint, **fields).choices == choices


@given(st.binary(max_size=60))
def test_any_bytes_are_a_request_or_an_invalid_request(body):
    """No input makes the parser fail in another way than by InvalidRequest."""
    try:
        parse_request("chat.completions", body)
    except InvalidRequest as error:
        assert error.message


@given(st.dictionaries(st.sampled_from(sorted(UNDERSTOOD)), JSON, max_size=6))
def test_any_json_is_a_request_or_an_invalid_request(fields):
    """Fields of every type are either understood or refused by name."""
    for endpoint in ("chat.completions", "completions"):
        try:
            parse_request(endpoint, json.dumps(fields).encode())
        except InvalidRequest as error:
            assert error.param in UNDERSTOOD


@pytest.mark.parametrize("name", ["messages", "anything", "stop"])
def test_a_body_nested_without_end_is_an_invalid_request(name):
    """Nesting beyond the parser's depth is the caller's fault, not a crash."""
    body = b'{"model": "coder", "%b": %b%b}' % (name.encode(), b"[" * 100_000, b"]" * 100_000)
    with pytest.raises(InvalidRequest):
        parse_request("chat.completions", body)


def test_an_error_event_is_told_from_a_chunk_about_errors():
    """Only an object with ``error`` and without ``choices`` is an engine's error."""
    assert engine_error_in(b'{"error": {"message": "x"}}') is not None
    assert engine_error_in(b'{"choices": [], "error": null}') is None
    assert engine_error_in(rb'{"choices": [{"delta": {"content": "\"error\""}}]}') is None


@pytest.mark.parametrize(("prompts", "n", "param"), [(1025, 1, "prompt"), (9, 128, "n")])
def test_too_many_answers_are_refused(prompts, n, param):
    """Prompts times ``n`` has a bound, and the error names the field that passes it."""
    with pytest.raises(InvalidRequest) as refused:
        parsed("completions", prompt=["a"] * prompts, n=n)
    assert refused.value.param == param
    assert parsed("completions", prompt=["a"] * 8, n=128).choices == MAX_ANSWERS
