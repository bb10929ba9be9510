"""Whether a Turn that is not its Episode's first continues the tokens of the one before it, or why not."""

from collections.abc import Sequence

from core.errors import NotFound
from core.trajectory import break_cause, continues
from core.turn import Turn
from gateway.capture.record import CapturedCall
from store.unit_of_work import UnitOfWork

CONTINUES = "continues"


async def link_of(work: UnitOfWork, call: CapturedCall, turns: Sequence[Turn]) -> str | None:
    """``continues`` or the cause of the break, for ``turns`` that all answer one request; None: it cannot be said."""
    later = next((turn for turn in turns if turn.exact and turn.content_kept), None)
    if later is None or call.index == 0:
        return None
    earlier = await _earlier(work, call)
    if earlier is None or not earlier.exact or not earlier.content_kept:
        return None
    return CONTINUES if continues(earlier, later) else break_cause(earlier, later).value


async def _earlier(work: UnitOfWork, call: CapturedCall) -> Turn | None:
    """The Turn that the messages continue; where they continue none, the one recorded before."""
    if call.parent_turn_id is not None:
        try:
            return await work.turns.get(call.parent_turn_id)
        except NotFound:
            return None
    before = [turn for turn in await work.turns.for_episode(call.episode_id) if turn.index < call.index]
    return before[-1] if before else None
