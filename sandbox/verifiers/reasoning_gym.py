"""``reasoning_gym``: the dataset's own scorer judges the final answer."""

import asyncio
from typing import Any, ClassVar

from pydantic import Field

from sandbox.domains.reasoning_gym import score_answer
from sandbox.text import clean_text
from sandbox.verifiers.base import SOLVED, Attempt, Judgement, Options, agent_failed, read_options

_EVIDENCE_CHARACTERS = 500


class ReasoningGymOptions(Options):
    """Which entry of which dataset was asked."""

    dataset: str
    seed: int = Field(ge=0)
    index: int = Field(ge=0)
    config: dict[str, Any] = Field(default_factory=dict)


class ReasoningGymVerifier:
    """Hands the stripped final answer to reasoning-gym; only a full score is a success."""

    name: ClassVar[str] = "reasoning_gym"
    version: ClassVar[str] = "1"
    wanted_files: tuple[str, ...] = ()

    def __init__(self, options: dict[str, object]) -> None:
        self._options = read_options(self.name, ReasoningGymOptions, options)

    async def judge(self, attempt: Attempt) -> Judgement:
        """The dataset's score; raises VerifierError when its scorer fails."""
        answer = attempt.final_text.strip()
        if not answer:
            return agent_failed("there is no answer")
        # A scorer may compute for long; in a thread it does not hold up the other Episodes.
        score = await asyncio.to_thread(score_answer, self._options.model_dump(), answer)
        return Judgement(
            score=score,
            success=score >= SOLVED,
            evidence={"answer": clean_text(answer, _EVIDENCE_CHARACTERS)},
        )
