"""What engines say of themselves: version, load, prefix cache, draft acceptance, written into their Deployments."""

import structlog

from core.deployment import EngineLoad, SpeculationSeen
from core.errors import HoneError
from serving.engines.base import EngineMetrics
from serving.replica import Replica
from serving.speculation.acceptance import Acceptance, acceptance

log = structlog.get_logger(__name__)


async def observe(replica: Replica) -> None:
    """Ask a reachable engine for its version (once in its life) and its load.

    An engine that does not answer that is no less healthy: what it said before stays, with its time.
    """
    life = replica.life
    try:
        if replica.version_of_life != life:
            version = await replica.engine.version()
            if replica.life == life:
                replica.update(engine_version=version)
                replica.version_of_life = life
        counters = await replica.engine.metrics()
    except HoneError as error:
        log.debug("metrics_unread", url=replica.engine.url, error=error.message)
        return
    if replica.life == life:
        replica.update(load=_load(replica.counters, counters))
        replica.counters = counters


def observe_drafts(replica: Replica) -> Acceptance | None:
    """How draft tokens fared since this was last asked, by the counters of the last ``observe``; None: no drafts."""
    seen = acceptance(replica.drafted, replica.counters)
    replica.drafted = replica.counters
    if seen is not None:
        found = SpeculationSeen(
            acceptance=seen.rate, accepted_per_draft=seen.tokens_per_step - 1.0, by_position=seen.by_position
        )
        replica.update(speculation_seen=found)
    return seen


def _load(before: EngineMetrics, after: EngineMetrics) -> EngineLoad:
    """The load now; a restarted engine counts from zero again, which shows as a fall."""
    if after.prefix_queries < before.prefix_queries:
        before = EngineMetrics()
    queries = after.prefix_queries - before.prefix_queries
    hits = after.prefix_hits - before.prefix_hits
    return EngineLoad(
        running=after.running,
        waiting=after.waiting,
        kv_use=min(1.0, max(0.0, after.kv_use)),
        prefix_hits=hits / queries if queries > 0 else None,
    )
