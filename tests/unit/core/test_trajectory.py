"""Branches follow token prefixes, and every break has its cause."""

from hypothesis import given
from hypothesis import strategies as st

from core.policy import PolicySpan
from core.trajectory import BreakCause, break_cause, build_trajectory, continues
from core.turn import Timing, Turn
from core.variant import Variant
from tests import nouns

P = {"output_logprobs": (-0.1,)}
USER, ANSWER = {"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}


def turn(index, prompt, output, *, messages=(USER,), response=ANSWER):
    return Turn(
        id=f"turn_{index}",
        episode_id="ep_1",
        index=index,
        tenant_id="ten_1",
        policy="p",
        policy_spans=(PolicySpan(version=1),),
        variant=Variant.STANDARD,
        deployment_id="dep_1",
        messages=messages,
        response=response,
        prompt_ids=tuple(prompt),
        output_ids=tuple(output),
        output_logprobs=tuple(-0.1 for _ in output),
        timing=Timing(started_at=0.0, total_seconds=0.1),
        request_id="req_1",
    )


def test_an_extending_prompt_continues_the_branch():
    """A Turn whose prompt ids start with all earlier ids lands in the same Branch."""
    trajectory = build_trajectory("ep_1", [turn(0, [1, 2], [3]), turn(1, [1, 2, 3, 4], [5])])
    assert [len(branch.turns) for branch in trajectory.branches] == [2]
    assert trajectory.branches[0].cause is BreakCause.FIRST


def test_a_rewritten_history_opens_a_branch():
    """Messages that differ from what was answered are the cause of the break."""
    rewritten = ({"role": "user", "content": "other"}, ANSWER, USER)
    trajectory = build_trajectory("ep_1", [turn(0, [1, 2], [3]), turn(1, [9, 9], [5], messages=rewritten)])
    assert [branch.cause for branch in trajectory.branches] == [
        BreakCause.FIRST,
        BreakCause.REWRITTEN_HISTORY,
    ]


def test_equal_messages_with_other_ids_name_the_tokens_as_cause():
    """The same messages can part in the prompt (template) or inside the answer (re-tokenised)."""
    same = (USER, ANSWER, USER)
    template = build_trajectory("ep_1", [turn(0, [1, 2], [3]), turn(1, [1, 7, 3, 4], [5], messages=same)])
    retokenised = build_trajectory("ep_1", [turn(0, [1, 2], [3]), turn(1, [1, 2, 8, 4], [5], messages=same)])
    assert template.branches[1].cause is BreakCause.TEMPLATE
    assert retokenised.branches[1].cause is BreakCause.RETOKENISED


def test_a_compacted_conversation_is_a_branch_of_its_own():
    """What was taken out on purpose is the cause, whatever the messages say, and what follows continues there."""
    stub = ({"role": "user", "content": "[left out]"}, ANSWER, USER)
    before = turn(0, [1, 2], [3])
    compacted = turn(1, [9, 4], [5], messages=stub).model_copy(
        update={"compacted": True, "parent_turn_id": before.id}
    )
    after = turn(2, [9, 4, 5, 6], [7])
    trajectory = build_trajectory("ep_1", [before, compacted, after])
    assert [[one.index for one in branch.turns] for branch in trajectory.branches] == [[0], [1, 2]]
    assert [branch.cause for branch in trajectory.branches] == [BreakCause.FIRST, BreakCause.COMPACTION]


ids = st.lists(st.integers(0, 3), min_size=1, max_size=4)


@given(st.lists(st.tuples(ids, ids), min_size=1, max_size=8))
def test_each_turn_lands_in_exactly_one_branch_and_branches_are_prefix_chains(pairs):
    """No Turn is lost or doubled, and in every Branch each Turn continues the one before."""
    turns = [turn(index, prompt, output) for index, (prompt, output) in enumerate(pairs)]
    trajectory = build_trajectory("ep_1", turns)
    placed = [item.id for branch in trajectory.branches for item in branch.turns]
    assert sorted(placed) == sorted(item.id for item in turns)
    for branch in trajectory.branches:
        assert all(continues(a, b) for a, b in zip(branch.turns, branch.turns[1:], strict=False))


@given(st.lists(ids, min_size=1, max_size=5), ids)
def test_a_conversation_that_only_grows_is_one_branch(outputs, opening):
    """Token-exact multi-turn never breaks."""
    prompt, turns = list(opening), []
    for index, output in enumerate(outputs):
        turns.append(turn(index, prompt, output))
        prompt = [*prompt, *output, 99 + index]
    assert len(build_trajectory("ep_1", turns).branches) == 1


def test_other_answers_to_one_request_are_no_breaks():
    """With several choices each begins a Branch of its own, and none counts as a rewritten history."""
    first = nouns.turn(id="a", index=0, choice=0, prompt_ids=(1, 2), output_ids=(3,), **P)
    second = nouns.turn(id="b", index=0, choice=1, prompt_ids=(1, 2), output_ids=(4,), **P)
    later = nouns.turn(id="c", index=1, prompt_ids=(1, 2, 4, 5), output_ids=(6,), **P)
    trajectory = build_trajectory("ep", [later, second, first])
    assert [[turn.id for turn in branch.turns] for branch in trajectory.branches] == [["a"], ["b", "c"]]
    assert [branch.cause for branch in trajectory.branches] == [BreakCause.FIRST, BreakCause.SIBLING]


def test_a_break_is_judged_by_the_turn_that_the_messages_name():
    """Of two interleaved conversations each one's Turn is compared with its own predecessor."""
    said = {"role": "assistant", "content": "x"}
    asked, others = ({"role": "user", "content": "main"},), ({"role": "user", "content": "sub"},)
    went_on = (*asked, said, {"role": "user", "content": "go"})
    main = nouns.turn(id="m", index=0, messages=asked, response=said, prompt_ids=(1,), output_ids=(2,), **P)
    other = nouns.turn(id="s", index=1, messages=others, response=said, prompt_ids=(7,), output_ids=(8,), **P)
    later = nouns.turn(id="l", index=2, messages=went_on, parent_turn_id="m", prompt_ids=(1, 3), output_ids=(4,), **P)
    causes = [branch.cause for branch in build_trajectory("ep", [main, other, later]).branches]
    assert causes == [BreakCause.FIRST, BreakCause.REWRITTEN_HISTORY, BreakCause.RETOKENISED]


def test_a_changed_tool_call_is_a_rewritten_history():
    """Messages that agree in text and differ in what a tool was called with are not the same."""
    call = {"function": {"name": "f", "arguments": "{}"}}
    said = {"role": "assistant", "content": None, "tool_calls": [call]}
    changed = {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f", "arguments": "[]"}}]}
    asked = ({"role": "user", "content": "q"},)
    first = nouns.turn(id="a", index=0, messages=asked, response=said, prompt_ids=(1,), output_ids=(2,), **P)
    later = nouns.turn(id="b", index=1, messages=(*asked, changed), prompt_ids=(1, 3), output_ids=(4,), **P)
    assert break_cause(first, later) is BreakCause.REWRITTEN_HISTORY
    assert break_cause(first, later.model_copy(update={"messages": (*asked, said)})) is BreakCause.RETOKENISED
