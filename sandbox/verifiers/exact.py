"""``exact``: the final answer equals the expected text; optionally a dense score per character."""

from typing import ClassVar, Literal

from pydantic import field_validator

from sandbox.text import clean_text
from sandbox.verifiers.base import Attempt, Judgement, Options, agent_failed, read_options

Normalisation = Literal["strip", "casefold", "collapse_spaces"]
_EVIDENCE_CHARACTERS = 500


class ExactOptions(Options):
    """What the answer must be, and how forgiving the comparison is."""

    expected: str | tuple[str, ...]
    """One right answer, or several of which any will do."""
    normalise: tuple[Normalisation, ...] = ("strip",)
    dense: bool = False
    """Give the share of right characters, place by place, to a wrong answer."""

    @field_validator("expected")
    @classmethod
    def _not_empty(cls, expected: str | tuple[str, ...]) -> str | tuple[str, ...]:
        if not expected:
            raise ValueError("there is nothing to compare with")
        return expected


class ExactVerifier:
    """Compares text with text."""

    name: ClassVar[str] = "exact"
    version: ClassVar[str] = "1"
    wanted_files: tuple[str, ...] = ()

    def __init__(self, options: dict[str, object]) -> None:
        self._options = read_options(self.name, ExactOptions, options)

    async def judge(self, attempt: Attempt) -> Judgement:
        """1 for an equal answer, else 0 or the dense score."""
        answer = attempt.final_text
        evidence = {"answer": clean_text(answer, _EVIDENCE_CHARACTERS)}
        if not answer.strip():
            return agent_failed("there is no answer", evidence=evidence)
        given = normalise(answer, self._options.normalise)
        expected = self._options.expected
        wanted = [
            normalise(text, self._options.normalise)
            for text in ((expected,) if isinstance(expected, str) else expected)
        ]
        if given in wanted:
            return Judgement(score=1.0, success=True, evidence=evidence)
        score = max(matching_share(given, text) for text in wanted) if self._options.dense else 0.0
        return Judgement(score=score, success=False, evidence=evidence)


def normalise(text: str, steps: tuple[Normalisation, ...]) -> str:
    """``text`` after the named steps, in their order."""
    for step in steps:
        if step == "strip":
            text = text.strip()
        elif step == "casefold":
            text = text.casefold()
        else:
            text = " ".join(text.split())
    return text


def matching_share(given: str, expected: str) -> float:
    """Share of places with the right character, over the longer of the two; 1 only for equal texts."""
    longest = max(len(given), len(expected))
    if longest == 0:
        return 1.0
    return sum(a == b for a, b in zip(given, expected, strict=False)) / longest
