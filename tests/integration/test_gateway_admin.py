"""The admin API: Policies, promotion and rollback, keys, Episodes, jobs, and the OpenAPI document."""

import asyncio
from contextlib import asynccontextmanager

import openai
import pytest

from core.access import Scope
from core.job import JobStatus
from core.policy import Policy
from core.release import Release, ReleaseStatus
from core.run import StepMetrics, TrainingRun
from tests import nouns
from tests.gateway_harness import BASE, POLICY, QUESTION, Harness, hone_headers, running_gateway

CHAT = {"model": POLICY, "messages": QUESTION, "max_tokens": 8}
SKIPPED = {"skip": ["evaluation", "shadow", "ramp"], "reason": "trying out"}


@asynccontextmanager
async def two_versions(url, open_store, make_config):
    """A gateway with one engine that holds versions 1 and 2."""
    store = await open_store(url)
    async with running_gateway(store, make_config, {"store.url": url}) as harness:
        await harness.add_engine()
        for _ in range(2):
            await harness.mint()
        await harness.deploy("dep_a", versions=(1, 2))
        yield harness


@pytest.fixture
async def harness(fresh_sqlite_url, open_store, make_config):
    """A gateway on SQLite."""
    async with two_versions(fresh_sqlite_url, open_store, make_config) as harness:
        yield harness


@pytest.fixture
async def either_harness(database_url, open_store, make_config):
    """A gateway on SQLite and on PostgreSQL in turn."""
    async with two_versions(database_url, open_store, make_config) as harness:
        yield harness


async def promoted(harness: Harness) -> str:
    """The version that answers the unpinned name now."""
    return hone_headers(await harness.post("/v1/chat/completions", CHAT))["policy-version"]


async def test_a_new_policy_is_the_base(harness: Harness):
    """A created Policy is live at once as its version 0, and its creation is on record."""
    status, view = await harness.admin("POST", "/policies", {"name": "writer", "release_policy": "demo"})
    assert status == 201
    assert view["policy"]["promoted_version"] == 0
    assert [(v["version"], v["serving"]) for v in view["versions"]] == [(0, "live")]
    assert [r["status"] for r in view["releases"]] == ["promoted"]
    await harness.gateway.routing.refresh()
    answer = await harness.client().chat.completions.create(**(CHAT | {"model": "writer"}))
    assert answer.model == "writer@0"
    _, records = await harness.admin("GET", "/audit")
    assert (records[0]["action"], records[0]["subject"]) == ("policy.create", "writer")


@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        ({"name": "a-fast"}, 400, "name"),
        ({"name": "a b"}, 400, "name"),
        ({"name": POLICY}, 409, None),
        ({"name": BASE}, 409, "name"),
        ({"name": "x", "base": "nothing"}, 404, "base"),
        ({"name": "x", "release_policy": "none"}, 400, None),
        ({"name": "x", "color": "red"}, 400, "color"),
        ({}, 400, "name"),
    ],
)
async def test_an_impossible_policy_is_refused(harness: Harness, body, status, param):
    """What cannot be a Policy is refused in OpenAI's shape and leaves nothing behind."""
    found, answer = await harness.admin("POST", "/policies", body)
    assert (found, answer["error"]["param"]) == (status, param)
    assert len((await harness.admin("GET", "/policies"))[1]) == 1


async def test_promotion_without_evidence_names_what_is_missing(harness: Harness):
    """The default release policy asks for all steps; 409 names each one and traffic stays."""
    status, answer = await harness.admin("POST", f"/policies/{POLICY}/promote", {"version": 1})
    assert status == 409
    for step in ("evaluation", "shadow", "ramp"):
        assert step in answer["error"]["message"]
    status, answer = await harness.admin(
        "POST", f"/policies/{POLICY}/promote", {"version": 1, "skip": ["evaluation", "shadow", "ramp"]}
    )
    assert (status, answer["error"]["param"]) == (400, "reason")
    assert await promoted(harness) == "0"


