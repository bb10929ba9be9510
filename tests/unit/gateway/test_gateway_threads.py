"""Conversations are recognised by their messages, whatever a client does to what carries no meaning."""

import json

from hypothesis import given
from hypothesis import strategies as st

from gateway.inference.request import parse_request
from gateway.inference.threads import Link, ThreadIndex, message_digest, stream_digests, thread_of

TEXT = st.text(max_size=12)
TOOL_CALLS = st.lists(
    st.fixed_dictionaries({"id": TEXT, "type": st.just("function"), "function": st.fixed_dictionaries(
        {"name": st.sampled_from(["search", "run"]), "arguments": TEXT})}),
    min_size=1, max_size=3,
)  # fmt: skip
ASSISTANT = st.one_of(
    st.fixed_dictionaries({"role": st.just("assistant"), "content": TEXT}),
    st.fixed_dictionaries({"role": st.just("assistant"), "content": st.none(), "tool_calls": TOOL_CALLS}),
)
USER = st.fixed_dictionaries({"role": st.sampled_from(["user", "system"]), "content": TEXT})


def thread(messages, tenant="ten_a", **fields):
    body = json.dumps({"model": "coder", "messages": messages} | fields).encode()
    return thread_of(tenant, parse_request("chat.completions", body), "chat.completions")


def answered(asked, message):
    return message_digest(asked, json.dumps(message).encode())


def streamed(message):
    """The same answer in many chunks: text by characters, arguments by characters."""
    deltas = [{"role": "assistant", "content": ""}]
    deltas += [{"content": letter} for letter in message.get("content") or ""]
    for index, call in enumerate(message.get("tool_calls", ())):
        deltas.append({"tool_calls": [{"index": index, "id": call["id"], "function": {
            "name": call["function"]["name"], "arguments": ""}}]})  # fmt: skip
        deltas += [
            {"tool_calls": [{"index": index, "function": {"arguments": letter}}]}
            for letter in call["function"]["arguments"]
        ]
    return [json.dumps({"choices": [{"index": 0, "delta": delta}]}).encode() for delta in deltas]


@given(st.lists(USER, min_size=1, max_size=3), ASSISTANT, st.lists(USER, max_size=2), st.booleans())
def test_a_conversation_is_found_by_its_answer(asked, answer, more, as_stream):
    """Whoever sends the answer back with more behind it continues the Turn that gave it, streamed or whole."""
    index = ThreadIndex()
    asked_thread = thread(asked)
    digest = stream_digests(asked_thread, streamed(answer))[0] if as_stream else answered(asked_thread, answer)
    index.add(digest, Link("ep_1", "turn_1"))
    assert index.find(thread([*asked, answer, *more])) == Link("ep_1", "turn_1")
    assert index.find(thread([*asked, answer, *more], tenant="ten_b")) is None


@given(st.lists(USER, min_size=1, max_size=2), TEXT)
def test_what_carries_no_meaning_does_not_matter(asked, text):
    """Null fields, reasoning, and a text wrapped in parts leave a conversation what it is."""
    index = ThreadIndex()
    index.add(answered(thread(asked), {"role": "assistant", "content": text}), Link("ep", "turn"))
    wrapped = {"role": "assistant", "content": [{"type": "text", "text": text}], "tool_calls": None}
    dressed = {"role": "assistant", "content": text, "refusal": None, "reasoning_content": "hm", "annotations": []}
    for message in (wrapped, dressed):
        assert index.find(thread([*asked, message, {"role": "user", "content": "go on"}])) is not None


@given(st.lists(USER, min_size=1, max_size=3), TEXT, TEXT)
def test_a_rewritten_history_is_another_conversation(asked, text, other):
    """A changed answer or question is not continued; an earlier answer that still stands is."""
    index = ThreadIndex()
    first = {"role": "assistant", "content": text + "."}
    index.add(answered(thread(asked), first), Link("ep", "first"))
    second_question = [*asked, first, {"role": "user", "content": "b"}]
    second = {"role": "assistant", "content": other}
    index.add(answered(thread(second_question), second), Link("ep", "second"))
    rewritten = [*second_question[:-1], {"role": "user", "content": "c"}, second]
    assert index.find(thread(rewritten)) == Link("ep", "first")
    changed = [*asked[:-1], {"role": "user", "content": asked[-1]["content"] + "!"}, first]
    assert index.find(thread(changed)) is None


def test_what_is_no_conversation_has_no_thread():
    """Messages in a shape that no engine takes break nothing here; completions have none."""
    for messages in ([], "hello", [1], [{"role": 1}], None):
        assert thread(messages) is None
    request = parse_request("completions", b'{"model": "coder", "prompt": "x"}')
    assert thread_of("ten_a", request, "completions") is None
