"""Compaction takes out older tool results and nothing else, and a second look changes nothing."""

from hypothesis import given
from hypothesis import strategies as st

from core.compaction import compacted, over_budget, text_of
from core.config.gateway import ContextBudget, ContextSection

BUDGET = ContextBudget(tokens=64, keep_results=1, least_characters=10)

messages = st.lists(
    st.fixed_dictionaries(
        {
            "role": st.sampled_from(["system", "user", "assistant", "tool"]),
            "content": st.text("xyz ", max_size=40) | st.none(),
        }
    ),
    max_size=12,
)


def tool(text: str) -> dict[str, object]:
    return {"role": "tool", "tool_call_id": "c", "content": text}


@given(messages, st.integers(0, 3), st.integers(0, 20), st.sampled_from([0, 1, 8]))
def test_only_older_tool_results_change_and_once(conversation, keep, least, excerpt):
    """All other messages and the newest results stay; order, roles and call ids too; nothing is left for a second
    pass."""
    budget = ContextBudget(tokens=64, keep_results=keep, least_characters=least, excerpt_characters=excerpt)
    fewer = compacted(conversation, budget)
    results = [place for place, message in enumerate(conversation) if message["role"] == "tool"]
    may_change = set(results[: len(results) - keep])
    after = conversation if fewer is None else fewer
    assert len(after) == len(conversation)
    for place, (old, new) in enumerate(zip(conversation, after, strict=True)):
        assert {**old, "content": None} == {**new, "content": None}
        if place not in may_change or len(text_of(old)) < least:
            assert old == new
    assert compacted(after, budget) is None


def test_the_line_that_is_left_says_how_long_the_result_was():
    """A result becomes one line; its call id stays; parts of a content count as its text."""
    parts = {"role": "tool", "tool_call_id": "c", "content": [{"type": "text", "text": "y" * 30}]}
    fewer = compacted([tool("x" * 500), parts, tool("z" * 50)], BUDGET)
    assert fewer is not None
    assert [message["content"] for message in fewer[:2]] == [
        "[tool result left out to save context: 500 characters]",
        "[tool result left out to save context: 30 characters]",
    ]
    assert fewer[0]["tool_call_id"] == "c"
    assert fewer[2] == tool("z" * 50)


def test_an_excerpt_keeps_both_ends():
    """Beginning and end of a long result stay around the line; what would gain nothing stays whole."""
    budget = BUDGET.model_copy(update={"excerpt_characters": 10})
    fewer = compacted([tool("a" * 100 + "b" * 100), tool("z" * 50), tool("last")], budget)
    assert fewer is not None
    line = "[tool result left out to save context: 190 characters]"
    assert fewer[0]["content"] == f"aaaaa\n{line}\nbbbbb"
    assert fewer[1]["content"] == "z" * 50
    assert compacted(fewer, budget) is None


def test_results_of_another_form_keep_their_head():
    """Where results are user messages with a head, the head stays and only they go."""
    spoken = [{"role": "user", "content": "Tool output:\n" + "x" * 90}, {"role": "user", "content": "x" * 90}]
    fewer = compacted(
        spoken,
        BUDGET.model_copy(update={"keep_results": 0}),
        is_result=lambda message: text_of(message).startswith("Tool output:"),
        prefix="Tool output:\n",
    )
    assert fewer is not None
    assert fewer[0]["content"] == "Tool output:\n[tool result left out to save context: 90 characters]"
    assert fewer[1] == spoken[1]


def test_what_the_engine_counted_is_not_estimated_again():
    """Counted tokens stand for the messages that they were counted of; the rest is estimated by its length."""
    conversation = [tool("x" * 10_000), tool("y" * 40)]
    assert over_budget(conversation, BUDGET)
    assert not over_budget(conversation, BUDGET, counted=50, since=1)
    assert over_budget(conversation, BUDGET, counted=55, since=1)


def test_a_budget_is_found_by_name_or_for_all():
    """A Policy's own budget comes before the one for all others."""
    section = ContextSection(budgets={"coder": BUDGET, "*": ContextBudget(tokens=1000)})
    assert section.budget_of("coder") == BUDGET
    assert section.budget_of("other") == ContextBudget(tokens=1000)
    assert ContextSection().budget_of("coder") is None
