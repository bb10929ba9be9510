"""``json_answer``: the final answer is a JSON object equal to the expected one."""

from typing import Any, ClassVar

from pydantic import Field

from sandbox.parsing import MAX_TEXT, find_json_object
from sandbox.text import clean_text
from sandbox.verifiers.base import Attempt, Judgement, Options, agent_failed, read_options
from sandbox.verifiers.equality import same_json

_EVIDENCE_CHARACTERS = 500


class JsonAnswerOptions(Options):
    """The wanted object, and what being JSON at all is worth."""

    expected: dict[str, Any] = Field(min_length=1)
    strict: bool = True
    """Nothing may stand around the object."""
    json_score: float = Field(default=0.2, ge=0.0, lt=1.0)
    """For any JSON object; right members earn the rest, wrong and superfluous ones cost it."""


class JsonAnswerVerifier:
    """Scores member by member."""

    name: ClassVar[str] = "json_answer"
    version: ClassVar[str] = "1"
    wanted_files: tuple[str, ...] = ()

    def __init__(self, options: dict[str, object]) -> None:
        self._options = read_options(self.name, JsonAnswerOptions, options)

    async def judge(self, attempt: Attempt) -> Judgement:
        """1 for the expected object; else ``json_score`` and a share for each right member."""
        text = attempt.final_text[:MAX_TEXT]
        evidence = {"answer": clean_text(text, _EVIDENCE_CHARACTERS)}
        found, alone = find_json_object(text)
        if found is None:
            return agent_failed("the answer holds no JSON object", evidence=evidence)
        expected = self._options.expected
        right = sum(key in found and same_json(found[key], value) for key, value in expected.items())
        share = right / len(expected | found)
        success = share == 1.0 and (alone or not self._options.strict)
        base = self._options.json_score
        # Text around a right object costs a part of what the object earned, so that 1 means success.
        score = 1.0 if success else base + (1.0 - base) * share * (1.0 if alone else 0.5)
        return Judgement(score=score, success=success, evidence=evidence)
