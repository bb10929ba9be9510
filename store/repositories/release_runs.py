"""ReleaseRuns in the store."""

from core.errors import Conflict, NotFound
from core.noun import now
from core.release_run import ReleaseRun
from store.connection import Connection
from store.repositories.base import Repository
from store.tables.release_runs import RELEASE_RUNS


class ReleaseRuns(Repository[ReleaseRun]):
    """ReleaseRuns by id, at most one open one for each Policy; a change counts only on the newest revision."""

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection, ReleaseRun, RELEASE_RUNS)

    async def add(self, run: ReleaseRun) -> None:
        """Add; raises Conflict when the Policy has an open one."""
        if not await self._add_new([run]):
            raise Conflict(
                f"'{run.policy}' has a release under way",
                hint="see it with 'hone release status', or end it with 'hone release stop'",
            )

    async def get(self, run_id: str, *, lock: bool = False) -> ReleaseRun:
        """One run; raises NotFound. With ``lock`` nobody else changes it before the transaction ends."""
        return await self._get(run_id, lock=lock)

    async def newest(self, policy: str, version: int | None = None) -> ReleaseRun:
        """The run (of a version) of a Policy that was started last; raises NotFound."""
        query = self._where(self._select(), policy=policy, version=version)
        found = await self._first(query.order_by(RELEASE_RUNS.c.started_at.desc(), RELEASE_RUNS.c.id.desc()).limit(1))
        if found is None:
            name = policy if version is None else f"{policy}@{version}"
            raise NotFound(f"there is no release of '{name}'", hint="start one with 'hone release start'")
        return found

    async def list_open(self) -> list[ReleaseRun]:
        """Runs that go on, the oldest first."""
        query = self._select().where(RELEASE_RUNS.c.open_policy.is_not(None))
        return await self._all(query.order_by(RELEASE_RUNS.c.started_at, RELEASE_RUNS.c.id))

    async def list(self, policy: str | None = None, *, limit: int = 50) -> list[ReleaseRun]:
        """Runs (of a Policy), the newest first."""
        query = self._where(self._select(), policy=policy)
        query = query.order_by(RELEASE_RUNS.c.started_at.desc(), RELEASE_RUNS.c.id.desc())
        return await self._all(query.limit(limit))

    async def update(self, run: ReleaseRun) -> ReleaseRun:
        """Replace and return what is stored now. Raises Conflict when it changed since it was read, and NotFound."""
        stored = await self._get(run.id, lock=True)
        if stored.revision != run.revision:
            raise Conflict(f"the release of {run.label} was changed meanwhile", hint="read it again and decide anew")
        changed = run.model_copy(update={"revision": stored.revision + 1, "updated_at": now()})
        await self._update(changed)
        return changed
