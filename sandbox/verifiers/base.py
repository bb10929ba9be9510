"""The port of a verifier: judges one attempt, the same way every time, and says on what evidence."""

from collections.abc import Mapping
from typing import Any, ClassVar, Protocol, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from core.episode import StopReason, ToolResult
from core.errors import TaskError
from core.message import Message
from core.noun import Noun
from core.task import Task
from core.verdict import VerdictStatus
from sandbox.parsing import message_text

SOLVED = 1.0


class Attempt(Noun):
    """What an Episode left behind for its judges."""

    episode_id: str
    task: Task
    messages: tuple[Message, ...]
    """The whole conversation, opening messages included."""
    responses: tuple[Message, ...]
    """The assistant messages, in order."""
    tool_results: tuple[ToolResult, ...] = ()
    stop_reason: StopReason = StopReason.ANSWERED
    files: dict[str, str] = Field(default_factory=dict)
    """Work files that a verifier asked for through ``wanted_files``, as they were at the end."""

    @property
    def final_text(self) -> str:
        """The text of the last assistant message; empty when there is none."""
        return message_text(self.responses[-1]) if self.responses else ""


class Judgement(Noun):
    """What a verifier found; ``sandbox/judge.py`` makes a Verdict of it."""

    status: VerdictStatus = VerdictStatus.SCORED
    score: float = Field(ge=0.0, le=1.0)
    success: bool
    evidence: dict[str, Any] = Field(default_factory=dict)


class Options(BaseModel):
    """Base of every verifier's options: an unknown key is refused by name."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class JudgeModel(Protocol):
    """A model that answers verifiers, through the gateway."""

    async def judge(self, *, model: str, messages: tuple[Message, ...], max_tokens: int) -> str:
        """The answer's text at temperature 0. Raises EngineError and its kin, or RequestError."""
        ...


class Verifier(Protocol):
    """Judges attempts. Any exception out of ``judge`` becomes an invalid Verdict, never a zero."""

    name: ClassVar[str]
    version: ClassVar[str]
    """Changes whenever the same attempt could be judged otherwise than before."""

    @property
    def wanted_files(self) -> tuple[str, ...]:
        """Work files that ``judge`` needs from the Episode's box."""
        ...

    async def judge(self, attempt: Attempt) -> Judgement:
        """Score one attempt; raises SandboxError or VerifierError when it could not be judged."""
        ...


OptionsT = TypeVar("OptionsT", bound=Options)


def read_options(verifier: str, kind: type[OptionsT], options: dict[str, Any]) -> OptionsT:
    """A verifier's options as its own type; raises TaskError that names verifier and keys at fault."""
    try:
        return kind.model_validate(options)
    except ValidationError as error:
        problems = "; ".join(
            f"{'.'.join(map(str, item['loc'])) or 'options'}: {item['msg']}" for item in error.errors()
        )
        raise TaskError(f"verifier '{verifier}': {problems}") from error


def agent_failed(reason: str, *, score: float = 0.0, evidence: Mapping[str, Any] | None = None) -> Judgement:
    """The attempt failed by its own fault: a real zero (or what it had earned until then)."""
    return Judgement(
        status=VerdictStatus.AGENT_FAILED,
        score=score,
        success=False,
        evidence={"reason": reason, **(evidence or {})},
    )
