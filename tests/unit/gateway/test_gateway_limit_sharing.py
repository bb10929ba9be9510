"""Processes of one gateway that share no counters keep a limit together all the same."""

from prometheus_client import CollectorRegistry

from gateway.limits.line import Line, Unit
from gateway.limits.sharing import Sharing
from gateway.metrics import GatewayMetrics
from store.local_counters import LocalCounters


async def test_processes_without_shared_counters_divide_a_limit():
    """Each of three processes lets in a third, so that together they never exceed the limit."""
    granted = 0
    for _ in range(3):
        line = Line(counter="c", unit=Unit.REQUESTS, owner="ten", limit=10)
        sharing = Sharing(
            counters=LocalCounters(), lines={"c": line}, metrics=GatewayMetrics(CollectorRegistry()), processes=3
        )
        while True:
            reservation = await sharing.reserve([(line, 1, 0)])
            amount = reservation.grants[0].amount if reservation.granted else 0
            if not amount:
                break
            granted += amount
    assert 7 <= granted <= 10
