"""The tricks that must not fool unit tests, tried in the isolating runtime of the configuration."""

import pytest

from core.task import Limits, VerifierSpec, make_task
from core.verdict import VerdictStatus
from sandbox.judge import judge_attempt, make_verifiers
from sandbox.runtimes.factory import make_runtime
from sandbox.verifiers.base import Attempt
from tests.cheats import CHEATS

LIMITS = Limits(tool_seconds=1.0, memory_mib=128)


async def judge(runtime, code, *tests):
    """The Verdict on ``code``."""
    task = make_task(
        domain="d",
        split="train",
        messages=({"role": "user", "content": "square"},),
        verifiers=(VerifierSpec(name="unit_tests", options={"function": "f", "tests": list(tests)}),),
        limits=LIMITS,
    )
    attempt = Attempt(episode_id="ep_1", task=task, messages=(), responses=({"role": "assistant", "content": code},))
    (verdict,) = await judge_attempt(attempt, make_verifiers(task, runtime))
    return verdict


async def test_no_trick_succeeds_and_honest_code_does_after_each(make_config):
    """Every trick fails by its own fault, and leaves a sandbox in which right code is judged right."""
    runtime = make_runtime(make_config().sandbox)
    await runtime.start()
    try:
        for name, code in CHEATS.items():
            verdict = await judge(runtime, code, {"args": [3], "expected": 9})
            assert not verdict.success and verdict.score == 0.0, (name, verdict.evidence)
            assert verdict.status is not VerdictStatus.INVALID, (name, verdict.evidence)
            honest = await judge(runtime, "def f(x): return x * x", {"args": [3], "expected": 9})
            assert honest.success, (name, honest.evidence)
    finally:
        await runtime.stop()


@pytest.mark.parametrize("spoiler", ["while True: pass", "import os; os.kill(1, 9)", "x = 'a' * (1 << 30)"])
async def test_a_test_that_breaks_its_box_does_not_fail_the_next_one(make_config, spoiler):
    """After a call that used up its box, the other calls run in a fresh one."""
    code = f"def f(x):\n    if x == 1:\n        {spoiler}\n    return x"
    runtime = make_runtime(make_config().sandbox)
    await runtime.start()
    try:
        tests = ({"args": [n], "expected": n} for n in (0, 1, 2))
        verdict = await judge(runtime, code, *tests)
    finally:
        await runtime.stop()
    assert verdict.evidence["passed"] >= 2, verdict.evidence
    assert verdict.status is VerdictStatus.SCORED
