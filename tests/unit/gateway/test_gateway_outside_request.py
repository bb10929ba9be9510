"""What an outside provider is sent, and what its errors become, without LiteLLM."""

import json

import httpx
import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.config.load import environment_for_child, load_config, masked
from core.config.outside import OutsideProvider
from core.errors import InvalidRequest, RateLimited
from gateway.outside.errors import outside_error
from gateway.outside.request import OPENAI_FIELDS, completion_arguments, prefix_of

PROVIDER = OutsideProvider(api_key="sk-1", base_url="http://p/v1", headers={"x-a": "b"}, timeout_seconds=9)
NAMES = st.sampled_from(sorted(OPENAI_FIELDS - {"messages"})) | st.text(min_size=1, max_size=12)
ARGUMENTS = frozenset(
    {
        *OPENAI_FIELDS,
        *("min_p", "repetition_penalty", "top_k", "model", "stream", "timeout", "num_retries", "max_retries"),
        *("drop_params", "no-log", "stream_options", "extra_body", "api_key", "base_url", "extra_headers"),
    }
)


@given(st.dictionaries(NAMES, st.integers() | st.text(max_size=5)))
def test_a_body_steers_nothing_but_the_request(fields):
    """Whatever a body holds, keys, addresses and LiteLLM's options are the configuration's."""
    body = json.dumps(fields | {"messages": [], "model": "x"}).encode()
    try:
        arguments = completion_arguments("openai/m", body, PROVIDER, stream=True)
    except InvalidRequest:
        return
    assert arguments.keys() <= ARGUMENTS
    assert (arguments["model"], arguments["api_key"], arguments["base_url"]) == ("openai/m", "sk-1", "http://p/v1")
    assert arguments["extra_headers"] == {"x-a": "b"}
    assert arguments["stream_options"] == {"include_usage": True}
    assert (arguments["num_retries"], arguments["max_retries"], arguments["timeout"]) == (0, 0, 9)


@pytest.mark.parametrize("name", ["api_base", "api_key", "base_url", "extra_headers", "extra_body"])
def test_client_options_are_refused(name):
    """What would change where a request goes is an error that names the field."""
    with pytest.raises(InvalidRequest) as caught:
        completion_arguments("openai/m", json.dumps({"messages": [], name: "x"}).encode(), PROVIDER, stream=False)
    assert caught.value.param == name


@pytest.mark.parametrize("body", [b"[]", b"{", b"\xff", b"{}", b'{"messages": [1]}'])
def test_odd_bodies_are_invalid(body):
    """Only an object with messages is sent."""
    with pytest.raises(InvalidRequest):
        completion_arguments("openai/m", body, PROVIDER, stream=False)


def test_a_prefix_needs_a_name_behind_it():
    """The provider is what stands before the first slash."""
    assert [prefix_of(name) for name in ("openai/gpt", "a/b/c", "coder", "openai/", "/x")] == [
        "openai",
        "a",
        "",
        "",
        "",
    ]


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry-after": "7"}, 7.0),
        ({"Retry-After": "0.5"}, 0.5),
        ({"retry-after-ms": "250", "retry-after": "9"}, 0.25),
        ({"retry-after": "Thu, 01 Jan 1970 00:00:00 GMT"}, 0.0),
        ({"retry-after": "soon"}, None),
        ({}, None),
    ],
)
def test_retry_after_is_read_in_every_form(headers, seconds):
    """Seconds, milliseconds and dates; nonsense counts as nothing said."""
    response = httpx.Response(429, headers=headers, request=httpx.Request("POST", "http://p"))
    found = outside_error(openai.RateLimitError("no", response=response, body=None), "openai/m")
    assert isinstance(found, RateLimited)
    assert found.retry_after_seconds == seconds


def test_providers_and_fallbacks_reach_child_processes_and_stay_masked():
    """Names with dots and slashes survive the way through variables, and no key is ever printed."""
    config = load_config(
        environment={"HONE_CONFIG": "/dev/null"},
        overrides={
            "outside.providers": {"openai": {"api_key": "sk-1", "headers": {"X-Team.A": "secret-b"}}},
            "gateway.fallbacks": {"coder": ["openai/gpt-4.1", "base"]},
        },
    )
    assert load_config(environment=environment_for_child(config)) == config
    assert "sk-1" not in str(masked(config)) and "secret-b" not in str(masked(config))