async def test_promotion_and_rollback_move_traffic_and_leave_a_trail(either_harness: Harness):
    """Promote 1, then 2, roll back: traffic follows at once, Releases and audit records say how it went."""
    harness = either_harness
    path = f"/policies/{POLICY}"
    assert (await harness.admin("POST", f"{path}/promote", {"version": 1} | SKIPPED))[0] == 200
    assert await promoted(harness) == "1"
    status, moved = await harness.admin("POST", f"{path}/promote", {"version": 2} | SKIPPED)
    assert status == 200
    assert moved["policy"]["previous_version"] == 1
    assert moved["promoted"]["missing"] == ["evaluation", "ramp", "shadow"]
    assert moved["displaced"]["status"] == "retired"
    assert await promoted(harness) == "2"
    status, moved = await harness.admin("POST", f"{path}/rollback", {"reason": "worse"})
    assert status == 200
    assert (moved["promoted"]["version"], moved["displaced"]["status"]) == (1, "rolled_back")
    assert await promoted(harness) == "1"
    status, answer = await harness.admin("POST", f"{path}/rollback")
    assert status == 409, answer
    _, view = await harness.admin("GET", path)
    assert {r["version"]: r["status"] for r in view["releases"]} == {0: "retired", 1: "promoted", 2: "rolled_back"}
    _, records = await harness.admin("GET", "/audit")
    assert [record["action"] for record in records[:3]] == ["policy.rollback", "policy.promote", "policy.promote"]
    assert records[0]["detail"]["reason"] == "worse"


async def test_an_evaluation_that_proves_gain_is_enough_for_the_demo_policy(harness: Harness):
    """With release policy ``demo`` a proven gain promotes, an unproven one does not."""
    async with harness.store.transaction() as work:
        policy = await work.policies.get(POLICY)
        await work.policies.update(policy.model_copy(update={"release_policy": "demo"}))
        for version, low in ((1, -0.1), (2, 0.1)):
            found = nouns.evaluation(version=version)
            found = found.model_copy(update={"gain": found.gain.model_copy(update={"low": low})})
            await work.evaluations.add(found)
            evidence = {"evaluation": found.model_dump(mode="json")}
            await work.releases.add(nouns.release(version=version, status=ReleaseStatus.EVALUATED, evidence=evidence))
    status, answer = await harness.admin("POST", f"/policies/{POLICY}/promote", {"version": 1})
    assert status == 409
    assert "does not prove" in answer["error"]["message"]
    assert (await harness.admin("POST", f"/policies/{POLICY}/promote", {"version": 2}))[0] == 200
    status, view = await harness.admin("GET", f"/policies/{POLICY}/versions/2")
    assert status == 200
    assert view["release"]["status"] == "promoted"
    assert view["evaluations"][0]["gain"]["low"] == 0.1
    assert view["deployments"] == ["dep_a"]


async def test_only_one_of_two_promoters_wins(either_harness: Harness):
    """Two promotions at once: one moves the traffic, the other gets 409, and one version is promoted."""
    harness = either_harness
    path = f"/policies/{POLICY}/promote"
    answers = await asyncio.gather(
        *(harness.admin("POST", path, {"version": version} | SKIPPED) for version in (1, 1, 1))
    )
    assert sorted(status for status, _ in answers) == [200, 409, 409]
    _, view = await harness.admin("GET", f"/policies/{POLICY}")
    assert [r["version"] for r in view["releases"] if r["status"] == "promoted"] == [1]


async def test_a_version_that_is_not_live_gets_no_traffic(harness: Harness):
    """A version still being loaded, or unknown, cannot be promoted."""
    await harness.mint(live=False)
    path = f"/policies/{POLICY}/promote"
    status, answer = await harness.admin("POST", path, {"version": 3} | SKIPPED)
    assert (status, answer["error"]["code"]) == (409, "version_not_served")
    assert (await harness.admin("POST", path, {"version": 9} | SKIPPED))[0] == 404
    assert (await harness.admin("POST", "/policies/nobody/promote", {"version": 1}))[0] == 404


async def test_keys_are_minted_once_and_revoked_at_once(harness: Harness):
    """A minted key works, its plaintext and hash appear nowhere else, and revoking stops it."""
    status, minted = await harness.admin("POST", "/keys", {"name": "app", "training_granted": True})
    assert status == 201
    client = harness.client(minted["plaintext"])
    assert (await client.chat.completions.create(**CHAT)).choices
    _, keys = await harness.admin("GET", "/keys")
    found = next(key for key in keys if key["id"] == minted["key"]["id"])
    assert found["training_granted"]
    assert "key_hash" not in found
    status, revoked = await harness.admin("DELETE", f"/keys/{found['id']}")
    assert (status, revoked["revoked"]) == (200, True)
    with pytest.raises(openai.AuthenticationError):
        await client.chat.completions.create(**CHAT)
    _, records = await harness.admin("GET", "/audit")
    assert [record["action"] for record in records[:2]] == ["key.revoke", "key.create"]
    assert minted["plaintext"] not in str(records)


