"""What every tool needs: its schema's shape, checked arguments, and an ExecResult told to a policy."""

import time
from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Any

from core.errors import SandboxError
from sandbox.runtimes.base import ExecResult, Outcome
from sandbox.tools.base import MALFORMED_CALL, ToolOutput

_TRUNCATED = "\n[output cut here: too long]"
_EXPLAINED = {
    Outcome.TIMEOUT: "The call ran out of time and was stopped.",
    Outcome.OOM: "The call used too much memory and was stopped.",
    Outcome.OUTPUT_LIMIT: "The call wrote far too much output and was stopped.",
    Outcome.KILLED: "The call was killed.",
    Outcome.START_FAILED: "The sandbox could not start the call.",
    Outcome.INFRA_ERROR: "The sandbox failed; this is not the call's fault.",
}


@dataclass(frozen=True)
class Text:
    """A text argument that fits the schema."""

    text: str


def function_schema(
    name: str, description: str, properties: dict[str, Any], required: tuple[str, ...] | None = None
) -> dict[str, Any]:
    """An OpenAI function tool; all properties are required unless ``required`` says less."""
    parameters = {
        "type": "object",
        "properties": properties,
        "required": list(properties if required is None else required),
        "additionalProperties": False,
    }
    return {
        "type": "function",
        "function": {"name": name, "description": description, "parameters": parameters},
    }


def malformed(advice: str) -> ToolOutput:
    """The answer to a call that does not fit the schema."""
    return ToolOutput(output=f"Malformed call: {advice}", outcome=MALFORMED_CALL)


def text_argument(arguments: Any, name: str, *, only: tuple[str, ...]) -> Text | ToolOutput:
    """The text argument ``name``, or a ``malformed_call`` with advice; ``only`` lists what may be given."""
    if not isinstance(arguments, dict):
        return malformed(f'the arguments must be a JSON object such as {{"{name}": "..."}}.')
    unknown = sorted(str(key) for key in arguments if key not in only)
    if unknown:
        return malformed(f"unknown argument {', '.join(unknown)}; allowed: {', '.join(only)}.")
    value = arguments.get(name)
    if not isinstance(value, str):
        given = "is missing" if name not in arguments else f"is {type(value).__name__}"
        return malformed(f"the argument '{name}' {given}; it must be a string.")
    return Text(value)


async def run_in_box(run: Awaitable[ExecResult]) -> ToolOutput:
    """Await a command and tell its result; a sandbox that raises gives ``infra_error``."""
    started = time.monotonic()
    try:
        result = await run
    except SandboxError as error:
        return infrastructure_failure(error, time.monotonic() - started)
    return tell(result)


def infrastructure_failure(error: SandboxError, seconds: float) -> ToolOutput:
    """The answer when the sandbox itself failed."""
    message = f"{_EXPLAINED[Outcome.INFRA_ERROR]} ({error.message})"
    return ToolOutput(output=message, outcome=Outcome.INFRA_ERROR.value, seconds=seconds)


def tell(result: ExecResult) -> ToolOutput:
    """What a policy gets to see of a result: stdout, then stderr, then how it ended if not well."""
    stdout = result.stdout + (_TRUNCATED if result.stdout_truncated else "")
    stderr = result.stderr + (_TRUNCATED if result.stderr_truncated else "")
    ending = _EXPLAINED.get(result.outcome, "")
    if result.outcome is Outcome.NONZERO:
        ending = f"[exit code {result.exit_code}]"
    elif result.outcome is Outcome.KILLED and result.signal is not None:
        ending = f"The call was killed by signal {result.signal}."
    parts = [part.rstrip("\n") for part in (stdout, stderr, ending) if part.strip()]
    return ToolOutput(
        output="\n".join(parts) or "(no output)", outcome=result.outcome.value, seconds=result.wall_seconds
    )
