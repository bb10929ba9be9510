"""The admin API of Deployments and fleets: what replicas say, who leads, and a restart that reaches the fleet."""

import pytest

from core.access import Scope
from core.deployment import DeploymentStatus, EngineLoad, SwapRecord
from core.noun import now
from store.leadership import fleet_lease
from tests import nouns
from tests.gateway_harness import BASE, Harness, running_gateway


@pytest.fixture
async def harness(database_url, open_store, make_config):
    """A gateway with a launched, an attached and a stopped replica, on SQLite and on PostgreSQL in turn."""
    store = await open_store(database_url)
    async with running_gateway(store, make_config, {"store.url": database_url}) as harness:
        launched = nouns.deployment(
            id="dep_launched",
            base=BASE,
            machine="m",
            pid=7,
            status=DeploymentStatus.READY,
            engine_version="0.32.0",
            answers_to=(BASE,),
            load=EngineLoad(running=3, waiting=1, kv_use=0.25, prefix_hits=0.5),
            swaps=(SwapRecord(kind="lora", policy="coder", version=4, outcome="refused", reason="no", seconds=0.2),),
        )
        async with store.transaction() as work:
            await work.deployments.put(launched)
            await work.deployments.put(nouns.deployment(id="dep_attached", base=BASE))
            stopped = launched.model_copy(update={"id": "dep_stopped", "status": DeploymentStatus.STOPPED})
            await work.deployments.put(stopped)
        yield harness


async def test_a_replica_shows_what_its_engine_says(harness: Harness):
    """Engine and version, names that it lists, load, KV use, prefix hits and swaps are in one place."""
    status, view = await harness.admin("GET", "/deployments/dep_launched")
    assert status == 200
    assert (view["engine_version"], view["answers_to"], view["load"]["kv_use"]) == ("0.32.0", [BASE], 0.25)
    assert (view["load"]["prefix_hits"], view["swaps"][0]["reason"]) == (0.5, "no")
    listed = (await harness.admin("GET", "/deployments"))[1]
    assert view in listed
    assert (await harness.admin("GET", "/deployments/dep_none"))[0] == 404


async def test_a_restart_is_asked_for_in_the_row_and_on_record(harness: Harness):
    """It stands in the Deployment for the fleet to find; asking twice changes nothing, and both are audited."""
    status, view = await harness.admin("POST", "/deployments/dep_launched/restart", {"reason": "new driver"})
    assert (status, view["restart"]["reason"]) == (202, "new driver")
    again = (await harness.admin("POST", "/deployments/dep_launched/restart"))[1]
    assert again["restart"] == view["restart"]
    assert (await harness.admin("GET", "/deployments/dep_launched"))[1]["restart"] == view["restart"]
    records = (await harness.admin("GET", "/audit"))[1]
    found = [(one["action"], one["subject"], one["detail"]["reason"]) for one in records]
    assert ("deployment.restart", "dep_launched", "new driver") in found and len(found) == 2


async def test_what_no_fleet_can_restart_is_refused(harness: Harness):
    """An engine of somebody else, a stopped one, an unknown one, and a caller who may only read."""
    attached = await harness.admin("POST", "/deployments/dep_attached/restart")
    assert attached[0] == 409 and "not run by the fleet" in attached[1]["error"]["message"]
    assert (await harness.admin("POST", "/deployments/dep_stopped/restart"))[0] == 409
    assert (await harness.admin("POST", "/deployments/dep_none/restart"))[0] == 404
    await harness.add_key("reader", scopes={Scope.ADMIN_READ})
    assert (await harness.admin("POST", "/deployments/dep_launched/restart", key="reader"))[0] == 403
    assert (await harness.admin("GET", "/deployments/dep_launched"))[1]["restart"] is None


async def test_the_leader_of_a_base_is_shown(harness: Harness):
    """Nobody led yet, somebody leads, or the last leader's lease ran out; with replicas by status."""
    (view,) = (await harness.admin("GET", "/fleets"))[1]
    assert (view["base"], view["leader"], view["leads"], view["until"]) == (BASE, None, False, None)
    assert view["deployments"] == {"ready": 1, "starting": 1, "stopped": 1}
    for seconds, leads in ((30.0, True), (-1.0, False)):
        async with harness.store.transaction() as work:
            await work.leases.acquire(fleet_lease(BASE), "m:1:led", now=now(), seconds=seconds)
        (view,) = (await harness.admin("GET", "/fleets"))[1]
        assert (view["leader"], view["leads"]) == ("m:1:led", leads)


async def test_wanted_replicas_are_the_configured_ones_until_somebody_asks_for_others(harness: Harness):
    """A plan replaces them and is audited, and taking it away brings the configuration's back."""
    path = f"/fleets/{BASE}/plan"
    status, configured = await harness.admin("GET", path)
    assert (status, configured["launch"]) == (200, {"standard": 1, "fast": 1})
    status, plan = await harness.admin("PUT", path, {"launch": {"standard": 2}})
    assert (status, plan["launch"]) == (200, {"standard": 2}) and plan["changed_by"]
    assert (await harness.admin("GET", path))[1] == plan
    assert (await harness.admin("DELETE", path))[1]["launch"] == configured["launch"]
    assert (await harness.admin("GET", path))[1]["launch"] == configured["launch"]
    records = (await harness.admin("GET", "/audit"))[1]
    assert [one["action"] for one in records] == ["fleet.plan", "fleet.plan"]


async def test_a_plan_that_cannot_be_is_refused_before_the_fleet_sees_it(harness: Harness):
    """No replica at all, an unknown Variant, an unknown Base, and a caller who may only read."""
    path = f"/fleets/{BASE}/plan"
    assert (await harness.admin("PUT", path, {"launch": {}}))[0] == 400
    assert (await harness.admin("PUT", path, {"launch": {"faster": 1}}))[0] == 400
    assert (await harness.admin("PUT", "/fleets/nothing/plan", {"launch": {"standard": 1}}))[0] == 404
    await harness.add_key("reader", scopes={Scope.ADMIN_READ})
    assert (await harness.admin("PUT", path, {"launch": {"standard": 1}}, key="reader"))[0] == 403
    async with harness.store.reading() as work:
        assert await work.fleet_plans.find(BASE) is None
