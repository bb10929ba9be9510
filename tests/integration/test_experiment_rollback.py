"""Rollback of an A/B Experiment: by guardrails and hard limits, on every gateway, with evidence and a webhook."""

import asyncio
import hmac
import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web
from prometheus_client import CollectorRegistry

from core.arm_outcome import ArmOutcome
from core.experiment import Experiment, assign
from core.policy import ServingStatus
from core.release import ReleaseStatus
from gateway.app import create_app
from gateway.experiments.webhooks import sign
from gateway.state import Gateway
from store.store import Store
from tests.experiments_harness import NEARLY_ALL, ask, ask_as, begin, outcomes, with_candidate
from tests.gateway_harness import POLICY, Harness, running_gateway, served
from tests.scripted_engine import ScriptedEngine

SECRET = "between us"


class Receiver:
    """Keeps what it was sent; refuses as often as it is told to first."""

    def __init__(self, refuse: int = 0) -> None:
        self.refuse = refuse
        self.tried = 0
        self.got: list[dict[str, Any]] = []
        self.signed: list[bool] = []
        self.url = ""

    async def take(self, request: web.Request) -> web.Response:
        """One POST."""
        self.tried += 1
        if self.tried <= self.refuse:
            return web.Response(status=503)
        body = await request.read()
        expected = sign(SECRET, request.headers["x-hone-timestamp"], body)
        self.signed.append(hmac.compare_digest(expected, request.headers["x-hone-signature"]))
        self.got.append(json.loads(body))
        return web.Response()


@asynccontextmanager
async def receiving(refuse: int = 0) -> AsyncIterator[Receiver]:
    """A Receiver on a free port."""
    receiver = Receiver(refuse)
    app = web.Application()
    app.router.add_post("/hook", receiver.take)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    receiver.url = f"http://127.0.0.1:{runner.addresses[0][1]}/hook"
    try:
        yield receiver
    finally:
        await runner.cleanup()


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    """One that refuses the first POST."""
    async with receiving(refuse=1) as receiver:
        yield receiver


@pytest.fixture
async def harness(fresh_sqlite_url, open_store, make_config, receiver) -> AsyncIterator[Harness]:
    """A gateway on SQLite whose watcher looks only when a test makes it, and tells the receiver."""
    settings = {
        "experiments.watch_seconds": 0.0,
        "experiments.webhook_url": receiver.url,
        "experiments.webhook_secret": SECRET,
    }
    async with running_gateway(await open_store(fresh_sqlite_url), make_config, settings) as harness:
        yield harness


async def add_outcomes(store: Store, experiment: Experiment, count: int, event: str) -> None:
    """Episodes of as many keys; every one of the candidate had the event."""
    async with store.transaction() as work:
        for number in range(count):
            arm = assign(experiment, str(number)).arm
            outcome = ArmOutcome(
                experiment_id=experiment.id,
                episode_id=f"ep_{number}",
                key=str(number),
                arm=arm,
                requests=1,
                events={event: 1} if arm == "candidate" else {},
                created_at=float(number),
            )
            await work.arm_outcomes.put(outcome)


async def ended(store: Store, experiment_id: str) -> Experiment:
    """The Experiment, stopped."""
    async with store.reading() as work:
        found = await work.experiments.get(experiment_id)
    assert found.status == "stopped"
    return found


async def test_a_guardrail_ends_the_experiment_and_tells_people(harness: Harness, receiver: Receiver):
    """Stopped with evidence, candidate frozen, audit record, signed POST after a retry; new requests go back."""
    version = await with_candidate(harness)
    experiment = await begin(harness, version)
    old = await ask_as(harness, "candidate")
    await add_outcomes(harness.store, experiment, 200, "error")
    parts = harness.gateway.experiments
    assert await parts.watcher.look() == [experiment.id]
    assert await parts.watcher.look() == []
    stopped = await ended(harness.store, experiment.id)
    assert "guardrail error" in (stopped.stopped_because or "")
    assert any(one["name"] == "error" and one["broken"] for one in stopped.evidence["guardrails"])
    async with harness.store.reading() as work:
        release = await work.releases.get(POLICY, version)
        assert (await work.policies.get(POLICY)).promoted_version == 0
    assert release.status is ReleaseStatus.ROLLED_BACK
    assert release.evidence["ramp"]["experiment"] == experiment.id
    await parts.live.refresh()
    assert {(await ask(harness))["policy-version"] for _ in range(6)} == {"0"}
    again = await ask(harness, **{"x-hone-episode-id": old["episode-id"]})
    assert again["policy-version"] == str(version)
    await parts.webhooks.flush()
    assert (receiver.tried, receiver.signed) == (2, [True])
    event = receiver.got[0]
    assert (event["type"], event["version"], event["release_status"]) == (
        "experiment.rolled_back",
        version,
        "rolled_back",
    )
    assert harness.count("hone_experiment_rollbacks_total") == 1
    assert harness.count("hone_experiment_notifications_total", outcome="delivered") == 1


