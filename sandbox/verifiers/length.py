"""``length``: the final answer is neither too short nor too long; a small term beside another verifier."""

from typing import ClassVar, Self

from pydantic import Field, model_validator

from sandbox.verifiers.base import Attempt, Judgement, Options, agent_failed, read_options


class LengthOptions(Options):
    """Bounds in characters, both inclusive."""

    minimum: int = Field(default=1, ge=0)
    maximum: int = Field(ge=1)

    @model_validator(mode="after")
    def _bounds_agree(self) -> Self:
        if self.minimum > self.maximum:
            raise ValueError("minimum is above maximum")
        return self


class LengthVerifier:
    """1 within the bounds; beyond them falls with the distance, to 0 at twice the maximum."""

    name: ClassVar[str] = "length"
    version: ClassVar[str] = "1"
    wanted_files: tuple[str, ...] = ()

    def __init__(self, options: dict[str, object]) -> None:
        self._options = read_options(self.name, LengthOptions, options)

    async def judge(self, attempt: Attempt) -> Judgement:
        """Score the length of the stripped final answer."""
        if not attempt.responses:
            return agent_failed("there is no answer")
        length = len(attempt.final_text.strip())
        bounds = self._options
        if length < bounds.minimum:
            score = length / bounds.minimum
        elif length > bounds.maximum:
            score = max(0.0, 1.0 - (length - bounds.maximum) / bounds.maximum)
        else:
            score = 1.0
        return Judgement(score=score, success=score == 1.0, evidence={"characters": length})
