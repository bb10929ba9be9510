"""Tools: what a policy may call, and what it gets to see."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from core.errors import SandboxError, TaskError
from core.task import ToolSpec
from sandbox.runtimes.base import ExecResult, Outcome
from sandbox.tools.base import MALFORMED_CALL, Tool
from sandbox.tools.registry import make_tools

ALL = [ToolSpec(name="python"), ToolSpec(name="shell"), ToolSpec(name="files")]
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=5), inner, max_size=2),
    max_leaves=4,
)


class ScriptedBox:
    """A box that runs nothing: it answers with a given result and remembers what it was asked."""

    work_folder = "/work"
    readonly_folder = "/readonly"

    def __init__(self, result: ExecResult | None = None, error: Exception | None = None) -> None:
        self.result = result or ExecResult(outcome=Outcome.OK, exit_code=0, stdout="out\n")
        self.error = error
        self.asked: list[tuple[str, float | None]] = []
        self.files: dict[str, bytes] = {}

    async def exec(
        self,
        argv: Sequence[str],
        *,
        stdin: str | None = None,
        wall_seconds: float | None = None,
        env: Mapping[str, str] | None = None,
    ) -> ExecResult:
        return await self.shell(" ".join(argv), wall_seconds=wall_seconds)

    async def python(self, code: str, *, wall_seconds: float | None = None, **other: Any) -> ExecResult:
        return await self.shell(code, wall_seconds=wall_seconds)

    async def shell(self, command: str, *, wall_seconds: float | None = None, **other: Any) -> ExecResult:
        self.asked.append((command, wall_seconds))
        if self.error is not None:
            raise self.error
        return self.result

    async def read(self, path: str, max_bytes: int) -> bytes:
        if path not in self.files:
            raise FileNotFoundError(2, "No such file or directory", path)
        return self.files[path]

    async def write(self, path: str, data: bytes | str) -> None:
        if self.error is not None:
            raise self.error
        self.files[path] = data.encode() if isinstance(data, str) else data

    async def list(self, path: str = ".") -> "list[str]":
        return sorted(self.files)

    async def close(self) -> None:
        return


def tool(name: str, **options: Any) -> Tool:
    """One tool by name."""
    return make_tools([ToolSpec(name=name, options=options)])[name]


def test_schemas_have_the_openai_shape() -> None:
    """Every tool's schema is an OpenAI function tool of its own name."""
    for name, made in make_tools(ALL).items():
        assert made.name == name
        assert made.schema["type"] == "function"
        assert made.schema["function"]["name"] == name
        assert made.schema["function"]["parameters"]["type"] == "object"


def test_unknown_tools_and_options_are_task_errors() -> None:
    """A Task that names an unknown tool or option, or one tool twice, is refused with the known names."""
    with pytest.raises(TaskError, match="nothing") as caught:
        make_tools([ToolSpec(name="nothing")])
    assert caught.value.hint is not None and "python" in caught.value.hint
    with pytest.raises(TaskError):
        make_tools([ToolSpec(name="python", options={"no": 1})])
    with pytest.raises(TaskError):
        make_tools([ToolSpec(name="python"), ToolSpec(name="python")])


async def test_runs_in_the_box() -> None:
    """The code goes to the box with the tool's time limit, and its output comes back."""
    box = ScriptedBox()
    result = await tool("python", seconds=2).run({"code": "print(1)"}, box)
    assert (result.output, result.outcome) == ("out", "ok")
    assert box.asked == [("print(1)", 2)]


@settings(deadline=None, max_examples=50, suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from(["python", "shell", "files"]), json_values)
async def test_any_arguments_give_an_output(name: str, arguments: Any) -> None:
    """Whatever JSON a policy sends, a tool answers and never raises."""
    result = await tool(name).run(arguments, ScriptedBox())
    assert result.output
    fits = isinstance(arguments, dict) and (set(arguments) & {"code", "command", "action"})
    assert fits or result.outcome == MALFORMED_CALL


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        (ExecResult(outcome=Outcome.NONZERO, exit_code=2, stdout="a\n", stderr="b\n"), "a\nb\n[exit code 2]"),
        (ExecResult(outcome=Outcome.TIMEOUT), "The call ran out of time and was stopped."),
        (ExecResult(outcome=Outcome.KILLED, signal=11), "The call was killed by signal 11."),
        (ExecResult(outcome=Outcome.OK), "(no output)"),
        (ExecResult(outcome=Outcome.OK, stdout="xx", stdout_truncated=True), "xx\n[output cut here: too long]"),
    ],
)
async def test_endings_are_told(result: ExecResult, expected: str) -> None:
    """The policy sees the output, and how the call ended when it did not end well."""
    assert (await tool("shell").run({"command": "x"}, ScriptedBox(result))).output == expected


async def test_sandbox_failure_is_not_the_policys() -> None:
    """A sandbox that raises gives infra_error, from every tool."""
    box = ScriptedBox(error=SandboxError("gone"))
    calls = {
        "python": {"code": "x"},
        "shell": {"command": "x"},
        "files": {"action": "write", "path": "a", "content": ""},
    }
    for name, arguments in calls.items():
        result = await tool(name).run(arguments, box)
        assert result.outcome == "infra_error"
        assert result.infrastructure


async def test_files() -> None:
    """Files can be written, listed and read; a missing one is the policy's mistake."""
    box, files = ScriptedBox(), tool("files")
    assert (await files.run({"action": "list"}, box)).output == "(no files)"
    assert (await files.run({"action": "write", "path": "a", "content": "hi"}, box)).outcome == "ok"
    assert (await files.run({"action": "read", "path": "a"}, box)).output == "hi"
    missing = await files.run({"action": "read", "path": "b"}, box)
    assert (missing.outcome, missing.output) == ("nonzero", "read b: No such file or directory")
    assert (await files.run({"action": "fly"}, box)).outcome == MALFORMED_CALL
    assert (await files.run({"action": "write", "path": "a"}, box)).outcome == MALFORMED_CALL
