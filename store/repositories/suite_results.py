"""SuiteResults in the store."""

from sqlalchemy import desc

from core.suite import SuiteResult
from store.connection import Connection
from store.repositories.base import Repository
from store.tables.suite_results import SUITE_RESULTS

DONE = "done"


class SuiteResults(Repository[SuiteResult]):
    """SuiteResults by id; one that is under way holds the attempts made so far."""

    def __init__(self, connection: Connection) -> None:
        super().__init__(connection, SuiteResult, SUITE_RESULTS)

    async def put(self, result: SuiteResult) -> None:
        """Add or replace."""
        await self._put(result)

    async def get(self, result_id: str, *, lock: bool = False) -> SuiteResult:
        """One SuiteResult; raises NotFound. With ``lock`` nobody changes it before this transaction ends."""
        return await self._get(result_id, lock=lock)

    async def newest(
        self,
        policy: str,
        version: int,
        suite: str,
        *,
        variant: str | None = None,
        suite_version: int | None = None,
    ) -> SuiteResult | None:
        """The last finished result of a PolicyVersion on a Suite; None when there is none."""
        query = self._where(
            self._select(),
            policy=policy,
            version=version,
            suite=suite,
            variant=variant,
            suite_version=suite_version,
            status=DONE,
        )
        return await self._first(query.order_by(desc(SUITE_RESULTS.c.created_at), desc(SUITE_RESULTS.c.id)).limit(1))

    async def list(
        self,
        policy: str | None = None,
        version: int | None = None,
        suite: str | None = None,
        *,
        limit: int = 100,
    ) -> list[SuiteResult]:
        """Results, those under way too, newest first."""
        query = self._where(self._select(), policy=policy, version=version, suite=suite)
        query = query.order_by(desc(SUITE_RESULTS.c.created_at), desc(SUITE_RESULTS.c.id))
        return await self._all(query.limit(limit))
