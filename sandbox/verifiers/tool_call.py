"""``tool_call``: the answer is a tool call whose arguments fit a JSON schema."""

from typing import Any, ClassVar

from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError
from pydantic import Field, field_validator

from sandbox.parsing import ParsedAnswer, parse_answer
from sandbox.text import clean_text
from sandbox.verifiers.base import Attempt, Judgement, Options, agent_failed, read_options

_EVIDENCE_CHARACTERS = 500


class ToolCallOptions(Options):
    """Which call is wanted, and what lesser answers earn."""

    name: str
    """The tool that must be called."""
    arguments: dict[str, Any] = Field(default_factory=lambda: {"type": "object"})
    """JSON schema (draft 2020-12) of the arguments."""
    strict: bool = False
    """Nothing may stand around the call."""
    json_score: float = Field(default=1 / 3, ge=0.0, lt=1.0)
    """For an answer that holds a JSON object which is not the wanted call."""

    @field_validator("arguments")
    @classmethod
    def _is_schema(cls, arguments: dict[str, Any]) -> dict[str, Any]:
        try:
            Draft202012Validator.check_schema(arguments)
        except SchemaError as error:
            raise ValueError(f"not a JSON schema: {error.message}") from error
        return arguments


class ToolCallVerifier:
    """Judges the form of the first Turn's call, not what it does."""

    name: ClassVar[str] = "tool_call"
    version: ClassVar[str] = "1"
    wanted_files: tuple[str, ...] = ()

    def __init__(self, options: dict[str, object]) -> None:
        self._options = read_options(self.name, ToolCallOptions, options)
        self._schema = Draft202012Validator(self._options.arguments)

    async def judge(self, attempt: Attempt) -> Judgement:
        """1 for the wanted call, ``json_score`` for other JSON, else 0."""
        if not attempt.responses:
            return agent_failed("there is no answer")
        response = attempt.responses[0]
        parsed = parse_answer(response)
        evidence = {"answer": clean_text(str(response.get("content") or ""), _EVIDENCE_CHARACTERS)}
        problem = self._problem(parsed)
        if problem is None:
            return Judgement(score=1.0, success=True, evidence=evidence)
        score = self._options.json_score if parsed.is_json else 0.0
        return agent_failed(problem, score=score, evidence=evidence)

    def _problem(self, parsed: ParsedAnswer) -> str | None:
        if not parsed.calls:
            return "the answer holds no tool call"
        if len(parsed.calls) > 1:
            return f"the answer holds {len(parsed.calls)} tool calls"
        call = parsed.calls[0]
        if call.error is not None:
            return call.error
        if call.name != self._options.name:
            return f"the call names '{clean_text(call.name, 100)}', not '{self._options.name}'"
        if self._options.strict and not parsed.strict:
            return "something stands around the call"
        fault = next(self._schema.iter_errors(call.arguments), None)
        return None if fault is None else clean_text(f"arguments: {fault.message}", 300)
