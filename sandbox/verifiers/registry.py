"""Finds verifiers by the names that Tasks use."""

from collections.abc import Callable
from dataclasses import dataclass

from core.errors import TaskError
from core.task import VerifierSpec
from sandbox.runtimes.base import Runtime
from sandbox.verifiers.base import Options, Verifier, read_options
from sandbox.verifiers.exact import ExactOptions, ExactVerifier
from sandbox.verifiers.json_answer import JsonAnswerOptions, JsonAnswerVerifier
from sandbox.verifiers.length import LengthOptions, LengthVerifier
from sandbox.verifiers.reasoning_gym import ReasoningGymOptions, ReasoningGymVerifier
from sandbox.verifiers.tool_call import ToolCallOptions, ToolCallVerifier
from sandbox.verifiers.tool_output import ToolOutputOptions, ToolOutputVerifier
from sandbox.verifiers.unit_tests import UnitTestsOptions, UnitTestsVerifier


@dataclass(frozen=True)
class _Entry:
    options: type[Options]
    make: Callable[[dict[str, object], Runtime], Verifier]


_ENTRIES: dict[str, _Entry] = {
    "exact": _Entry(ExactOptions, lambda options, _: ExactVerifier(options)),
    "json_answer": _Entry(JsonAnswerOptions, lambda options, _: JsonAnswerVerifier(options)),
    "length": _Entry(LengthOptions, lambda options, _: LengthVerifier(options)),
    "reasoning_gym": _Entry(ReasoningGymOptions, lambda options, _: ReasoningGymVerifier(options)),
    "tool_call": _Entry(ToolCallOptions, lambda options, _: ToolCallVerifier(options)),
    "tool_output": _Entry(ToolOutputOptions, lambda options, _: ToolOutputVerifier(options)),
    "unit_tests": _Entry(UnitTestsOptions, UnitTestsVerifier),
}


def verifier_names() -> tuple[str, ...]:
    """The names that a VerifierSpec may have, sorted."""
    return tuple(sorted(_ENTRIES))


def make_verifier(spec: VerifierSpec, runtime: Runtime) -> Verifier:
    """The verifier that ``spec`` names; raises TaskError for an unknown name or malformed options."""
    return _entry(spec).make(spec.options, runtime)


def check_spec(spec: VerifierSpec) -> None:
    """Raise TaskError unless ``spec`` names a verifier and gives it fitting options."""
    read_options(spec.name, _entry(spec).options, spec.options)


def _entry(spec: VerifierSpec) -> _Entry:
    try:
        return _ENTRIES[spec.name]
    except KeyError:
        raise TaskError(f"there is no verifier '{spec.name}'", hint=f"known: {', '.join(verifier_names())}") from None
