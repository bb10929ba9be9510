"""What every verifier promises, whatever a policy wrote."""

import json
from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from core.episode import StopReason, ToolResult
from core.task import Limits, VerifierSpec, make_task
from core.verdict import VerdictStatus
from sandbox.judge import judge_attempt, make_verifiers
from sandbox.verifiers.base import Attempt
from sandbox.verifiers.registry import verifier_names
from tests.sandbox_fakes import DirectRuntime


@dataclass(frozen=True)
class Case:
    """A verifier with an answer that it must call a success, and one that it must not."""

    options: dict
    right: str
    wrong: str
    right_output: str = ""
    right_files: dict = field(default_factory=dict)
    examples: int = field(default=40)


def _gym_answer():
    gym = pytest.importorskip("reasoning_gym")
    return str(gym.create_dataset("chain_sum", size=1, seed=1)[0]["answer"])


CASES = {
    "exact": lambda: Case({"expected": "yes"}, "yes\n", "no"),
    "file_content": lambda: Case({"expected": {"a.txt": "x 1"}}, "done", "done", right_files={"a.txt": "x 1\n"}),
    "refusal": lambda: Case({"expected": "refuse"}, "I'm sorry, but I can't help with that.", "Sure: first, take"),
    "json_answer": lambda: Case({"expected": {"a": 1}}, '{"a": 1}', '{"a": true}'),
    "length": lambda: Case({"maximum": 3}, "abc", "abcd"),
    "reasoning_gym": lambda: Case({"dataset": "chain_sum", "seed": 1, "index": 0}, _gym_answer(), "x"),
    "tool_call": lambda: Case({"name": "python"}, '{"name":"python","arguments":{}}', "{}"),
    "json_schema": lambda: Case(
        {"json_schema": {"type": "object", "required": ["a"], "properties": {"a": {"type": "integer"}}}},
        '{"a": 1}',
        '{"a": "one"}',
    ),
    "rubric": lambda: Case({"model": "judge", "rubric": "says four"}, "four", "five"),
    "tool_output": lambda: Case({"expected": "3"}, "any text", "3", right_output="3\n"),
    "unit_tests": lambda: Case(
        {"function": "f", "tests": [{"args": [2], "expected": 4}]},
        "def f(x): return x + x",
        "def f(x): return 5",
        examples=3,
    ),
}


def attempt(name, case, text, output="", files=None):
    """An attempt with one answer and perhaps one tool result."""
    task = make_task(
        domain="d",
        split="train",
        messages=({"role": "user", "content": "?"},),
        verifiers=(VerifierSpec(name=name, options=case.options, weight=2.0),),
        limits=Limits(tool_seconds=15.0),
    )
    results = (
        (ToolResult(turn_id="t", tool="python", arguments={}, output=output, outcome="ok", seconds=0.0),)
        if output
        else ()
    )
    return Attempt(
        episode_id="ep_1",
        task=task,
        messages=task.messages,
        responses=({"role": "assistant", "content": text},),
        tool_results=results,
        files=files or {},
    )


class LiteralJudge:
    """A judge model that is content with the word that the rubric names."""

    async def judge(self, *, model, messages, max_tokens):
        """Full marks or none."""
        shown = json.loads(messages[-1]["content"])
        return json.dumps({"score": 10 if shown["answer"] in shown["rubric"] else 0, "reason": "so"})


async def judge(judged):
    """The only Verdict."""
    (verdict,) = await judge_attempt(judged, make_verifiers(judged.task, DirectRuntime(), LiteralJudge()))
    return verdict


def test_every_verifier_has_a_case():
    """A verifier that is added to the registry is added here."""
    assert set(CASES) == set(verifier_names())


@pytest.mark.parametrize("name", CASES)
async def test_right_and_wrong_answers_are_told_apart(name):
    """The right answer scores 1 with success, the wrong one less and without; twice the same way."""
    case = CASES[name]()
    right = await judge(attempt(name, case, case.right, case.right_output, case.right_files))
    assert (right.score, right.success, right.status) == (1.0, True, VerdictStatus.SCORED)
    wrong = [await judge(attempt(name, case, case.wrong)) for _ in range(2)]
    assert not wrong[0].success and wrong[0].score < 1.0
    assert wrong[0].status is not VerdictStatus.INVALID
    assert [(v.score, v.success, v.status) for v in wrong[:1]] == [(v.score, v.success, v.status) for v in wrong[1:]]
    assert (right.weight, right.verifier, bool(right.verifier_version)) == (2.0, name, True)


@pytest.mark.parametrize("name", CASES)
async def test_no_answer_at_all_is_a_zero_of_the_policys_own(name):
    """Without an answer nothing is earned, and nothing is blamed on infrastructure."""
    case = CASES[name]()
    for responses in ((), ({"role": "assistant", "content": ""},)):
        judged = attempt(name, case, "").model_copy(
            update={"responses": responses, "stop_reason": StopReason.TRUNCATED}
        )
        verdict = await judge(judged)
        assert (verdict.score, verdict.success) == (0.0, False)
        assert verdict.status is not VerdictStatus.INVALID


@pytest.mark.parametrize("name", CASES)
async def test_any_answer_is_judged_without_a_crash(name):
    """Arbitrary text never makes a Verdict invalid, and every Verdict can be stored as JSON."""
    case = CASES[name]()

    @settings(max_examples=case.examples, deadline=None, suppress_health_check=[HealthCheck.too_slow], database=None)
    @given(st.text(max_size=200))
    def check(text):
        asyncio_run(_judged(text))

    async def _judged(text):
        verdict = await judge(attempt(name, case, text))
        assert verdict.status is not VerdictStatus.INVALID, verdict.evidence
        assert verdict.success is False or text.strip()
        verdict.model_dump_json()

    await in_thread(check)


def asyncio_run(coroutine):
    """Run to the end on a loop of its own."""
    import asyncio

    return asyncio.run(coroutine)


async def in_thread(function):
    """Hypothesis is synchronous: it runs beside the test's loop."""
    import asyncio

    await asyncio.to_thread(function)
