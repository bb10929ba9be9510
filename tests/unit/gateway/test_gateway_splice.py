"""Joining sampled ids with rendered ones, on a toy tokenizer whose texts have many tokenisations."""

from array import array

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from gateway.inference.splice import Answered, FallbackCause, Misfit, common_suffix, continued, spliced

PIECES = ["a", "b", "\n", " ", "ab", "ba", "aa", "\n\n", " a", "  ", "\n "]
START, END, OTHER_END = 100, 101, 102
WORDS = {"user": 90, "assistant": 91}
ANSWERS = st.lists(st.integers(0, len(PIECES) - 1), max_size=24)
TEXTS = st.text(alphabet="ab \n", max_size=12)
ENDING = array("I", [END, PIECES.index("\n")])


def tokenise(text: str) -> list[int]:
    """Longest piece first: one of the many tokenisations, and the only one that a rendering has."""
    ids: list[int] = []
    while text:
        piece = max((piece for piece in PIECES if text.startswith(piece)), key=len)
        ids.append(PIECES.index(piece))
        text = text[len(piece) :]
    return ids


def text_of(ids) -> str:
    """The text of ids, control tokens shown."""
    controls = {START: "<start>", END: "<end>", OTHER_END: "<other>", 90: "user", 91: "assistant"}
    return "".join(controls.get(token) or PIECES[token] for token in ids)


def rendering(messages, *, opening=True) -> array:
    """ChatML, each stretch between control tokens tokenised as one text."""
    ids: list[int] = []
    for role, text in messages:
        ids += [START, WORDS[role], *tokenise(f"\n{text}"), END, *tokenise("\n")]
    return array("I", [*ids, START, WORDS["assistant"], *tokenise("\n")] if opening else ids)


def answered(prompt, output, *, rendered=None, stop="end", reasons=False) -> Answered:
    """An earlier Turn."""
    return Answered(
        ids=array("I", prompt) + array("I", output),
        prompt_length=len(prompt),
        rendered=rendered,
        stop=stop,
        reasons=reasons,
        policy="coder",
        version=1,
    )


def joined(turn, rendered, said, later, *, keep=False):
    """What a gateway does: the rendering where it agrees, else the splice."""
    full = rendering([*said, *later])
    ids = continued(turn, rendered, full)
    return ids or spliced(turn, rendered, full, rendering(said, opening=False), ENDING, keep_stop_text=keep)


def cause_of(turn, rendered, said, later, *, keep=False) -> FallbackCause:
    """Why nothing was joined."""
    with pytest.raises(Misfit) as caught:
        joined(turn, rendered, said, later, keep=keep)
    return caught.value.cause


@given(st.lists(st.tuples(TEXTS, ANSWERS, st.booleans()), min_size=2, max_size=6))
def test_every_turn_continues_the_one_before_token_for_token_and_reads_as_rendered(turns):
    """Whatever is sampled, each prompt begins with the ids before it, and its text is the rendering's."""
    said, turn, rendered = [], None, None
    for asked, output, cut in turns:
        later = [("user", asked)]
        full = rendering([*said, *later])
        prompt = full if turn is None else joined(turn, rendered, said, later)
        if turn is not None:
            assert prompt[: len(turn.ids)] == turn.ids
        assert text_of(prompt) == text_of(full)
        ids = [*output] if cut else [*output, END]
        turn = answered(prompt, ids, rendered=full, stop="length" if cut else "end")
        said, rendered = [*said, *later, ("assistant", text_of(output))], full


@given(ANSWERS, TEXTS)
def test_a_rendering_that_agrees_is_taken_as_it_is(output, asked):
    """Where re-tokenising gives what was sampled, the result is the rendering itself."""
    first = rendering([("user", "a")])
    text = text_of(output)
    said = [("user", "a"), ("assistant", text)]
    full = rendering([*said, ("user", asked)])
    turn = answered(first, [*tokenise(text), END])
    assume(full[: len(turn.ids)] == turn.ids)
    assert joined(turn, first, said, [("user", asked)]) == full


@given(ANSWERS, TEXTS)
def test_an_answer_is_never_joined_to_another_history(output, system):
    """A changed message before the answer is a changed template's work: nothing is spliced."""
    first = rendering([("user", "a a"), ("user", "b")])
    said = [("user", f"b{system}"), ("user", "b"), ("assistant", text_of(output))]
    turn = answered(first, [*output, END])
    assert cause_of(turn, first, said, [("user", "b")]) is FallbackCause.TEMPLATE


def drifted(**fields):
    """A Turn whose answer was sampled in other pieces than a rendering has, and its conversation."""
    first = rendering([("user", "a")])
    output = fields.pop("output", [0, 0, 1, 0, END])
    said = [("user", "a"), ("assistant", fields.pop("text", "aaba"))]
    return answered(first, output, **fields), first, said, [("user", "b")]


def test_drift_is_spliced():
    """The sampled ids stay, the line break that the template adds follows, then the new message."""
    turn, first, said, later = drifted()
    ids = joined(turn, first, said, later)
    assert ids == turn.ids + array("I", tokenise("\n")) + rendering(later)
    assert ids != rendering([*said, *later])


def test_reasoning_that_a_rendering_lacks_is_not_brought_back():
    """The template's author, or the client, left it out."""
    assert cause_of(*drifted(reasons=True)) is FallbackCause.REASONING


def test_an_answer_that_shrank_was_not_just_tokenised():
    """Something without a name was taken out of it."""
    found = drifted(output=[0, 1] * 12 + [END], text="b")
    assert cause_of(*found) is FallbackCause.REWRITTEN_ANSWER


def test_a_stop_text_stays_only_where_it_may():
    """The client did not see it: kept in attempts, a reason to render anew for others."""
    found = drifted(output=[0, 0, 1, 0, 2, 0], text="aaba", stop="text")
    assert cause_of(*found) is FallbackCause.STOP_TEXT
    assert joined(*found, keep=True)[: len(found[0].ids)] == found[0].ids


def test_an_end_that_the_template_does_not_write_is_not_guessed():
    """An answer that ended by another token than the template's has no place in it."""
    assert cause_of(*drifted(output=[0, 0, 1, 0, OTHER_END])) is FallbackCause.ENDING


def test_a_template_that_ends_answers_otherwise_is_not_joined():
    """The ending that was learnt must stand at the end of this answer too."""
    turn, first, said, later = drifted()
    full, closed = rendering([*said, *later]), rendering(said, opening=False)
    for ending in (array("I"), array("I", [OTHER_END])):
        with pytest.raises(Misfit) as caught:
            spliced(turn, first, full, closed, ending, keep_stop_text=True)
        assert caught.value.cause is FallbackCause.ENDING


def test_messages_that_change_the_answers_rendering_are_not_joined():
    """What follows an answer must follow it in the rendering as well."""
    turn, first, said, later = drifted()
    closed = rendering(said, opening=False)
    with pytest.raises(Misfit) as caught:
        spliced(turn, first, rendering([*said[:1], ("assistant", "b"), *later]), closed, ENDING, keep_stop_text=True)
    assert caught.value.cause is FallbackCause.BOUNDARY


def test_the_ending_is_what_two_renderings_share():
    """Two one-word answers share the end of turn and nothing before it."""
    one, other = (rendering([("user", "a"), ("assistant", text)], opening=False) for text in "ab")
    assert common_suffix(one, other) == ENDING