async def test_a_frozen_candidate_needs_an_operator(harness: Harness):
    """After a rollback a promotion without a reason is refused, and so is a new Experiment; with one it may be."""
    version = await with_candidate(harness)
    experiment = await begin(harness, version)
    await add_outcomes(harness.store, experiment, 200, "error")
    await harness.gateway.experiments.watcher.look()
    await harness.gateway.experiments.live.refresh()
    body: dict[str, Any] = {"policy": POLICY, "candidate_version": version, "share": 0.5}
    assert (await harness.admin("POST", "/experiments", body))[0] == 409
    steps = ["evaluation", "shadow", "ramp"]
    status, _ = await harness.admin("POST", f"/policies/{POLICY}/promote", {"version": version})
    assert status == 409
    wish = {"version": version, "skip": steps, "reason": "it was the load test"}
    status, answer = await harness.admin("POST", f"/policies/{POLICY}/promote", wish)
    assert status == 200, answer


async def test_a_refused_version_ends_the_ramp(harness: Harness):
    """A probe that fails while the ramp runs needs no statistics."""
    version = await with_candidate(harness)
    experiment = await begin(harness, version)
    async with harness.store.transaction() as work:
        stored = await work.versions.get(POLICY, version)
        for status in (ServingStatus.WANTED, ServingStatus.REFUSED):
            stored = stored.model_copy(update={"serving": status, "serving_reason": "the probe failed"})
            await work.versions.update(stored)
    await harness.gateway.experiments.watcher.look()
    assert "the probe failed" in ((await ended(harness.store, experiment.id)).stopped_because or "")


async def test_log_probs_that_are_no_numbers_end_the_ramp(harness: Harness):
    """An engine that answers for the candidate with ``null`` in place of a log-prob is found out by one answer."""
    version = await with_candidate(harness)
    experiment = await begin(harness, version, share=NEARLY_ALL)
    engine = ScriptedEngine()
    engine.logprob = None
    await engine.start()
    await harness.engines["dep_a"].stop()
    harness.engines["dep_a"] = engine
    await harness.deploy("dep_a", versions=(version,))
    await ask(harness, key="trainer")
    found = await outcomes(harness, experiment.id)
    assert [one.events for one in found.values()] == [{"nan_logprobs": 1}]
    await harness.gateway.experiments.watcher.look()
    assert "no numbers" in ((await ended(harness.store, experiment.id)).stopped_because or "")


