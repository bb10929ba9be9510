"""Evidence from the store: results of Suites, and the pairs of shadows."""

from collections.abc import Mapping, Sequence
from typing import Any

from core.noun import now
from core.shadow import ShadowPair
from core.suite import Suite, SuiteResult
from store.unit_of_work import UnitOfWork

_SETTLE_SECONDS = 2.0


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
        self, work: UnitOfWork, experiment_id: str, cursor: Any, limit: int
    ) -> tuple[Sequence[ShadowPair], Any]:
        """Pairs after ``cursor`` (None: from the first on) in a fixed order, and the cursor of the last one."""
        found, _ = await work.shadow_pairs.after(experiment_id, None if cursor is None else tuple(cursor), limit)
        # A transaction under way may still add an earlier one: what is too young is read with the next look.
        settled = [pair for pair in found if pair.created_at < now() - _SETTLE_SECONDS]
        return settled, [settled[-1].created_at, settled[-1].id] if settled else cursor

    async def counts(self, work: UnitOfWork, experiment_id: str) -> Mapping[str, Any]:
        """How many were mirrored, scored, failed and skipped, and why."""
        return await work.shadow_pairs.counts(experiment_id)
