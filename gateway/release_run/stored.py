"""Evidence from the store: results of Suites, and the pairs of shadows."""

from collections.abc import Mapping, Sequence
from typing import Any

from core.shadow import ShadowPair
from core.suite import Suite, SuiteResult
from store.unit_of_work import UnitOfWork


class StoredSuites:
    """Suites and results as workers stored them."""

    async def suite(self, work: UnitOfWork, name: str) -> Suite:
        """The newest form of a Suite; raises NotFound."""
        return await work.suites.get(name)

    async def result(self, work: UnitOfWork, policy: str, version: int, suite: Suite) -> SuiteResult | None:
        """The newest result of a version on this form of a Suite; None: it was not run."""
        return await work.suite_results.newest(
            policy, version, suite.name, variant="standard", suite_version=suite.version
        )


class StoredPairs:
    """Pairs as gateways stored them."""

    async def after(
        self, work: UnitOfWork, experiment_id: str, cursor: Any, limit: int, *, until: Any = None
    ) -> tuple[Sequence[ShadowPair], Any]:
        """Pairs after ``cursor`` (None: from the first on) up to ``until`` in order, and the last one's cursor."""
        return await work.shadow_pairs.after(experiment_id, cursor, limit, until=until)

    async def counts(self, work: UnitOfWork, experiment_id: str) -> Mapping[str, Any]:
        """How many were mirrored, scored, failed and skipped, and why."""
        return await work.shadow_pairs.counts(experiment_id)
