"""Unit tests judge code, and cheating gains nothing."""

import pytest

from core.task import Limits, VerifierSpec, make_task
from core.verdict import VerdictStatus
from sandbox.judge import judge_attempt, make_verifiers
from sandbox.verifiers.base import Attempt
from sandbox.verifiers.unit_tests import extract_code, read_reply
from tests.cheats import CHEATS
from tests.sandbox_fakes import DirectRuntime

TESTS = [{"args": [n], "expected": n * n} for n in (2, 3, 5)]


async def judge(code, *, tests=TESTS, runtime=None, seconds=15.0, **options):
    """The Verdict on ``code`` as the answer."""
    task = make_task(
        domain="d",
        split="train",
        messages=({"role": "user", "content": "square"},),
        verifiers=(VerifierSpec(name="unit_tests", options={"function": "f", "tests": tests, **options}),),
        limits=Limits(tool_seconds=seconds),
        files={"notes.txt": "hello"},
    )
    attempt = Attempt(episode_id="ep_1", task=task, messages=(), responses=({"role": "assistant", "content": code},))
    (verdict,) = await judge_attempt(attempt, make_verifiers(task, runtime or DirectRuntime()))
    return verdict


@pytest.mark.parametrize(
    "code",
    [
        "def f(x): return x * x",
        "Here you are:\n```python\ndef f(x):\n    return x ** 2\n```\nDone.",
        "f = lambda x: x * x\nprint('noise')",
        "import os\nassert open('notes.txt').read() == 'hello'\ndef f(x): return x * x",
    ],
)
async def test_right_code_passes(code):
    """Right code passes, fenced or bare, also when it prints or reads the Task's files."""
    verdict = await judge(code)
    assert verdict.success and verdict.score == 1.0, verdict.evidence


async def test_partly_right_code_earns_its_share():
    """The dense score is the share of passed tests; without ``dense`` it is all or nothing."""
    code = "def f(x): return 4 if x == 2 else 0"
    assert (await judge(code)).score == pytest.approx(1 / 3)
    assert (await judge(code, dense=False)).score == 0.0


@pytest.mark.parametrize("code", CHEATS.values(), ids=CHEATS.keys())
async def test_cheating_is_not_a_success(code):
    """No trick short of the right values earns anything, and none is taken for broken infrastructure."""
    verdict = await judge(code, tests=TESTS[:1], seconds=1.0)
    assert not verdict.success and verdict.score == 0.0
    assert verdict.status is not VerdictStatus.INVALID


async def test_what_is_expected_never_enters_the_box():
    """Neither the order, the argument list nor the files hold an expected value."""
    secret = 987_654_321
    code = (
        "import sys, glob\n"
        "seen = repr(sys._getframe(1).f_globals) + repr(sys.argv) + open('/proc/self/cmdline').read()\n"
        "for path in glob.glob('**', recursive=True): seen += open(path).read()\n"
        "def f(x): return str(987654320 + 1) in seen"
    )
    verdict = await judge(code, tests=[{"args": [1], "expected": secret}])
    assert "wrong result: false" in str(verdict.evidence)


async def test_files_left_by_one_test_do_not_fool_the_next():
    """Each call has a process of its own: state kept in memory does not reach the next one."""
    code = "calls = []\ndef f(x):\n    calls.append(x)\n    return len(calls)"
    tests = [{"args": [1], "expected": 1}, {"args": [1], "expected": 1}]
    assert (await judge(code, tests=tests)).success


async def test_a_broken_box_voids_the_verdict():
    """A sandbox that fails makes the Verdict invalid, not a zero."""
    verdict = await judge("def f(x): return x * x", runtime=DirectRuntime(broken=True))
    assert verdict.status is VerdictStatus.INVALID


async def test_no_code_is_the_agents_failure():
    """An empty answer is the policy's own zero."""
    verdict = await judge("   ")
    assert (verdict.status, verdict.score) == (VerdictStatus.AGENT_FAILED, 0.0)


async def test_numbers_may_differ_by_the_tolerance():
    """With a tolerance, floats that nearly agree are equal."""
    code = "def f(x): return 0.1 + 0.2"
    tests = [{"args": [1], "expected": 0.3}]
    assert not (await judge(code, tests=tests)).success
    assert (await judge(code, tests=tests, tolerance=1e-9)).success


def test_the_block_that_defines_the_function_is_taken():
    """Among several fences the one that names the function counts."""
    text = "```\npip install x\n```\n```python\ndef f(x): return 1\n```"
    assert extract_code(text, "f") == "def f(x): return 1\n"


def test_two_replies_are_none():
    """A doubled result line is no result."""
    assert read_reply('m{"value":1}\n', "m") == {"value": 1}
    assert read_reply('m{"value":1}\nm{"value":1}\n', "m") is None
    assert read_reply("m[[[[", "m") is None
