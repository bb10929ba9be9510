"""Answers recorded under an idempotency key, so that a repeated request names the same Episode and Turns."""

import time
from collections import OrderedDict
from dataclasses import dataclass

REMEMBERED_SECONDS = 3600.0
_MOST_REMEMBERED = 10_000


@dataclass(frozen=True, slots=True)
class RecordedAnswer:
    """Where the first answer to a request was recorded."""

    episode_id: str
    index: int
    turn_ids: tuple[str, ...]
    at: float


class RecordedAnswers:
    """What this process recorded; across processes the store refuses the second Turn all the same."""

    def __init__(self) -> None:
        self._answers: OrderedDict[tuple[str, str], RecordedAnswer] = OrderedDict()

    def recall(self, tenant_id: str, key: str, choices: int) -> RecordedAnswer | None:
        """The answer recorded under ``key`` for as many choices, if it is remembered."""
        answer = self._answers.get((tenant_id, key))
        if answer is None or len(answer.turn_ids) != choices or time.monotonic() - answer.at > REMEMBERED_SECONDS:
            return None
        return answer

    def remember(self, tenant_id: str, key: str, answer: RecordedAnswer) -> None:
        """Keep an answer, and forget the oldest beyond a fixed number."""
        self._answers.setdefault((tenant_id, key), answer)
        while len(self._answers) > _MOST_REMEMBERED:
            self._answers.popitem(last=False)
