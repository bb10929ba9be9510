"""Personal data is taken out before anything is stored, and what was changed never trains."""

import json

import pytest

from gateway.capture.prepared import prepare_call, set_aside_form
from gateway.capture.redaction import PresidioRedactor, load_redactor
from tests.captured_calls import captured_call

SECRETS = {
    "EMAIL_ADDRESS": "john.doe@example.com",
    "PHONE_NUMBER": "+49 170 1234567",
    "CREDIT_CARD": "4111 1111 1111 1111",
    "IBAN_CODE": "DE89370400440532013000",
    "IP_ADDRESS": "203.0.113.7",
}
EMAIL = SECRETS["EMAIL_ADDRESS"]


@pytest.fixture(scope="module")
def redactor():
    """The installed redactor."""
    found = load_redactor()
    assert isinstance(found, PresidioRedactor)
    return found


def call_of(messages, answer="fine", *, request=None, message=None, **changes):
    """A redacting tenant's call."""
    body = {"model": "coder", "messages": messages} | (request or {})
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": answer} | (message or {}),
        "finish_reason": "stop",
        "token_ids": [4],
        "logprobs": {"content": [{"logprob": -0.1}]},
    }
    payload = {"prompt_token_ids": [1], "choices": [choice], "usage": {"prompt_tokens": 1, "completion_tokens": 1}}
    changes = {"request": json.dumps(body).encode(), "payloads": [json.dumps(payload).encode()]} | changes
    return captured_call(redact=True, **changes)


def user(text):
    """One user message."""
    return [{"role": "user", "content": text}]


@pytest.mark.parametrize("kind", list(SECRETS))
def test_what_is_found_is_named_by_its_kind(redactor, kind):
    """Each kind of personal data is replaced as a whole, the text around it stays."""
    assert redactor.redact(f"before {SECRETS[kind]} after") == f"before <{kind}> after"


@pytest.mark.parametrize(
    "text", ["2 + 2?", "def f(x): return x[10:20]", "in 2024 we had 1234 of 5678", "", "café ☕"]
)
def test_ordinary_text_is_left_alone(redactor, text):
    """Text without personal data comes back unchanged, so that its Turn keeps its tokens."""
    assert redactor.redact(text) == text


def test_an_unchanged_turn_keeps_its_tokens_and_trains(redactor):
    """Redaction costs nothing where there is nothing to take out."""
    prepared = prepare_call(call_of(user("2 + 2?")), redactor)
    (turn,) = prepared.turns
    assert (turn.exact, turn.trainable, turn.redacted, turn.output_ids) == (True, True, False, (4,))


@pytest.mark.parametrize(
    "call",
    [
        call_of(user(f"write to {EMAIL}")),
        call_of(user([{"type": "text", "text": f"write to {EMAIL}"}])),
        call_of(user("hi"), f"write to {EMAIL}"),
        call_of(user("hi"), request={"metadata": {"customer": EMAIL}, "user": EMAIL}),
        call_of(user("hi"), request={"metadata": {EMAIL: "vip"}}),
        call_of(user("hi"), request={"metadata": {"id": EMAIL}}),
        call_of([{"role": "tool", "tool_call_id": "call_1", "content": json.dumps({"id": EMAIL})}]),
        call_of(user("hi"), message={"reasoning": f"the user is {EMAIL}"}),
        call_of(
            user("hi"),
            message={
                "tool_calls": [
                    {
                        "id": "call_1",
                        "type": "function",
                        "function": {"name": "f", "arguments": json.dumps({"to": EMAIL})},
                    }
                ]
            },
        ),
    ],
)
def test_nothing_of_it_gets_into_the_turn(redactor, call):
    """Wherever it stands in request or answer, it is gone, and so are the token ids that spell it."""
    prepared = prepare_call(call, redactor)
    (turn,) = prepared.turns
    assert EMAIL not in turn.model_dump_json()
    assert EMAIL not in prepared.call.request.decode()
    assert (turn.redacted, turn.exact, turn.trainable, turn.consented) == (True, False, False, True)
    assert (turn.prompt_ids, turn.output_ids, turn.output_logprobs) == ((), (), ())
    assert turn.usage.completion_tokens == 1
    assert prepared.failures["inexact"] == 0


def test_arguments_of_a_tool_call_stay_json(redactor):
    """Also a card's number that stood there as a number."""
    arguments = json.dumps({"card": 4111111111111111, "name": "x"})
    message = {
        "tool_calls": [{"id": "call_1", "type": "function", "function": {"name": "f", "arguments": arguments}}]
    }
    (turn,) = prepare_call(call_of(user("hi"), message=message), redactor).turns
    (made,) = turn.response["tool_calls"]
    assert json.loads(made["function"]["arguments"]) == {"card": "<CREDIT_CARD>", "name": "x"}
    assert made["id"] == "call_1"


def test_what_cannot_be_searched_is_taken_out(redactor):
    """Pictures go as a whole, and so does a prompt that is given in token ids."""
    picture = [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}]
    (turn,) = prepare_call(call_of(user(picture)), redactor).turns
    assert turn.messages[0]["content"] == [{"type": "text", "text": "<IMAGE_URL>"}]
    assert not turn.trainable
    request = json.dumps({"model": "coder", "prompt": [5, 6, 7]}).encode()
    (turn,) = prepare_call(_tokens(request), redactor).turns
    assert (turn.redacted, turn.prompt_ids) == (True, ())


def _tokens(request):
    payload = {"choices": [{"index": 0, "text": "x", "finish_reason": "stop"}]}
    return captured_call(
        redact=True, endpoint="completions", request=request, payloads=[json.dumps(payload).encode()]
    )


class Broken:
    """A redactor that fails."""

    def redact(self, text):
        """Always."""
        raise RuntimeError(text)


@pytest.mark.parametrize(("which", "cause"), [(None, "redaction_unavailable"), (Broken(), "redaction_failed")])
def test_what_cannot_be_redacted_is_not_kept(which, cause):
    """Without a working redactor only counters of the call are kept, and that is counted."""
    prepared = prepare_call(call_of(user(f"write to {EMAIL}"), prompt_tokens=5), which)
    (turn,) = prepared.turns
    assert (turn.content_kept, turn.trainable, turn.stored, turn.usage.prompt_tokens) == (False, False, False, 5)
    assert "hi" not in turn.model_dump_json()
    assert (prepared.call.request, prepared.call.payloads) == (b"", [])
    assert prepared.failures == {cause: 1}


def test_a_rejected_call_of_a_redacting_tenant_is_put_aside_without_content():
    """What lies aside may lie there for long."""
    aside = set_aside_form(call_of(user(EMAIL)))
    assert (aside.request, aside.payloads) == (b"", [])
    assert set_aside_form(captured_call()) == captured_call()