async def test_scopes_guard_every_admin_route(harness: Harness):
    """Reading needs admin:read, writing admin:write; inference alone opens nothing; no key is 401."""
    await harness.add_key("auditor", scopes={Scope.ADMIN_READ})
    assert (await harness.admin("GET", "/policies", key="auditor"))[0] == 200
    for method, path, routes in _admin_routes(harness):
        read_only = method == "GET"
        for key, wanted in (("user", 403), ("hone-wrong", 401), ("auditor", None if read_only else 403)):
            if wanted is not None:
                assert (await harness.admin(method, path, {}, key=key))[0] == wanted, (routes, key)


async def test_an_episode_is_shown_whole(either_harness: Harness):
    """Turns, Verdicts, Reward, Branches and their causes come with the Episode; filters narrow the list."""
    harness = either_harness
    first = hone_headers(await harness.post("/v1/chat/completions", CHAT, key="trainer"))
    again = {"x-hone-episode-id": first["episode-id"]}
    await harness.post("/v1/chat/completions", CHAT, key="trainer", **again)
    await harness.turns(first["episode-id"])
    async with harness.store.transaction() as work:
        await work.verdicts.add_many([nouns.verdict(episode_id=first["episode-id"])])
    status, view = await harness.admin("GET", f"/episodes/{first['episode-id']}")
    assert status == 200
    assert len(view["turns"]) == 2
    assert [branch["cause"] for branch in view["branches"]] == ["first", "rewritten_history"]
    assert view["breaks"] == {"rewritten_history": 1}
    assert view["verdicts"][0]["score"] == 1.0
    assert view["reward"] is None
    for query, found in ((f"policy={POLICY}", 1), ("policy=x", 0), ("status=running", 1), ("tenant_id=ten_b", 0)):
        _, listed = await harness.admin("GET", f"/episodes?{query}")
        assert len(listed) == found
    assert (await harness.admin("GET", "/episodes?status=odd"))[0] == 400
    assert (await harness.admin("GET", "/episodes?colour=red"))[0] == 400
    assert (await harness.admin("GET", "/episodes/ep_nothing"))[0] == 404


async def test_dead_jobs_are_shown_and_requeued(harness: Harness):
    """A job out of attempts is listed with its error and can be given another try."""
    job = await harness.store.queue.enqueue("rollout", {}, max_attempts=1)
    (claimed,) = await harness.store.queue.claim(["rollout"], "test", lease_seconds=30)
    await harness.store.queue.fail(claimed, "sandbox burnt down")
    _, view = await harness.admin("GET", "/jobs")
    assert view["depth"][JobStatus.DEAD] == 1
    assert view["dead"][0]["error"] == "sandbox burnt down"
    status, requeued = await harness.admin("POST", f"/jobs/{job.id}/requeue")
    assert (status, requeued["status"]) == (200, "queued")
    assert (await harness.admin("POST", f"/jobs/{job.id}/requeue"))[0] == 409
    assert (await harness.admin("POST", "/jobs/job_nothing/requeue"))[0] == 404


async def test_runs_evaluations_and_deployments_are_listed(harness: Harness):
    """What the learner, the evaluations and the fleet wrote can be read."""
    run = TrainingRun(
        id="run_a", policy=POLICY, algorithm="grpo", start_version=0, domains=("sums",), planned_steps=1, seed=1
    )
    steps = tuple(StepMetrics(step=step, version=1, loss=0.0, gradient_norm=0.0) for step in (1, 2))
    async with harness.store.transaction() as work:
        await work.runs.put(run)
        await work.runs.put(run.model_copy(update={"id": "run_b", "steps": steps}))
        await work.checkpoints.add(nouns.checkpoint(id="ckpt_a", policy=POLICY, version=1))
        await work.lineage.add_many("ckpt_a", ["ep_2", "ep_1"])
        await work.evaluations.add(nouns.evaluation())
    assert {one["id"] for one in (await harness.admin("GET", "/runs"))[1]} == {"run_a", "run_b"}
    assert (await harness.admin("GET", "/runs/run_a"))[1]["algorithm"] == "grpo"
    assert (await harness.admin("GET", "/runs/none"))[0] == 404
    assert (await harness.admin("GET", "/runs/run_a/lineage"))[1] == []
    # The second step published nothing: its version is the first's.
    saw = {"step": 1, "version": 1, "checkpoint_id": "ckpt_a", "episode_ids": ["ep_1", "ep_2"]}
    assert (await harness.admin("GET", "/runs/run_b/lineage"))[1] == [saw]
    assert (await harness.admin("GET", "/runs/none/lineage"))[0] == 404
    assert len((await harness.admin("GET", "/evaluations"))[1]) == 1
    assert (await harness.admin("GET", "/evaluations?version=2"))[1] == []
    assert (await harness.admin("GET", "/deployments"))[1][0]["loaded"][0]["policy"] == POLICY


