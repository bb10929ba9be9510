"""``unit_tests``: a function of the candidate's gives the expected results, called in a sandbox box.

The box is given the candidate's code and, for one call at a time, the arguments. What is expected never goes
in: the result comes out as JSON and is compared here. So there are no tests to read or to edit, and printing
"passed", leaving early, or patching the runner gains nothing: without a right value there is no right answer.
Each call has a process of its own. A random mark tells the result from whatever else was printed.
"""

import json
import re
import secrets
from contextlib import AsyncExitStack
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field

from core.errors import SandboxError
from sandbox.boxes import box_spec
from sandbox.parsing import MAX_TEXT
from sandbox.runtimes.base import Box, ExecResult, Outcome, Runtime
from sandbox.text import clean_text
from sandbox.verifiers.base import Attempt, Judgement, Options, agent_failed, read_options
from sandbox.verifiers.equality import same_json

_EVIDENCE_CHARACTERS = 300
_RESULT_CHARACTERS = 50_000
_FENCE = re.compile(r"```(?:python|py)?[ \t]*\n(.*?)(?:```|\Z)", re.DOTALL)

# Runs inside the box. Standard output is kept for the result alone; what the candidate prints goes to stderr.
_RUNNER = """
import json, os, sys
order = json.loads(sys.stdin.read())
result_pipe = os.dup(1)
os.dup2(2, 1)
def answer(kind, value):
    line = order["mark"] + json.dumps({kind: value}, allow_nan=False) + "\\n"
    data = line.encode()
    while data:
        data = data[os.write(result_pipe, data):]
sys.path.insert(0, os.getcwd())
space = {"__name__": "candidate", "__builtins__": __builtins__}
try:
    exec(compile(order["code"], "candidate.py", "exec"), space)
    value = space[order["function"]](*order["args"], **order["kwargs"])
    answer("value", value)
except BaseException as error:
    answer("error", (type(error).__name__ + ": " + str(error))[:300])
"""


class UnitTest(BaseModel):
    """One call and what it must return; everything is JSON (a tuple counts as a list)."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = Field(default_factory=dict)
    expected: Any


class UnitTestsOptions(Options):
    """What is called, and where the candidate's code is."""

    function: str = Field(pattern=r"^[A-Za-z_]\w*$")
    tests: tuple[UnitTest, ...] = Field(min_length=1, max_length=200)
    file: str | None = None
    """A work file that holds the code; None: the code is in the final answer, in a fence or bare."""
    tolerance: float = Field(default=0.0, ge=0.0)
    """Allowed difference of numbers, relative to the expected one."""
    dense: bool = True
    """Score the share of passed tests; else all or nothing."""


class UnitTestsVerifier:
    """Runs the tests one after another in a box; takes a fresh box after one that was broken."""

    name: ClassVar[str] = "unit_tests"
    version: ClassVar[str] = "1"

    def __init__(self, options: dict[str, object], runtime: Runtime) -> None:
        self._options = read_options(self.name, UnitTestsOptions, options)
        self._runtime = runtime

    @property
    def wanted_files(self) -> tuple[str, ...]:
        """The candidate's file, when the Task has one."""
        return () if self._options.file is None else (self._options.file,)

    async def judge(self, attempt: Attempt) -> Judgement:
        """The share of passed tests; success is all of them. Raises SandboxError when the box fails."""
        code = self._code(attempt)
        if code is None or not code.strip():
            return agent_failed("there is no code")
        failures = await self._failures(code, attempt)
        total = len(self._options.tests)
        share = (total - len(failures)) / total
        score = share if self._options.dense else float(not failures)
        evidence = {"passed": total - len(failures), "tests": total, "failures": failures[:5]}
        return Judgement(score=score, success=not failures, evidence=evidence)

    def _code(self, attempt: Attempt) -> str | None:
        if self._options.file is not None:
            return attempt.files.get(self._options.file)
        return clean_text(extract_code(attempt.final_text[:MAX_TEXT], self._options.function))

    async def _failures(self, code: str, attempt: Attempt) -> list[dict[str, Any]]:
        # The code inside may write into its folder, so every judgement starts from the Task's own files.
        spec = box_spec(attempt.task)
        failures: list[dict[str, Any]] = []
        async with AsyncExitStack() as stack:
            box: Box | None = None
            for number, test in enumerate(self._options.tests):
                if box is None:
                    box = await stack.enter_async_context(self._runtime.box(spec))
                problem, usable = await self._run_test(box, code, test)
                if problem is not None:
                    failures.append({"test": number, "problem": problem})
                if not usable:
                    await stack.aclose()
                    box = None
        return failures

    async def _run_test(self, box: Box, code: str, test: UnitTest) -> tuple[str | None, bool]:
        """Why the test failed (None: it passed), and whether the box may be used again."""
        mark = secrets.token_hex(16)
        order = {
            "mark": mark,
            "code": code,
            "function": self._options.function,
            "args": test.args,
            "kwargs": test.kwargs,
        }
        result = await box.python(_RUNNER, stdin=json.dumps(order))
        if result.infrastructure:
            raise SandboxError(f"unit tests could not run: {result.outcome}: {result.stderr[:500]}")
        usable = result.outcome in (Outcome.OK, Outcome.NONZERO)
        return self._problem(result, mark, test), usable

    def _problem(self, result: ExecResult, mark: str, test: UnitTest) -> str | None:
        reply = read_reply(result.stdout, mark)
        if result.outcome is not Outcome.OK:
            return f"{result.outcome}: {clean_text(result.stderr, _EVIDENCE_CHARACTERS)}"
        if reply is None:
            return "the function did not return a result"
        if "value" not in reply:
            return clean_text(str(reply.get("error")), _EVIDENCE_CHARACTERS)
        if not same_json(reply["value"], test.expected, self._options.tolerance):
            return f"wrong result: {clean_text(json.dumps(reply['value']), _EVIDENCE_CHARACTERS)}"
        return None


def extract_code(text: str, function: str) -> str:
    """The code in an answer: the first fenced block that defines ``function``, else the first, else all."""
    blocks = [match[1] for match in _FENCE.finditer(text)]
    defining = [block for block in blocks if re.search(rf"\b{re.escape(function)}\b", block)]
    return (defining or blocks or [text])[0]


def read_reply(stdout: str, mark: str) -> dict[str, Any] | None:
    """The runner's one line in ``stdout``, or None when it is missing, doubled or not JSON."""
    lines = [line for line in stdout.split("\n") if line.startswith(mark)]
    if len(lines) != 1 or len(lines[0]) > _RESULT_CHARACTERS:
        return None
    try:
        reply = json.loads(lines[0].removeprefix(mark))
    except (ValueError, RecursionError):
        return None
    return reply if isinstance(reply, dict) else None
