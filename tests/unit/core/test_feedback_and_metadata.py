"""Feedback's kinds and latest values, the bounds of metadata, and the time in an id."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core import ids
from core.errors import InvalidRequest
from core.feedback import Feedback, FeedbackKind, latest, read_value
from core.stored_completion import check_metadata
from tests import nouns

TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=64)


def feedback(**fields: object) -> Feedback:
    values = {
        "id": ids.new_id(ids.FEEDBACK),
        "tenant_id": "ten_a",
        "key_id": "key_a",
        "episode_id": "ep_a",
        "name": "good",
        "kind": FeedbackKind.NUMBER,
        "value": 1,
    }
    return Feedback(**(values | fields))


@given(st.one_of(st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.text()))
def test_an_inferred_kind_is_accepted_as_the_explicit_one(value):
    """Naming the inferred kind changes nothing, and the value is never touched."""
    kind, read = read_value(value, None)
    assert read_value(value, kind) == (kind, read)
    assert read == value
    assert type(read) is type(value)


@given(st.one_of(st.booleans(), st.integers(), st.text()))
def test_a_stored_value_keeps_its_type(value):
    """True does not become 1 on the way through JSON."""
    kind, read = read_value(value, None)
    back = Feedback.model_validate_json(feedback(kind=kind, value=read).model_dump_json())
    assert back.value == value
    assert type(back.value) is type(value)


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (True, FeedbackKind.NUMBER),
        (1, FeedbackKind.BOOLEAN),
        ("x", FeedbackKind.NUMBER),
        (float("nan"), None),
        (float("inf"), None),
        ({}, None),
        ({"role": "user", "content": "x"}, None),
        ({"content": ""}, FeedbackKind.DEMONSTRATION),
    ],
)
def test_values_that_are_not_of_their_kind(value, kind):
    """A wrong kind, a number that is none, and a demonstration without an answer are refused."""
    with pytest.raises(InvalidRequest):
        read_value(value, kind)


@given(st.lists(st.tuples(st.sampled_from(["turn_a", None]), st.sampled_from("xy"), st.integers(0, 3)), max_size=20))
def test_latest_wins(said):
    """For each subject and name the latest in time is kept, whatever the order in which they are read."""
    entries = [
        feedback(id=f"fb_{number:03}", turn_id=turn, name=name, created_at=float(at))
        for number, (turn, name, at) in enumerate(said)
    ]
    found = latest(entries)
    assert found == latest(reversed(entries))
    for place, one in found.items():
        same = [entry for entry in entries if (entry.subject, entry.name) == place]
        assert one == max(same, key=lambda entry: (entry.created_at, entry.id))
    assert len(found) == len({(entry.subject, entry.name) for entry in entries})


@given(st.dictionaries(TEXT, TEXT, max_size=16))
def test_metadata_within_the_bounds_passes_unchanged(pairs):
    """Up to 16 pairs of short texts are kept as they are."""
    assert check_metadata(pairs) == pairs


@pytest.mark.parametrize(
    "value",
    [
        [],
        "x",
        {"a": 1},
        {"a": None},
        {"a" * 65: "x"},
        {"a": "x" * 513},
        {str(n): "x" for n in range(17)},
        {"a": "\0"},
        {"\0": "a"},
        {"a": "\ud800"},
    ],
)
def test_metadata_beyond_the_bounds_is_refused(value):
    """Every bound of the OpenAI API, and what no database takes, names the field."""
    with pytest.raises(InvalidRequest) as caught:
        check_metadata(value)
    assert caught.value.param == "metadata"


def test_the_time_is_in_the_id():
    """An id tells when it was given out; other texts tell nothing."""
    before = time.time()
    found = ids.time_of(ids.new_id(ids.TURN))
    assert found is not None
    assert before - 0.002 <= found <= time.time() + 0.002
    assert ids.time_of("turn_a") is None
    assert ids.time_of("turn_" + "!" * 26) is None


def test_a_turn_without_content_keeps_only_counters():
    """No text, token, setting or digest is left, and it can never train."""
    turn = nouns.turn(sampling={"stop": "secret"}, trainable=True, stored=True, thread="digest")
    bare = turn.without_content()
    assert "secret" not in bare.model_dump_json()
    assert (bare.messages, bare.response, bare.prompt_ids, bare.output_ids, bare.thread) == ((), {}, (), (), None)
    assert not (bare.trainable or bare.exact or bare.stored or bare.content_kept)
    assert (bare.usage, bare.timing, bare.id) == (turn.usage, turn.timing, turn.id)
