"""Counts, for every Turn that is not its Episode's first, whether it continues the tokens of the one before it."""

from collections.abc import Sequence

from core.errors import NotFound
from core.trajectory import break_cause, continues
from core.turn import Turn
from gateway.capture.record import CapturedCall
from gateway.metrics import GatewayMetrics
from store.unit_of_work import UnitOfWork


class BreakCounter:
    """Called with the Turns of each record when they are written, in the same transaction."""

    def __init__(self, *, metrics: GatewayMetrics) -> None:
        self._metrics = metrics

    async def __call__(self, work: UnitOfWork, call: CapturedCall, turns: Sequence[Turn]) -> None:
        """Count ``turns``, which all answer the same request."""
        later = next((turn for turn in turns if turn.exact and turn.content_kept), None)
        if later is None or call.index == 0:
            return
        earlier = await self._earlier(work, call)
        if earlier is None or not earlier.exact or not earlier.content_kept:
            return
        if continues(earlier, later):
            self._metrics.turn_links.labels("continues").inc()
        else:
            self._metrics.turn_links.labels(break_cause(earlier, later).value).inc()

    @staticmethod
    async def _earlier(work: UnitOfWork, call: CapturedCall) -> Turn | None:
        """The Turn that the messages continue; where they continue none, the one recorded before."""
        if call.parent_turn_id is not None:
            try:
                return await work.turns.get(call.parent_turn_id)
            except NotFound:
                return None
        before = [turn for turn in await work.turns.for_episode(call.episode_id) if turn.index < call.index]
        return before[-1] if before else None
