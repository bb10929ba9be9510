"""``file_content``: files of the work folder hold what they should when the Episode ends."""

from typing import ClassVar

from pydantic import Field

from sandbox.text import clean_text
from sandbox.verifiers.base import Attempt, Judgement, Options, read_options

_EVIDENCE_CHARACTERS = 200


class FileContentOptions(Options):
    """The wanted files, and how many tool calls the work takes at least."""

    expected: dict[str, str] = Field(min_length=1)
    """Relative path → content; space at the ends and between words does not count."""
    min_calls: int = Field(default=0, ge=0)
    """Successful tool calls without which there is no success."""


class FileContentVerifier:
    """Scores the share of right files."""

    name: ClassVar[str] = "file_content"
    version: ClassVar[str] = "1"

    def __init__(self, options: dict[str, object]) -> None:
        self._options = read_options(self.name, FileContentOptions, options)

    @property
    def wanted_files(self) -> tuple[str, ...]:
        """The files that are compared."""
        return tuple(self._options.expected)

    async def judge(self, attempt: Attempt) -> Judgement:
        """1 when every file is right and enough calls were made; else the share of right files, at most 0.9."""
        expected = self._options.expected
        right = [path for path, text in expected.items() if attempt.files.get(path, "").split() == text.split()]
        calls = sum(result.outcome == "ok" for result in attempt.tool_results)
        success = len(right) == len(expected) and calls >= self._options.min_calls
        found = {
            path: clean_text(attempt.files[path], _EVIDENCE_CHARACTERS) for path in expected if path in attempt.files
        }
        score = 1.0 if success else 0.9 * len(right) / len(expected)
        evidence = {"right": right, "files": found, "successful_calls": calls}
        return Judgement(score=score, success=success, evidence=evidence)
