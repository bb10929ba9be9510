"""OutcomeBook: the outcomes of one Experiment as they are in the store, read page by page as they change."""

import time
from collections.abc import Callable

from core.arm_outcome import ArmOutcome
from store.repositories.arm_outcomes import Cursor, cursor_of
from store.unit_of_work import UnitOfWork

_PAGE = 2_000
_OVERLAP_SECONDS = 10.0
"""Outcomes of transactions that were slow to commit: they are read again so far back."""
_WHOLE_SECONDS = 60.0
"""All are read anew so often: times are the writers' own, and a clock may be far behind another one."""


class OutcomeBook:
    """Remembers what it read; the store has it all."""

    def __init__(self, experiment_id: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.experiment_id = experiment_id
        self.outcomes: dict[str, ArmOutcome] = {}
        """By Episode."""
        self._clock = clock
        self._cursor: Cursor | None = None
        self._whole_at = clock()

    async def read(self, work: UnitOfWork) -> bool:
        """Take in what changed; whether anything did. Raises what the store raises."""
        moment = self._clock()
        whole = self._cursor is None or moment - self._whole_at >= _WHOLE_SECONDS
        cursor = None if whole or self._cursor is None else (self._cursor[0] - _OVERLAP_SECONDS, "")
        known: dict[str, ArmOutcome] = {}
        newest = None if whole else self._cursor
        while page := await work.arm_outcomes.after(self.experiment_id, cursor, _PAGE):
            known.update((one.episode_id, one) for one in page)
            cursor = cursor_of(page[-1])
            newest = cursor if newest is None else max(newest, cursor)
        self._cursor = newest
        if whole:
            # What was erased is not here any more.
            changed = known != self.outcomes
            self.outcomes, self._whole_at = known, moment
            return changed
        fresh = {name: one for name, one in known.items() if self.outcomes.get(name) != one}
        self.outcomes.update(fresh)
        return bool(fresh)
