"""Finds verifiers by the names that Tasks use."""

from collections.abc import Callable
from dataclasses import dataclass

from core.errors import TaskError
from core.task import VerifierSpec
from sandbox.runtimes.base import Runtime
from sandbox.verifiers.base import JudgeModel, Options, Verifier, read_options
from sandbox.verifiers.exact import ExactOptions, ExactVerifier
from sandbox.verifiers.file_content import FileContentOptions, FileContentVerifier
from sandbox.verifiers.json_answer import JsonAnswerOptions, JsonAnswerVerifier
from sandbox.verifiers.json_schema import JsonSchemaOptions, JsonSchemaVerifier
from sandbox.verifiers.length import LengthOptions, LengthVerifier
from sandbox.verifiers.reasoning_gym import ReasoningGymOptions, ReasoningGymVerifier
from sandbox.verifiers.refusal import RefusalOptions, RefusalVerifier
from sandbox.verifiers.rubric import RubricOptions, RubricVerifier
from sandbox.verifiers.tool_call import ToolCallOptions, ToolCallVerifier
from sandbox.verifiers.tool_output import ToolOutputOptions, ToolOutputVerifier
from sandbox.verifiers.unit_tests import UnitTestsOptions, UnitTestsVerifier


@dataclass(frozen=True)
class _Entry:
    options: type[Options]
    make: Callable[[dict[str, object], Runtime, JudgeModel | None], Verifier]


_ENTRIES: dict[str, _Entry] = {
    "exact": _Entry(ExactOptions, lambda options, *_: ExactVerifier(options)),
    "file_content": _Entry(FileContentOptions, lambda options, *_: FileContentVerifier(options)),
    "json_answer": _Entry(JsonAnswerOptions, lambda options, *_: JsonAnswerVerifier(options)),
    "json_schema": _Entry(JsonSchemaOptions, lambda options, *_: JsonSchemaVerifier(options)),
    "length": _Entry(LengthOptions, lambda options, *_: LengthVerifier(options)),
    "reasoning_gym": _Entry(ReasoningGymOptions, lambda options, *_: ReasoningGymVerifier(options)),
    "refusal": _Entry(RefusalOptions, lambda options, *_: RefusalVerifier(options)),
    "rubric": _Entry(RubricOptions, lambda options, _, judge: RubricVerifier(options, judge)),
    "tool_call": _Entry(ToolCallOptions, lambda options, *_: ToolCallVerifier(options)),
    "tool_output": _Entry(ToolOutputOptions, lambda options, *_: ToolOutputVerifier(options)),
    "unit_tests": _Entry(UnitTestsOptions, lambda options, runtime, _: UnitTestsVerifier(options, runtime)),
}


def verifier_names() -> tuple[str, ...]:
    """The names that a VerifierSpec may have, sorted."""
    return tuple(sorted(_ENTRIES))


def make_verifier(spec: VerifierSpec, runtime: Runtime, judge: JudgeModel | None = None) -> Verifier:
    """The verifier that ``spec`` names; raises TaskError for an unknown name or malformed options."""
    return _entry(spec).make(spec.options, runtime, judge)


def check_spec(spec: VerifierSpec) -> None:
    """Raise TaskError unless ``spec`` names a verifier and gives it fitting options."""
    read_options(spec.name, _entry(spec).options, spec.options)


def _entry(spec: VerifierSpec) -> _Entry:
    try:
        return _ENTRIES[spec.name]
    except KeyError:
        raise TaskError(f"there is no verifier '{spec.name}'", hint=f"known: {', '.join(verifier_names())}") from None
