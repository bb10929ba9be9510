"""Releases over the admin API: start, watch, decide, and the page of every decision, escaped and self-contained."""

import json
from collections.abc import AsyncIterator
from html.parser import HTMLParser

import pytest

from core.access import Scope
from core.release_run import ReleaseRun, RunStatus
from gateway.release_run.conductor import LEASE, Conductor, Sources
from store.leadership import Leadership
from store.store import Store
from tests.gateway_harness import POLICY, Harness, running_gateway
from tests.release_harness import FakeNotifier, FakePairs, FakeSuites, pairs, plan

REASON = "<script>alert('x')</script> & more"


@pytest.fixture
async def harness(fresh_sqlite_url, open_store, make_config) -> AsyncIterator[Harness]:
    """A gateway with a live candidate."""
    store = await open_store(fresh_sqlite_url)
    async with running_gateway(store, make_config, {"store.url": fresh_sqlite_url}) as harness:
        await harness.add_engine()
        await harness.mint()
        await harness.deploy("dep_a", versions=(1,))
        await harness.add_key("looker", scopes={Scope.ADMIN_READ})
        yield harness


def body(**fields) -> dict:
    return {"version": 1, "plan": plan(**fields).model_dump(mode="json")}


async def finished(store: Store, run_id: str) -> ReleaseRun:
    """Stepped by a controller until nothing changes."""
    sources = Sources(suites=FakeSuites({0: 0.4, 1: 0.6}), pairs=FakePairs(pairs(0.3, 400)), notifier=FakeNotifier())
    leadership = Leadership(store=store, name=LEASE, owner="test", seconds=60.0)
    await leadership.acquire()
    conductor = Conductor(store=store, sources=sources, leadership=leadership)
    while await conductor.advance(run_id):
        pass
    await leadership.release()
    async with store.reading() as work:
        return await work.release_runs.get(run_id)


class Tags(HTMLParser):
    """Every tag, and whatever would load something from elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.loads: list[str] = []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.loads += [name for name, _ in attrs if name in ("src", "href", "onload", "onclick")]


async def page_of(harness: Harness, name: str, **parameters) -> str:
    url = f"{harness.url}/admin/v1/releases/{name}/page"
    async with harness.http.get(url, params=parameters, headers=harness.headers("looker")) as answer:
        assert answer.status == 200
        assert answer.content_type == "text/html"
        assert "default-src 'none'" in answer.headers["content-security-policy"]
        return await answer.text()


async def test_a_release_from_start_to_promotion(harness: Harness) -> None:
    """Started, approved and promoted over the API, and every decision has its page and its numbers."""
    status, started = await harness.admin("POST", "/releases", body(approvals=["evaluation"]))
    assert (status, started["status"], started["step"]) == (201, "running", "evaluation")
    run = await finished(harness.store, started["id"])
    assert run.status is RunStatus.WAITING
    status, approved = await harness.admin("POST", f"/releases/{POLICY}/approve", {"reason": REASON})
    assert (status, approved["step"]) == (200, "shadow")
    assert (await finished(harness.store, run.id)).status is RunStatus.PROMOTED
    _, shown = await harness.admin("GET", f"/releases/{POLICY}@1", key="looker")
    assert shown["status"] == "promoted"
    for decision in shown["decisions"]:
        text = await page_of(harness, run.id, decision=decision["number"])
        tags = Tags()
        tags.feed(text)
        assert "script" not in tags.tags
        assert tags.loads == []
        assert f"{POLICY}@1" in text
        _, numbers = await harness.admin("GET", f"/releases/{run.id}/decision?decision={decision['number']}")
        assert numbers["decision"]["verdict"] == decision["verdict"]
    shadow = next(one for one in shown["decisions"] if one["step"] == "shadow")
    text = await page_of(harness, run.id, decision=shadow["number"])
    assert text.count("<svg") >= 2
    assert "maths (shadow)" in text
    assert "&lt;script&gt;" in text
    _, listed = await harness.admin("GET", f"/releases?policy={POLICY}", key="looker")
    assert [(one["status"], one["newest"]["verdict"]) for one in listed] == [("promoted", "promoted")]
    _, records = await harness.admin("GET", "/audit")
    assert {"release.start", "release.approve", "policy.promote"} <= {one["action"] for one in records}


async def test_a_ramp_that_a_release_owns_is_moved_by_its_plan_alone(harness: Harness) -> None:
    """An operator may stop it, but moves it on only by approving or skipping; the plan's stages stay its own."""
    ramp = [{"share": 0.1, "min_seconds": 0, "min_episodes": 10_000}, {"share": 1.0}]
    _, started = await harness.admin("POST", "/releases", body(ramp=ramp))
    run = await finished(harness.store, started["id"])
    status, answer = await harness.admin("POST", f"/experiments/{run.ramp_id}/share", {"share": 0.9})
    assert (status, run.id in answer["error"]["message"]) == (409, True)
    status, _ = await harness.admin("POST", f"/experiments/{run.ramp_id}/stop", {"reason": "enough"})
    assert (status, (await finished(harness.store, run.id)).status) == (200, RunStatus.ROLLED_BACK)
    assert (await harness.admin("POST", "/releases", body()))[0] == 409
    status, again = await harness.admin("POST", "/releases", body() | {"reason": "it was the plan"})
    assert (status, again["decisions"][0]["reasons"]) == (201, ["it was the plan"])


@pytest.mark.parametrize("version", ["99999999999999999999", "1000000000", "%C2%B2", "-1"])
async def test_a_version_that_is_no_number_names_no_release(harness: Harness, version: str) -> None:
    """Whatever follows the name, the answer is that there is none."""
    assert (await harness.admin("GET", f"/releases/{POLICY}@{version}"))[0] in (400, 404)


async def test_skipping_and_stopping_need_reasons_and_a_writer(harness: Harness) -> None:
    """What people do is refused without a reason or the scope, and stands in the decisions."""
    _, started = await harness.admin("POST", "/releases", body())
    path = f"/releases/{started['id']}"
    for action, said in (("skip", {"step": "evaluation", "reason": "later"}), ("stop", {"reason": "no"})):
        assert (await harness.admin("POST", f"{path}/{action}", said, key="looker"))[0] == 403
        assert (await harness.admin("POST", f"{path}/{action}", said | {"reason": ""}))[0] == 400
    status, skipped = await harness.admin("POST", f"{path}/skip", {"step": "evaluation", "reason": "later"})
    assert (status, skipped["step"], skipped["skipped"]) == (200, "shadow", {"evaluation": "later"})
    status, stopped = await harness.admin("POST", f"{path}/stop", {"reason": "no"})
    assert (status, stopped["status"]) == (200, "stopped")
    assert (await harness.admin("POST", f"{path}/approve"))[0] == 409


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        ({"version": 7, "plan": plan().model_dump(mode="json")}, 404),
        ({"version": 0, "plan": plan().model_dump(mode="json")}, 409),
        ({"version": 1, "plan": plan(steps=["ramp", "evaluation"]).model_dump(mode="json")}, 400),
        ({"version": 1, "plan": {"policy": POLICY}}, 400),
        ({"version": 1, "plan": plan(policy="nobody").model_dump(mode="json")}, 404),
    ],
)
async def test_an_impossible_release_is_refused(harness: Harness, sent: dict, status: int) -> None:
    """Nothing is started for a version, a plan or a Policy that cannot be released."""
    assert (await harness.admin("POST", "/releases", sent))[0] == status
    assert (await harness.admin("GET", "/releases"))[1] == []
    assert (await harness.admin("GET", f"/releases/{POLICY}"))[0] == 404
    assert json.dumps(sent)