async def test_health_says_how_every_part_is(harness: Harness):
    """The overview is green when everything works, and says which replica is served what."""
    status, view = await harness.admin("GET", "/health")
    assert status == 200
    assert view["ok"], view
    assert view["serving"] == {POLICY: [0, 1, 2]}
    assert view["recorder"]["lost"] == 0


async def test_metrics_name_routes_by_template(harness: Harness):
    """Requests are counted under their route's template, whatever their path parameters are."""
    for path in (f"/policies/{POLICY}", "/policies/nobody", f"/policies/{POLICY}/versions/1", "/policies"):
        await harness.admin("GET", path)
    await harness.http.get(harness.url + "/nothing")
    labels = {"model": "", "status": "200"}
    for template in ("/policies/{name}", "/policies/{name}/versions/{number}", "/policies"):
        assert harness.count("hone_requests_total", route=f"/admin/v1{template}", **labels) == 1
    assert harness.count("hone_requests_total", route="unmatched", model="", status="404") == 1


async def test_malformed_json_is_400_on_admin_routes_too(harness: Harness):
    """A body that is no JSON is refused in OpenAI's shape."""
    response = await harness.post("/admin/v1/policies", b"{", key="admin", **{"content-type": "application/json"})
    assert response.status == 400
    assert "JSON" in (await response.json())["error"]["message"]


async def test_a_crash_in_a_route_is_a_500_with_the_request_id(harness: Harness, monkeypatch):
    """An unforeseen error says nothing of itself but the id by which the log names it."""

    async def crash(*_, **__):
        raise ZeroDivisionError("secret detail")

    monkeypatch.setattr(harness.gateway.authenticator, "authenticate", crash)
    for method, path in (("GET", "/admin/v1/policies"), ("POST", "/v1/chat/completions")):
        response = await harness.http.request(
            method, harness.url + path, headers=harness.headers("admin", **{"x-request-id": "trace-1"}), json=CHAT
        )
        text = await response.text()
        assert response.status == 500
        assert response.headers["x-request-id"] == "trace-1"
        assert "trace-1" in text
        assert "secret" not in text
        assert "internal_error" in text


async def test_the_openapi_document_is_complete(harness: Harness):
    """Every route has a summary, a described answer with a schema, and its error answers."""
    document = await (await harness.http.get(harness.url + "/openapi.json")).json()
    assert {"/v1/chat/completions", "/v1/completions", "/v1/models", "/health", "/ready", "/metrics"} <= set(
        document["paths"]
    )
    for path, methods in document["paths"].items():
        for method, route in methods.items():
            place = f"{method} {path}"
            assert route.get("summary"), place
            assert route.get("description"), place
            good = [answer for status, answer in route["responses"].items() if status.startswith("2")]
            assert good, place
            assert all(answer["description"] and answer.get("content") for answer in good), place
            if path.startswith(("/v1", "/admin")):
                assert {"401", "403", "503"} <= set(route["responses"]), place
                assert route["security"], place
    chat = document["paths"]["/v1/chat/completions"]["post"]
    assert "messages" in str(chat["requestBody"])
    assert "#/$defs" not in str(document)


async def test_releases_without_a_row_are_made_when_needed(harness: Harness):
    """A Policy whose versions have no Release yet can be promoted and rolled back all the same."""
    async with harness.store.transaction() as work:
        await work.policies.add(bare_policy("bare"))
    status, moved = await harness.admin("POST", "/policies/bare/rollback")
    assert status == 409
    assert moved["error"]["code"] == "conflict"
    async with harness.store.reading() as work:
        assert await work.releases.list("bare") == []
        found: list[Release] = await work.releases.list(POLICY)
    assert [release.version for release in found] == [0]


def bare_policy(name: str):
    """A Policy on the Base."""
    return Policy(name=name, base=BASE)


def _admin_routes(harness: Harness):
    """Method, a path with its parameters filled in, and the template of every admin route."""
    document = harness.app.openapi()
    for template, methods in document["paths"].items():
        if template.startswith("/admin/v1"):
            path = template.removeprefix("/admin/v1")
            for name, value in (("{name}", POLICY), ("{number}", "1"), ("{key_id}", "key_x")):
                path = path.replace(name, value)
            for method in methods:
                yield method.upper(), path.replace("{", "").replace("}", ""), template
