"""The contamination check: no prompt is both held out and trained on, near-duplicates included."""

from collections.abc import Sequence
from typing import Literal

from sqlalchemy import select

from core.errors import TaskError
from core.prompt_fingerprint import prompt_fingerprint
from core.task import Task
from store.connection import Connection
from store.tables.asked_prompts import ASKED_PROMPTS
from store.tables.episodes import EPISODES
from store.tables.tasks import TASKS

Use = Literal["heldout", "trained"]
_PAGE = 500
_LOCK = 0x686F6C64
"""Of the PostgreSQL advisory lock: two transactions must not each write one side and miss the other's."""


class AskedPrompts:
    """Fingerprints of the prompts of held-out Tasks and of Tasks in the lineage of any Checkpoint."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def lock(self) -> None:
        """Let no other transaction change either side before this one ends. SQLite has one writer anyway."""
        await self._connection.exclusive(_LOCK)

    async def hold_out(self, tasks: Sequence[Task]) -> None:
        """Note Tasks as held out; raises TaskError when training has seen one or a near-duplicate."""
        await self._note(tasks, use="heldout", against="trained")

    async def train_on(self, episode_ids: Sequence[str]) -> None:
        """Note the Tasks of Episodes as trained on; raises TaskError when one, or a near-duplicate, is held out."""
        tasks: dict[str, Task] = {}
        for start in range(0, len(episode_ids), _PAGE):
            query = (
                select(TASKS.c.id, TASKS.c.payload)
                .join(EPISODES, EPISODES.c.task_id == TASKS.c.id)
                .where(EPISODES.c.id.in_(list(episode_ids[start : start + _PAGE])))
            )
            for row in await self._connection.rows(query):
                tasks[row.id] = Task.model_validate_json(row.payload)
        held = sorted(task.id for task in tasks.values() if task.split == "heldout")
        if held:
            raise TaskError(f"{held[0]} is held out: Episodes of it never enter a lineage", hint=_HINT)
        await self._note(list(tasks.values()), use="trained", against="heldout")

    async def _note(self, tasks: Sequence[Task], *, use: Use, against: Use) -> None:
        if not tasks:
            return
        await self.lock()
        prints = {prompt_fingerprint(task): task.id for task in tasks}
        known = sorted(prints)
        for start in range(0, len(known), _PAGE):
            query = select(ASKED_PROMPTS.c.fingerprint, ASKED_PROMPTS.c.task_id).where(
                ASKED_PROMPTS.c.use == against, ASKED_PROMPTS.c.fingerprint.in_(known[start : start + _PAGE])
            )
            for row in await self._connection.rows(query):
                mine = prints[row.fingerprint]
                states = "is held out" if against == "heldout" else "was trained on"
                raise TaskError(f"{mine} asks the same as {row.task_id}, which {states}", hint=_HINT)
        rows = [{"fingerprint": prompt_fingerprint(task), "use": use, "task_id": task.id} for task in tasks]
        statement = self._connection.insert(ASKED_PROMPTS).on_conflict_do_nothing()
        await self._connection.change_returning(statement.returning(ASKED_PROMPTS.c.fingerprint), rows)


_HINT = "a held-out Task that is trained on measures memory, not skill: leave it out, or hold out another"
