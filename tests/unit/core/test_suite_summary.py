"""Summaries and comparisons of SuiteResults, fingerprints, perturbations and long Episodes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.errors import TaskError
from core.long_episode import Step, drift, forgotten_at, goal_kept, repeated_steps, repetition, success_by_step
from core.perturbation import PERTURBATIONS, perturbed
from core.prompt_fingerprint import normalised, prompt_fingerprint
from core.suite import Attempt, SuiteResult
from core.suite_summary import ALL, compare_results, stability_of, summarise
from core.task import VerifierSpec, make_task


def a_task(prompt="What is 2 + 2?", split="heldout", **fields):
    """A Task with one question."""
    verifiers = (VerifierSpec(name="exact", options={"expected": "4"}),)
    return make_task(
        domain="d", split=split, messages=({"role": "user", "content": prompt},), verifiers=verifiers, **fields
    )


def result(successes, *, domain="d", invalid=(), **fields):
    """A SuiteResult with one attempt for each (task, success)."""
    attempts = tuple(
        Attempt(task_id=f"t{at}", domain=domain, seed=0, success=bool(won), invalid=at in invalid)
        for at, won in enumerate(successes)
    )
    return SuiteResult(id="sres_1", suite="s", suite_version=1, policy="p", version=1, attempts=attempts, **fields)


def test_a_summary_leaves_invalid_attempts_out():
    """Success is over valid attempts; the invalid ones are counted."""
    (one,) = summarise(result([1, 1, 0, 1], invalid={3}))
    assert (one.tasks, one.attempts, one.invalid) == (3, 3, 1)
    assert one.success.mean == pytest.approx(2 / 3)
    assert one.tool_success is None and one.recovery is None and one.stability is None


def test_tool_calls_and_recovery_are_shares():
    """Failed calls lower tool success, and recovery counts only attempts with an error."""
    attempts = (
        Attempt(task_id="a", domain="x", seed=0, success=True, tool_calls=4, tool_errors=1, recovered=True),
        Attempt(task_id="b", domain="y", seed=0, success=False, tool_calls=1, tool_errors=1, recovered=False),
        Attempt(task_id="c", domain="y", seed=0, success=True),
    )
    summaries = {one.domain: one for one in summarise(result([]).model_copy(update={"attempts": attempts}))}
    assert set(summaries) == {"x", "y", ALL}
    assert summaries["x"].tool_success.mean == 0.75
    assert summaries[ALL].recovery.mean == 0.5


@given(st.lists(st.booleans(), min_size=2, max_size=8))
def test_stability_is_one_only_for_equal_outcomes(outcomes):
    """Stability lies in [0, 1], and is 1 exactly when every attempt at the Task ended alike."""
    attempts = [Attempt(task_id="t", domain="d", seed=at, success=won) for at, won in enumerate(outcomes)]
    ((_, share),) = stability_of(attempts)
    assert 0.0 <= share <= 1.0
    assert (share == 1.0) == (len(set(outcomes)) == 1)


@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=30))
def test_a_comparison_is_antisymmetric(pairs):
    """Swapping the sides negates the difference, swaps the counts and keeps the p-value."""
    ours, theirs = result([a for a, _ in pairs]), result([b for _, b in pairs])
    (forth,), (back,) = compare_results(ours, theirs), compare_results(theirs, ours)
    assert forth.difference.mean == pytest.approx(-back.difference.mean)
    assert (forth.only_first, forth.only_second, forth.p_value) == (back.only_second, back.only_first, back.p_value)
    assert forth.difference.mean == pytest.approx(forth.success - forth.baseline_success)


def test_results_of_different_suites_are_not_compared():
    """Another version of the Suite has other Tasks."""
    with pytest.raises(ValueError, match="cannot be compared"):
        compare_results(result([1]), result([1]).model_copy(update={"suite_version": 2}))


def test_near_duplicates_have_one_fingerprint_and_other_questions_another():
    """Case, spacing, closing marks and system messages do not count; operators and files do."""
    first = prompt_fingerprint(a_task("What is 2 + 2?"))
    assert prompt_fingerprint(a_task("  what IS\n2 + 2 ")) == first
    assert prompt_fingerprint(a_task("What is 2 - 2?")) != first
    assert prompt_fingerprint(a_task("What is 2 + 2?", files={"a": "1"})) != first


@given(st.text(max_size=60))
def test_normalising_twice_changes_nothing(text):
    """What is normalised stays as it is, apart from compatibility forms that case folding makes."""
    once = normalised(text)
    assert normalised(normalised(once)) == normalised(once)


@pytest.mark.parametrize("name", sorted(PERTURBATIONS))
def test_a_perturbation_keeps_question_and_verifiers(name):
    """The reworded Task holds the whole question, is judged alike, and is always the same."""
    task = a_task()
    changed = perturbed(task, name)
    assert changed == perturbed(task, name) and changed.id != task.id
    assert task.messages[0]["content"] in changed.messages[0]["content"]
    assert (changed.verifiers, changed.split) == (task.verifiers, "heldout")


def test_an_unknown_perturbation_is_refused():
    """The error names those that there are."""
    with pytest.raises(TaskError, match="no perturbation"):
        perturbed(a_task(), "rot13")


def test_long_episodes_show_forgetting_repetition_and_drift():
    """Each measure sees its own fault, and none in a faultless Episode."""
    good = [Step(text=f"step {at} towards the goal", right=True) for at in range(5)]
    bad = [Step(text="the goal", right=True), *[Step(text="again and again and again", right=False)] * 4]
    assert (forgotten_at(good), forgotten_at(bad), forgotten_at([])) == (None, 1, None)
    assert repeated_steps(good) == 0.0 and repeated_steps(bad) == pytest.approx(3 / 5)
    assert repetition(bad) > repetition(good)
    assert goal_kept(bad, ["goal"]) == [1.0, 0.0, 0.0, 0.0, 0.0]
    assert drift([good]) == 0.0 and drift([bad]) < 0
    assert drift([good[:1]]) is None
    assert [one.right.mean for one in success_by_step([good, bad])] == [1.0, 0.5, 0.5, 0.5, 0.5]