async def test_refusals_and_bad_tool_calls_are_counted(harness: Harness):
    """What a Turn says of itself becomes the events of its Episode."""
    version = await with_candidate(harness)
    experiment = await begin(harness, version)
    engine = ScriptedEngine(message={"role": "assistant", "content": "I cannot help with that."})
    await engine.start()
    await harness.engines["dep_a"].stop()
    harness.engines["dep_a"] = engine
    await harness.deploy("dep_a", versions=(version,))
    refused = await ask(harness, key="trainer")
    call = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": "{not json"}}
    engine.message = {"role": "assistant", "content": None, "tool_calls": [call]}
    called = await ask(harness, key="trainer")
    found = await outcomes(harness, experiment.id)
    assert found[refused["episode-id"]].events == {"refusal": 1}
    assert found[called["episode-id"]].events == {"invalid_tool_call": 1}


async def test_a_webhook_that_never_answers_holds_up_nothing(fresh_sqlite_url, open_store, make_config):
    """It is tried as often as configured, counted as failed, and the rollback does not wait for it."""
    async with receiving(refuse=99) as deaf:
        settings = {
            "experiments.watch_seconds": 0.0,
            "experiments.webhook_url": deaf.url,
            "experiments.webhook_attempts": 2,
        }
        async with running_gateway(await open_store(fresh_sqlite_url), make_config, settings) as harness:
            version = await with_candidate(harness)
            experiment = await begin(harness, version)
            await add_outcomes(harness.store, experiment, 200, "error")
            await harness.gateway.experiments.watcher.look()
            await ended(harness.store, experiment.id)
            await harness.gateway.experiments.webhooks.flush()
            assert deaf.tried == 2
            assert harness.count("hone_experiment_notifications_total", outcome="failed") == 1


async def until_stopped(gateway: Gateway, begun_at: float) -> float:
    """Seconds from ``begun_at`` until a gateway follows no Experiment any more; looks at every turn of the loop."""
    live = gateway.experiments.live
    while live.running is not None:
        live.changed.clear()
        if live.running is not None:
            await live.changed.wait()
    return time.perf_counter() - begun_at


@pytest.mark.parametrize("database", ["sqlite", "postgres"])
async def test_every_gateway_routes_back_after_one_event(database, request, open_store, make_config, capsys):
    """Two gateways on one store follow the beginning and the end of an Experiment by the event alone.

    Both would read it again by themselves only after an hour.
    """
    url = request.getfixturevalue(f"fresh_{database}_url")
    redis = {"store.redis_url": request.getfixturevalue("redis_url")} if database == "postgres" else {}
    slow = {"experiments.watch_seconds": 0.0, "experiments.refresh_seconds": 3600.0} | redis
    store, other_store = await open_store(url, redis), await open_store(url, redis)
    async with running_gateway(store, make_config, slow) as harness:
        other_app = create_app(harness.config, other_store, registry=CollectorRegistry())
        async with served(other_app) as other_url:
            version = await with_candidate(harness)
            gateways = [harness.gateway, other_app.state.gateway]
            await gateways[1].routing.refresh()
            experiment = await begin(harness, version, share=NEARLY_ALL)
            async with asyncio.timeout(30):
                while any(gateway.experiments.live.running is None for gateway in gateways):
                    await asyncio.sleep(0.01)
            assert (await ask(harness))["arm"] == "candidate"
            await add_outcomes(store, experiment, 1, "nan_logprobs")
            begun_at = time.perf_counter()
            waits = [asyncio.create_task(until_stopped(gateway, begun_at)) for gateway in gateways]
            assert await harness.gateway.experiments.watcher.look() == [experiment.id]
            async with asyncio.timeout(30):
                seconds = await asyncio.gather(*waits)
            for one in (harness.url, other_url):
                harness.url = one
                assert "arm" not in await ask(harness)
            with capsys.disabled():
                shown = ", ".join(f"{value * 1000:.0f} ms" for value in seconds)
                print(f"\nrollback on {database}: both gateways route back after {shown} (look and writes included)")


async def test_of_several_gateways_one_watches(fresh_sqlite_url, open_store, make_config):
    """With watching switched on, an Experiment ends by itself, once, whoever of the gateways leads."""
    quick = {"experiments.watch_seconds": 0.05, "experiments.lease_seconds": 2.0}
    store, other_store = await open_store(fresh_sqlite_url), await open_store(fresh_sqlite_url)
    async with running_gateway(store, make_config, quick) as harness:
        other_app = create_app(harness.config, other_store, registry=CollectorRegistry())
        async with served(other_app):
            version = await with_candidate(harness)
            experiment = await begin(harness, version)
            await add_outcomes(store, experiment, 200, "slow")
            async with asyncio.timeout(30):
                while harness.gateway.experiments.live.running is not None:
                    await asyncio.sleep(0.02)
            assert "guardrail slow" in ((await ended(store, experiment.id)).stopped_because or "")
            async with store.reading() as work:
                found = [one for one in await work.audit.list() if one.action == "experiment.roll_back"]
            assert len(found) == 1
