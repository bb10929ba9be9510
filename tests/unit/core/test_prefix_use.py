"""The hit rate of an Episode counts what engines say, and nothing that they do not."""

from hypothesis import given
from hypothesis import strategies as st

from core.message import Usage
from core.prefix_use import PrefixUse, prefix_use
from tests import nouns


def turn(prompt: int, cached: int | None, choice: int = 0):
    return nouns.turn(choice=choice).model_copy(
        update={"usage": Usage(prompt_tokens=prompt, completion_tokens=1, cached_tokens=cached)}
    )


def test_turns_without_a_word_of_the_engine_are_left_out():
    """Unknown is not zero, and answers to one prompt count once."""
    assert prefix_use([turn(50, None)]) == PrefixUse()
    found = prefix_use([turn(40, 0), turn(60, 40), turn(60, 40, choice=1), turn(50, None)])
    assert found == PrefixUse(turns=2, prompt_tokens=100, cached_tokens=40, hit_rate=0.4)


@given(st.lists(st.tuples(st.integers(1, 500), st.floats(0, 1), st.booleans()), max_size=8))
def test_the_rate_is_a_share(turns):
    """However the Turns are, the rate lies between 0 and 1, or is not known."""
    found = prefix_use(turn(prompt, int(share * prompt) if told else None) for prompt, share, told in turns)
    assert (found.hit_rate is None) == (found.turns == 0)
    assert found.hit_rate is None or 0.0 <= found.hit_rate <= 1.0
