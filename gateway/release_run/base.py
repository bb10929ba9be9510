"""Ports of the release controller: where results of Suites and pairs of shadows come from, and who is told."""

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from core.release_run import ReleaseRun
from core.shadow import ShadowPair
from core.suite import Suite, SuiteResult
from store.unit_of_work import UnitOfWork


class SuiteSource(Protocol):
    """Suites and what versions did on them."""

    async def suite(self, work: UnitOfWork, name: str) -> Suite:
        """The newest form of a Suite; raises NotFound."""
        ...

    async def result(self, work: UnitOfWork, policy: str, version: int, suite: Suite) -> SuiteResult | None:
        """The newest result of a version on this form of a Suite; None: it was not run."""
        ...


class PairSource(Protocol):
    """Mirrored requests of a shadow Experiment."""

    async def after(
        self, work: UnitOfWork, experiment_id: str, cursor: Any, limit: int, *, until: Any = None
    ) -> tuple[Sequence[ShadowPair], Any]:
        """Pairs after ``cursor`` (None: from the first on) in a fixed order, and the cursor of the last one.

        With ``until`` none after that cursor, whether or not its pair is still there. A cursor is a number, a text or
        a list of them: it is kept as JSON, and compared with what was kept.
        """
        ...

    async def counts(self, work: UnitOfWork, experiment_id: str) -> Mapping[str, Any]:
        """How many were mirrored, scored, failed and skipped, and why."""
        ...


class Notifier(Protocol):
    """Tells somebody outside what was decided."""

    async def send(self, url: str, message: Mapping[str, Any]) -> bool:
        """Whether it was taken; never raises. What was not taken is sent again later."""
        ...


class Step(Protocol):
    """One part of the way. ``look`` reads and computes; ``apply`` writes in one transaction."""

    async def look(self, run: ReleaseRun) -> Any:
        """What there is to decide on, read outside of the deciding transaction."""
        ...

    async def apply(self, work: UnitOfWork, run: ReleaseRun, looked: Any) -> ReleaseRun:
        """The run after what ``look`` saw; the same object when nothing changed."""
        ...
