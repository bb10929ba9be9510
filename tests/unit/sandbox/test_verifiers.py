"""Each verifier's own judgement."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.episode import StopReason, ToolResult
from core.errors import SandboxError, TaskError
from core.task import VerifierSpec, make_task
from core.verdict import VerdictStatus
from sandbox.judge import judge_attempt, make_verifiers
from sandbox.verifiers.base import Attempt, Judgement
from sandbox.verifiers.equality import same_json
from sandbox.verifiers.exact import ExactVerifier, matching_share
from sandbox.verifiers.json_answer import JsonAnswerVerifier
from sandbox.verifiers.length import LengthVerifier
from sandbox.verifiers.reasoning_gym import ReasoningGymVerifier
from sandbox.verifiers.registry import check_spec, make_verifier
from sandbox.verifiers.tool_call import ToolCallVerifier
from sandbox.verifiers.tool_output import ToolOutputVerifier
from tests.sandbox_fakes import DirectRuntime

CALL = '{"name":"python","arguments":{"code":"print(1)"}}'
CODE_SCHEMA = {
    "type": "object",
    "properties": {"code": {"type": "string"}},
    "required": ["code"],
    "additionalProperties": False,
}


def attempt(text="", *, specs=(("exact", {"expected": "1"}),), tool_results=(), **fields):
    """An attempt whose only answer is ``text``."""
    task = make_task(
        domain="d",
        split="train",
        messages=({"role": "user", "content": "?"},),
        verifiers=tuple(VerifierSpec(name=name, options=options) for name, options in specs),
    )
    response = {"role": "assistant", "content": text}
    return Attempt(
        episode_id="ep_1",
        task=task,
        messages=(*task.messages, response),
        responses=(response,),
        tool_results=tool_results,
        **fields,
    )


def result(output="6\n", outcome="ok", tool="python"):
    """What a tool returned."""
    return ToolResult(turn_id="t", tool=tool, arguments={}, output=output, outcome=outcome, seconds=0.0)


@given(st.text(max_size=12), st.text(min_size=1, max_size=12))
async def test_exact_succeeds_only_on_equal_text(given_text, expected):
    """Success means equality after stripping; the dense score is 1 exactly then."""
    verifier = ExactVerifier({"expected": expected, "dense": True})
    judgement = await verifier.judge(attempt(given_text))
    equal = bool(given_text.strip()) and given_text.strip() == expected.strip()
    assert judgement.success is equal
    assert (judgement.score == 1.0) is equal


@given(st.text(max_size=20), st.text(max_size=20))
def test_matching_share_is_a_symmetric_share(a, b):
    """The share of right places lies in [0, 1], is symmetric, and is 1 only for equal texts."""
    share = matching_share(a, b)
    assert 0.0 <= share <= 1.0
    assert share == matching_share(b, a)
    assert (share == 1.0) == (a == b)


async def test_exact_takes_any_of_several_answers_after_normalising():
    """Several right answers and the named normalisations are honoured."""
    options = {"expected": ("Yes", "sure thing"), "normalise": ("strip", "casefold", "collapse_spaces")}
    assert (await ExactVerifier(options).judge(attempt("  SURE \n thing "))).success


@pytest.mark.parametrize(
    ("text", "score"),
    [
        (CALL, 1.0),
        (f"```json\n{CALL}\n```", 1.0),
        ("no call at all", 0.0),
        ('{"name":"shell","arguments":{"code":"x"}}', 1 / 3),
        ('{"name":"python","arguments":{"code":1}}', 1 / 3),
        ('{"name":"python","arguments":{"code":"x","more":1}}', 1 / 3),
        ('{"name":"python"}', 1 / 3),
        ('{"other":1}', 1 / 3),
    ],
)
async def test_tool_call_scores_the_form(text, score):
    """A fitting call earns 1, other JSON a third, anything else nothing; only 1 is a success."""
    judgement = await ToolCallVerifier({"name": "python", "arguments": CODE_SCHEMA}).judge(attempt(text))
    assert judgement.score == pytest.approx(score)
    assert judgement.success is (score == 1.0)


async def test_strict_tool_call_allows_nothing_around_the_call():
    """With ``strict`` a fence around the call costs the success."""
    verifier = ToolCallVerifier({"name": "python", "strict": True})
    assert (await verifier.judge(attempt(CALL))).success
    assert not (await verifier.judge(attempt(f"```json\n{CALL}\n```"))).success


async def test_tool_output_compares_what_the_tool_returned():
    """The recorded output counts: right, wrong, failed, not called."""
    verifier = ToolOutputVerifier({"expected": "6", "tool": "python", "ran_score": 0.25})
    assert (await verifier.judge(attempt("", tool_results=(result(),)))).success
    wrong = await verifier.judge(attempt("6", tool_results=(result("7\n"),)))
    assert (wrong.score, wrong.success) == (0.25, False)
    failed = await verifier.judge(attempt("6", tool_results=(result("6\n", "nonzero"),)))
    assert (failed.score, failed.status) == (0.0, VerdictStatus.AGENT_FAILED)
    claimed = await verifier.judge(attempt("The output is 6"))
    assert (claimed.score, claimed.status) == (0.0, VerdictStatus.AGENT_FAILED)
    other = await verifier.judge(attempt("", tool_results=(result(tool="shell"),)))
    assert not other.success


async def test_json_answer_scores_members():
    """The whole object earns 1; a right member a share; strictness minds text around it."""
    verifier = JsonAnswerVerifier({"expected": {"a": 1, "b": "x"}})
    assert (await verifier.judge(attempt('{"b":"x","a":1}'))).score == 1.0
    half = await verifier.judge(attempt('{"a":1,"b":"y"}'))
    assert 0.2 < half.score < 1.0 and not half.success
    around = await verifier.judge(attempt('Here: {"a":1,"b":"x"}'))
    assert not around.success and around.score < 1.0
    assert (await verifier.judge(attempt("no"))).score == 0.0


async def test_length_falls_off_outside_of_its_bounds():
    """Within the bounds 1, far beyond them 0."""
    verifier = LengthVerifier({"minimum": 2, "maximum": 4})
    assert [(await verifier.judge(attempt(text))).score for text in ("", "a", "abc", "abcdef", "a" * 99)] == [
        0.0,
        0.5,
        1.0,
        0.5,
        0.0,
    ]


async def test_reasoning_gym_scores_with_the_datasets_own_scorer():
    """The entry is made again from the Task's options, and its scorer judges."""
    gym = pytest.importorskip("reasoning_gym")
    entry = gym.create_dataset("chain_sum", size=3, seed=5)[1]
    verifier = ReasoningGymVerifier({"dataset": "chain_sum", "seed": 5, "index": 1})
    assert (await verifier.judge(attempt(str(entry["answer"])))).success
    assert not (await verifier.judge(attempt("nonsense"))).success


