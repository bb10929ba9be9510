"""Suites in the store."""

from sqlalchemy import or_, select

from core.errors import Conflict, NotFound, TaskError
from core.suite import Suite
from core.task import Task
from store.connection import Connection
from store.repositories.asked_prompts import AskedPrompts
from store.repositories.base import Repository
from store.repositories.tasks import Tasks
from store.tables.suites import SUITES
from store.tables.tasks import TASKS

_PAGE = 500
_NOT_CONTENT = {"created_at", "version"}


class Suites(Repository[Suite]):
    """Suites by name and version; a stored one never changes."""

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection, Suite, SUITES)
        self._tasks = Tasks(connection)
        self._prompts = AskedPrompts(connection)

    async def add(self, suite: Suite) -> None:
        """Add. Raises Conflict when the name has this version, and TaskError when a Task is no clean held-out one.

        Clean: it is stored, held out, and no training has seen it or a near-duplicate of its prompt.
        """
        await self._prompts.lock()
        await self._check(suite)
        await self._add(suite)

    async def put_next(self, suite: Suite) -> Suite:
        """Store ``suite`` as the next version of its name, unless the newest one is the same; what is stored."""
        await self._prompts.lock()
        try:
            newest = await self.get(suite.name)
        except NotFound:
            version = 1
        else:
            if newest.tenant_id != suite.tenant_id:
                raise Conflict(f"Suite '{suite.name}' belongs to another owner", hint="choose another name")
            if newest.model_dump(exclude=_NOT_CONTENT) == suite.model_dump(exclude=_NOT_CONTENT):
                return newest
            version = newest.version + 1
        fresh = suite.model_copy(update={"version": version})
        await self.add(fresh)
        return fresh

    async def get(self, name: str, version: int | None = None) -> Suite:
        """One version of a Suite, or the newest; raises NotFound."""
        query = self._where(self._select(), name=name, version=version)
        found = await self._first(query.order_by(SUITES.c.version.desc()).limit(1))
        if found is None:
            label = name if version is None else f"{name} (version {version})"
            raise NotFound(f"there is no Suite '{label}'", hint="see them with 'hone eval list'")
        return found

    async def list(self, tenant_id: str | None = None) -> list[Suite]:
        """The newest version of every Suite by name; with a tenant, those that are everybody's or its own."""
        query = self._select()
        if tenant_id is not None:
            query = query.where(or_(SUITES.c.tenant_id.is_(None), SUITES.c.tenant_id == tenant_id))
        newest: dict[str, Suite] = {}
        for suite in await self._all(query.order_by(SUITES.c.name, SUITES.c.version)):
            newest[suite.name] = suite
        return list(newest.values())

    async def _check(self, suite: Suite) -> None:
        wanted = sorted(set(suite.task_ids))
        found: list[Task] = []
        for start in range(0, len(wanted), _PAGE):
            query = select(TASKS.c.payload).where(TASKS.c.id.in_(wanted[start : start + _PAGE]))
            found += [Task.model_validate_json(row.payload) for row in await self._connection.rows(query)]
        missing = set(wanted) - {task.id for task in found}
        if missing:
            raise TaskError(f"Suite '{suite.name}': {len(missing)} Tasks are not stored, {min(missing)} first")
        open_ones = [task.id for task in found if task.split != "heldout"]
        if open_ones:
            raise TaskError(f"Suite '{suite.name}': {min(open_ones)} is not held out", hint="use split 'heldout'")
        await self._prompts.hold_out(found)
