"""``tool_output``: the output of the tool call that the policy made equals the expected text."""

from typing import ClassVar, Literal

from pydantic import Field

from core.episode import ToolResult
from sandbox.text import clean_text
from sandbox.verifiers.base import Attempt, Judgement, Options, agent_failed, read_options

_EVIDENCE_CHARACTERS = 500
_RAN = "ok"


class ToolOutputOptions(Options):
    """What the call must have put out, and what a call that merely ran earns."""

    expected: str
    tool: str | None = None
    """Only calls of this tool count; None: of any."""
    which: Literal["first", "last"] = "last"
    ran_score: float = Field(default=2 / 7, ge=0.0, lt=1.0)
    """For a call that ran without error and put out something else."""


class ToolOutputVerifier:
    """Compares what a tool really returned, as recorded by the sandbox, never what the policy claims."""

    name: ClassVar[str] = "tool_output"
    version: ClassVar[str] = "1"
    wanted_files: tuple[str, ...] = ()

    def __init__(self, options: dict[str, object]) -> None:
        self._options = read_options(self.name, ToolOutputOptions, options)

    async def judge(self, attempt: Attempt) -> Judgement:
        """1 for the expected output (outer white space aside), ``ran_score`` for another, 0 for an error."""
        result = self._chosen(attempt.tool_results)
        if result is None:
            return agent_failed("no tool was called")
        evidence = {
            "tool": result.tool,
            "outcome": result.outcome,
            "output": clean_text(result.output, _EVIDENCE_CHARACTERS),
        }
        if result.outcome != _RAN:
            return agent_failed("the call did not run to its end without error", evidence=evidence)
        if result.output.strip() == self._options.expected.strip():
            return Judgement(score=1.0, success=True, evidence=evidence)
        return Judgement(score=self._options.ran_score, success=False, evidence=evidence)

    def _chosen(self, results: tuple[ToolResult, ...]) -> ToolResult | None:
        wanted = [result for result in results if self._options.tool in (None, result.tool)]
        if not wanted:
            return None
        return wanted[0] if self._options.which == "first" else wanted[-1]