@given(st.recursive(st.booleans() | st.integers() | st.text(), lambda x: st.lists(x, max_size=3), max_leaves=6))
def test_same_json_agrees_with_the_text_of_json(value):
    """A value equals its own copy, and a boolean never equals a number."""
    assert same_json(json.loads(json.dumps(value)), value)
    assert not same_json(True, 1) and not same_json(0, False)
    assert not same_json([value], value)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("no_such_verifier", {}),
        ("exact", {}),
        ("exact", {"expected": "x", "unknown": 1}),
        ("tool_call", {"name": "python", "arguments": {"type": "nonsense"}}),
        ("unit_tests", {"function": "f", "tests": []}),
        ("unit_tests", {"function": "not a name", "tests": [{"expected": 1}]}),
        ("length", {"minimum": 5, "maximum": 1}),
    ],
)
def test_malformed_specs_are_refused_by_name(name, options):
    """An unknown verifier or option is a TaskError, when checked and when made."""
    spec = VerifierSpec(name=name, options=options)
    for refuse in (check_spec, lambda bad: make_verifier(bad, DirectRuntime())):
        with pytest.raises(TaskError, match=name):
            refuse(spec)


class _Crashing:
    name = "crashing"
    version = "1"
    wanted_files = ()

    def __init__(self, error):
        self.error = error

    async def judge(self, attempt):
        raise self.error


class _Fine(_Crashing):
    name = "fine"

    def __init__(self):
        pass

    async def judge(self, attempt):
        return Judgement(score=1.0, success=True)


@pytest.mark.parametrize("error", [ZeroDivisionError("x"), SandboxError("box gone"), RuntimeError("\ud800\x00")])
async def test_a_crashing_verifier_is_invalid_and_never_a_zero(error):
    """A crash voids its own Verdict with the error as evidence; the others still judge."""
    judged = attempt("1", specs=(("exact", {"expected": "1"}),) * 2)
    crashed, fine = await judge_attempt(judged, [_Crashing(error), _Fine()])
    assert crashed.status is VerdictStatus.INVALID
    assert type(error).__name__ in crashed.evidence["error"]
    assert fine.status is VerdictStatus.SCORED
    crashed.model_dump_json()


async def test_running_out_of_time_is_the_agents_failure():
    """A timed-out attempt is a real zero for every verifier."""
    judged = attempt("1", stop_reason=StopReason.TIMED_OUT)
    (verdict,) = await judge_attempt(judged, make_verifiers(judged.task, DirectRuntime()))
    assert (verdict.status, verdict.score, verdict.success) == (VerdictStatus.AGENT_FAILED, 0.0, False)
