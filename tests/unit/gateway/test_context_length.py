"""Requests that cannot fit are refused before an engine sees them, and none that could fit is."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.errors import ContextLengthExceeded, InvalidRequest
from gateway.inference.context import check_context, least_prompt_tokens
from gateway.inference.request import parse_request
from gateway.upstream.errors import engine_error

LONGEST = 4


def chat(*messages, **more):
    return parse_request("chat.completions", json.dumps({"model": "m", "messages": messages} | more).encode())


def completion(prompt, **more):
    return parse_request("completions", json.dumps({"model": "m", "prompt": prompt} | more).encode())


def user(text):
    return {"role": "user", "content": text}


@pytest.mark.parametrize(
    ("request_", "param"),
    [
        (chat(user("hi"), max_tokens=101), "max_tokens"),
        (chat(user("hi"), max_tokens=5, max_completion_tokens=101), "max_completion_tokens"),
        (completion("hi", max_tokens=101), "max_tokens"),
        (completion(list(range(100)), max_tokens=1), "prompt"),
        (completion([[1], list(range(101))], max_tokens=1), "prompt"),
        (completion("x" * 401, max_tokens=1), "prompt"),
        (chat(user("x" * 401)), "messages"),
        (chat(user([{"type": "text", "text": "x" * 401}])), "messages"),
        (chat({"role": "system", "content": "x" * 300}, {"role": "tool", "content": "x" * 150}), "messages"),
    ],
)
def test_what_cannot_fit_is_refused_with_openais_code(request_, param):
    """The error has OpenAI's code and names the field that is too long."""
    with pytest.raises(ContextLengthExceeded) as raised:
        check_context(request_, 100, LONGEST)
    assert (raised.value.code, raised.value.param, raised.value.status) == ("context_length_exceeded", param, 400)
    assert "maximum context length is 100 tokens" in raised.value.message


@pytest.mark.parametrize(
    "request_",
    [
        chat(user("hi"), max_tokens=100 - 1),
        chat(user("x" * 399), max_tokens=None),
        completion(list(range(99)), max_tokens=1),
        chat(user("x" * 9999), truncate_prompt_tokens=10),
        chat(user("x" * 9999), kv_transfer_params={"prompt_token_ids": [1]}),
        chat({"role": "assistant", "content": "x" * 9999}, user("hi")),
        chat(user(" " * 9999 + "hi")),
        chat(user([{"type": "image_url", "image_url": {"url": "data:" + "x" * 9999}}])),
        parse_request("chat.completions", b'{"model": "m", "messages": "' + b"x" * 9999 + b'"}'),
    ],
)
def test_what_may_fit_is_left_to_the_engine(request_):
    """Truncated prompts, earlier answers, blanks, pictures and odd messages are no reason to refuse."""
    check_context(request_, 100, LONGEST)


def test_without_a_bound_only_ids_are_counted():
    """A Base whose tokenizer promises nothing has its texts read by the engine."""
    check_context(chat(user("x" * 9999)), 100, None)
    check_context(completion("x" * 9999), 100, None)
    with pytest.raises(ContextLengthExceeded):
        check_context(completion(list(range(101))), 100, None)


@given(st.lists(st.text(max_size=80), min_size=1, max_size=4), st.integers(1, 60))
def test_the_least_is_never_more_than_what_any_tokenizer_gives(texts, room):
    """For a tokenizer with one token per ``LONGEST`` bytes, which is the shortest way, the bound still holds."""
    asked = chat(*map(user, texts))
    shortest = -(-sum(len(text.encode(errors="ignore")) for text in texts) // LONGEST)
    assert least_prompt_tokens(asked, room, LONGEST) <= shortest


@pytest.mark.parametrize(
    ("message", "param", "shown"),
    [
        ("This model's maximum context length is 64 tokens. However, your prompt contains 99 input tokens",
         "input_tokens", "messages"),
        ("max_tokens=99 cannot be greater than max_model_len=64. Please request fewer output tokens.",
         "max_tokens", "max_tokens"),
        ("Input length (99) exceeds model's maximum context length (64).", None, "messages"),
        ("The input (99 tokens) is longer than the model's context length (64 tokens).", None, "messages"),
    ],
)  # fmt: skip
def test_an_engines_own_words_become_the_same_code(message, param, shown):
    """What only the engine can count is told to the client in the same way."""
    body = json.dumps({"error": {"message": message, "param": param, "code": 400}}).encode()
    error = engine_error(400, body, prompt="messages")
    assert isinstance(error, ContextLengthExceeded)
    assert (error.code, error.param, error.message) == ("context_length_exceeded", shown, message)
    other = engine_error(400, b'{"error": {"message": "n must be 1"}}')
    assert type(other) is InvalidRequest
