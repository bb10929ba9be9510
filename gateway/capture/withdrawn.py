"""Leaves out of a batch of recorded calls what was withdrawn or erased while it lay in the journal."""

from collections.abc import Sequence

import structlog

from gateway.capture.prepared import PreparedCall
from store.unit_of_work import UnitOfWork

log = structlog.get_logger(__name__)


async def without_withdrawn(work: UnitOfWork, batch: Sequence[PreparedCall]) -> Sequence[PreparedCall]:
    """Those calls that may be stored; nobody withdraws them before this transaction has ended."""
    episodes, tenants = await work.withdrawals.refused(
        [prepared.call.episode_id for prepared in batch], [prepared.call.tenant_id for prepared in batch]
    )
    if not episodes and not tenants:
        return batch
    kept = [one for one in batch if one.call.episode_id not in episodes and one.call.tenant_id not in tenants]
    log.info("withdrawn_calls_dropped", calls=len(batch) - len(kept))
    return kept
