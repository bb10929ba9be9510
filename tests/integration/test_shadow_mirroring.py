"""Shadows on live traffic: what is mirrored and what is not, and that no client ever notices."""

import asyncio
from typing import Any

import pytest
from aiohttp import web

from core.errors import StoreError
from core.experiment import Arm, Experiment
from core.policy import ServingStatus
from core.shadow import ShadowPair, ShadowStatus
from core.variant import Variant
from serving.engines.fake_script import ScriptedAnswer
from store.events import EXPERIMENTS
from tests.gateway_harness import POLICY, QUESTION, Harness, hone_headers, running_gateway

PATH = "/v1/chat/completions"
CHAT: dict[str, Any] = {"model": POLICY, "messages": QUESTION, "max_tokens": 4, "seed": 1}
FOUR = {"metadata": {"hone_expected": "4", "hone_domain": "maths"}}
LIMITS = {"experiments.watch_seconds": 0.0, "shadow.flush_seconds": 30.0, "shadow.concurrency": 1, "shadow.queue": 2}
_PATIENCE = 20.0
PROMOTED, CANDIDATE = "dep_a", "dep_b"
TOOL = {
    "type": "function",
    "function": {
        "name": "add",
        "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
    },
}


@pytest.fixture
async def harness(fresh_sqlite_url, open_store, make_config):
    """A gateway whose promoted version and candidate are on a replica each; it writes when a test makes it."""
    async with running_gateway(await open_store(fresh_sqlite_url), make_config, LIMITS) as harness:
        await with_versions(harness)
        yield harness


async def with_versions(harness: Harness) -> None:
    """Version 1 is promoted; version 2 is the candidate."""
    first, second = await harness.mint(), await harness.mint()
    async with harness.store.transaction() as work:
        policy = await work.policies.get(POLICY)
        await work.policies.update(policy.model_copy(update={"promoted_version": first.version}))
    await harness.add_engine(PROMOTED, versions=(first.version,))
    await harness.add_engine(CANDIDATE, versions=(second.version,))


async def begin(harness: Harness, **fields: Any) -> Experiment:
    """A shadow of every request, begun by the admin API and followed."""
    body = {"policy": POLICY, "candidate_version": 2, "sample_share": 1.0} | fields
    status, answer = await harness.admin("POST", "/shadows", body)
    assert status == 201, answer
    await harness.gateway.shadow.ledger.flush()
    return Experiment.model_validate(answer)


async def ask(harness: Harness, body: dict[str, Any] | None = None, key: str = "trainer", **headers: str) -> Any:
    """The answer to a request, which is always a good one."""
    response = await harness.post(PATH, CHAT | (body or {}), key, **headers)
    assert response.status == 200, await response.text()
    return response


async def counts(harness: Harness, experiment: Experiment, requests: int) -> dict[str, int]:
    """Counts in the store, once they say of that many requests what became of them."""
    async with asyncio.timeout(_PATIENCE):
        while True:
            await harness.gateway.shadow.ledger.flush()
            async with harness.store.reading() as work:
                found = await work.shadow_pairs.counts(experiment.id)
            if sum(count for name, count in found.items() if ":" not in name) >= requests:
                return found
            await asyncio.sleep(0.01)


async def pairs(harness: Harness, experiment: Experiment) -> list[ShadowPair]:
    """All stored pairs, in their order."""
    async with harness.store.reading() as work:
        return (await work.shadow_pairs.after(experiment.id))[0]


def say(harness: Harness, promoted: str, candidate: str) -> None:
    """What both versions answer next."""
    harness.engines[PROMOTED].script.append(ScriptedAnswer(text=promoted))
    harness.engines[CANDIDATE].script.append(ScriptedAnswer(text=candidate))


async def test_without_a_shadow_nothing_is_mirrored(harness: Harness):
    """The service holds nothing to offer an answer to, and the candidate hears nothing."""
    await ask(harness)
    assert harness.gateway.inference.shadows.running is None
    assert harness.engines[CANDIDATE].requests == []


async def test_a_mirrored_request_is_scored_and_leaves_no_other_trace(harness: Harness):
    """The candidate gets the client's request; the pair has both scores; no Turn, Episode, usage or header tells."""
    experiment = await begin(harness)
    say(harness, "5", "4")
    response = await ask(harness, FOUR)
    headers = hone_headers(response)
    assert (await response.json())["choices"][0]["message"]["content"] == "5"
    assert headers["policy-version"] == "1"
    assert await counts(harness, experiment, 1) == {"scored": 1}
    (pair,) = await pairs(harness, experiment)
    assert (pair.primary_score, pair.candidate_score, pair.judged_by) == (0.0, 1.0, "exact/1")
    assert (pair.domain, pair.episode_id, pair.turn_id) == ("maths", headers["episode-id"], headers["turn-id"])
    assert (pair.primary_arm, pair.candidate_arm, pair.difference) == ("primary", "candidate", 1.0)
    assert pair.candidate_seconds is not None
    assert pair.candidate_tokens > 0
    (mirrored,) = harness.engines[CANDIDATE].requests
    assert (mirrored["messages"], mirrored["seed"], mirrored["max_tokens"]) == (QUESTION, 1, 4)
    assert mirrored["model"] == "coder.v2-cccccccc"
    assert len(await harness.turns(headers["episode-id"])) == 1
    assert harness.count("hone_shadow_requests_total", experiment=experiment.id, status="scored") == 1
    assert harness.count("hone_shadow_candidate_tokens_total", experiment=experiment.id) == pair.candidate_tokens


async def test_a_stream_is_mirrored_as_a_stream(harness: Harness):
    """Its events are put together, and both sides' tokens are counted alike."""
    experiment = await begin(harness)
    say(harness, "4", "4")
    await ask(harness, FOUR | {"stream": True})
    assert await counts(harness, experiment, 1) == {"scored": 1}
    (pair,) = await pairs(harness, experiment)
    assert (pair.difference, pair.primary_tokens) == (0.0, pair.candidate_tokens)
    assert harness.engines[CANDIDATE].requests[0]["stream"] is True


async def test_a_tool_call_ends_the_pair_and_is_judged_by_its_validity(harness: Harness):
    """A call whose arguments do not fit is worth 0; nothing is called, and the candidate is asked once."""
    experiment = await begin(harness)
    harness.engines[PROMOTED].script.append(ScriptedAnswer(calls=(("add", '{"a": 1}'),)))
    harness.engines[CANDIDATE].script.append(ScriptedAnswer(calls=(("add", '{"b": 1}'),)))
    await ask(harness, {"tools": [TOOL], "max_tokens": 200})
    assert await counts(harness, experiment, 1) == {"scored": 1}
    (pair,) = await pairs(harness, experiment)
    assert (pair.primary_score, pair.candidate_score, pair.judged_by) == (1.0, 0.0, "tool_calls/1")
    assert len(harness.engines[CANDIDATE].requests) == 1


async def test_an_answer_that_no_rule_judges_is_unscored(harness: Harness):
    """Its bad events are there all the same; a request without a limit gets one for the candidate."""
    async with harness.store.transaction() as work:
        deployment = await work.deployments.get(CANDIDATE)
        await work.deployments.put(deployment.model_copy(update={"max_model_len": 2048}))
    await harness.gateway.routing.refresh()
    experiment = await begin(harness)
    say(harness, "hello", "I'm sorry, but I can't help with that.")
    await ask(harness, {"max_tokens": None})
    assert await counts(harness, experiment, 1) == {"unscored": 1}
    (pair,) = await pairs(harness, experiment)
    assert (pair.difference, "refusal" in pair.candidate_events, "refusal" in pair.primary_events) == (
        None,
        True,
        False,
    )
    limit = harness.engines[CANDIDATE].requests[0]["max_tokens"]
    assert 1900 < limit < 2048


async def test_what_is_not_mirrored_is_counted_by_reason(harness: Harness):
    """Every request has exactly one fate, and none of these reaches the candidate."""
    experiment = await begin(harness)
    await ask(harness, key="user")
    await ask(harness, **{"x-hone-train": "false"})
    await ask(harness, {"model": f"{POLICY}@1"})
    await ask(harness, {"model": f"{POLICY}@promoted"})
    await ask(harness, {"n": 2, "temperature": 1.0})
    await ask(harness, {"model": "base"})
    assert await counts(harness, experiment, 5) == {
        "skipped": 5,
        "skipped:no_consent": 2,
        "skipped:pinned": 2,
        "skipped:several_answers": 1,
    }
    assert not any(one["model"].startswith("coder.v2") for one in harness.engines[CANDIDATE].requests)
    assert await pairs(harness, experiment) == []
    assert harness.count("hone_shadow_skipped_total", experiment=experiment.id, reason="pinned") == 2


async def test_an_exposed_conversation_is_not_mirrored(harness: Harness):
    """What is part of an A/B Experiment stays out of the shadow beside it."""
    experiment = await begin(harness)
    body = {"policy": POLICY, "candidate_version": 2, "share": 0.5, "reason": "a test"}
    status, _ = await harness.admin("POST", "/experiments", body)
    assert status == 201
    await ask(harness)
    assert await counts(harness, experiment, 1) == {"skipped": 1, "skipped:exposed": 1}


async def test_a_sample_is_a_share_of_the_turns(harness: Harness):
    """About half at a share of one half; the others are counted."""
    experiment = await begin(harness, sample_share=0.5)
    for number in range(24):
        await ask(harness)
        await counts(harness, experiment, number + 1)
    found = await counts(harness, experiment, 24)
    assert found["unscored"] + found["skipped:not_sampled"] == 24
    assert 2 <= found["unscored"] <= 22
    assert len(harness.engines[CANDIDATE].requests) == found["unscored"]


async def test_a_hanging_candidate_delays_nobody(harness: Harness):
    """Clients get their answers while the candidate never gives one; more than the queue holds is left out."""
    experiment = await begin(harness)
    harness.engines[CANDIDATE].token_delay_seconds = 3600.0
    for _ in range(6):
        await ask(harness)
    assert await counts(harness, experiment, 3) == {"skipped": 3, "skipped:queue_full": 3}
    await harness.gateway.shadow.mirror.stop()
    assert await counts(harness, experiment, 6) == {"skipped": 6, "skipped:queue_full": 3, "skipped:stopped": 3}


async def test_a_candidate_that_takes_too_long_has_failed(harness: Harness, monkeypatch):
    """The time-out is the candidate's error, and counts against it where the client's answer has a score."""
    experiment = await begin(harness)
    limits = harness.gateway.config.shadow.model_copy(update={"timeout_seconds": 0.05})
    monkeypatch.setattr(harness.gateway.shadow.mirror, "_limits", limits)
    harness.engines[CANDIDATE].token_delay_seconds = 3600.0
    say(harness, "4", "4")
    await ask(harness, FOUR)
    assert await counts(harness, experiment, 1) == {"failed": 1}
    (pair,) = await pairs(harness, experiment)
    assert (pair.difference, pair.candidate_events) == (-1.0, ("error",))


@pytest.mark.parametrize("how", ["fails", "dies_in_stream", "is_away"])
async def test_a_crashing_candidate_breaks_no_answer(harness: Harness, how: str):
    """Whatever way it crashes, the client's answer is whole and the failure is the candidate's."""
    experiment = await begin(harness)
    engine = harness.engines[CANDIDATE]
    if how == "fails":
        engine.fail_requests = 1
    elif how == "dies_in_stream":
        engine.die_after_tokens = 1
    else:
        await engine.stop()
    response = await ask(harness, FOUR | {"stream": True})
    assert (await response.text()).endswith("data: [DONE]\n\n")
    assert await counts(harness, experiment, 1) == {"failed": 1}
    (pair,) = await pairs(harness, experiment)
    assert (pair.status, pair.candidate_score, pair.candidate_events) == (ShadowStatus.FAILED, None, ("error",))


async def test_a_store_that_is_away_loses_nothing(harness: Harness, monkeypatch):
    """Clients are answered; pairs and counts wait in the gateway, and are written once the store is back."""
    experiment = await begin(harness)

    def away():
        raise StoreError("the store is away")

    with monkeypatch.context() as patched:
        patched.setattr(harness.store, "transaction", away)
        for _ in range(2):
            await ask(harness, FOUR)
            await ask(harness, {"model": f"{POLICY}@1"})
            with pytest.raises(StoreError):
                await harness.gateway.shadow.ledger.flush()
    assert (await counts(harness, experiment, 4))["scored"] == 2
    assert await counts(harness, experiment, 4) == {"scored": 2, "skipped": 2, "skipped:pinned": 2}


async def test_a_budget_of_requests_ends_the_shadow(harness: Harness):
    """Not one request more is mirrored; the shadow stops by itself, says why, and the gateway lets go of it."""
    experiment = await begin(harness, max_requests=2)
    for _ in range(5):
        await ask(harness)
    found = await counts(harness, experiment, 5)
    assert found["unscored"] == 2
    assert len(harness.engines[CANDIDATE].requests) == 2
    async with harness.store.reading() as work:
        ended = await work.experiments.get(experiment.id)
    assert (ended.status, "2 requests" in (ended.stopped_because or "")) == ("stopped", True)
    await harness.gateway.experiments.live.refresh()
    assert harness.gateway.inference.shadows.running is None


async def test_a_budget_of_tokens_ends_the_shadow(harness: Harness):
    """Once the candidate sampled that many, nothing more is mirrored."""
    experiment = await begin(harness, max_tokens=4)
    await ask(harness)
    await counts(harness, experiment, 1)
    await ask(harness)
    async with harness.store.reading() as work:
        ended = await work.experiments.get(experiment.id)
    assert "4 tokens" in (ended.stopped_because or "")
    assert len(harness.engines[CANDIDATE].requests) == 1


async def test_a_budget_spent_elsewhere_is_seen(harness: Harness):
    """What another gateway stored counts: the next writing reads it."""
    experiment = await begin(harness, max_requests=1)
    async with harness.store.transaction() as work:
        other = ShadowPair(
            id="other",
            experiment_id=experiment.id,
            policy=POLICY,
            turn_id="turn_x",
            episode_id="ep_x",
            status=ShadowStatus.UNSCORED,
            primary_arm="primary",
            candidate_arm="candidate",
        )
        await work.shadow_pairs.add(other)
    await ask(harness, {"model": f"{POLICY}@1"})
    await counts(harness, experiment, 2)
    await ask(harness)
    await counts(harness, experiment, 2)
    assert harness.engines[CANDIDATE].requests == []


async def test_a_busy_replica_and_an_absent_candidate_are_left_alone(harness: Harness):
    """A replica that answers many requests gets no more of them, and a version that nobody holds gets none."""
    experiment = await begin(harness)
    in_flight = harness.gateway.routing.in_flight
    for _ in range(16):
        in_flight.began(CANDIDATE)
    await ask(harness)
    assert await counts(harness, experiment, 1) == {"skipped": 1, "skipped:busy": 1}
    for _ in range(16):
        in_flight.ended(CANDIDATE)
    await harness.deploy(CANDIDATE, versions=())
    await ask(harness)
    assert (await counts(harness, experiment, 2))["skipped:not_held"] == 1
    assert harness.engines[CANDIDATE].requests == []


async def test_another_answer_than_the_primary_arms_is_not_compared(harness: Harness):
    """Once another version is promoted, the shadow's primary answers nobody any more."""
    experiment = await begin(harness)
    async with harness.store.transaction() as work:
        policy = await work.policies.get(POLICY)
        await work.policies.update(policy.model_copy(update={"promoted_version": 2}))
    await harness.gateway.routing.refresh()
    await ask(harness)
    assert await counts(harness, experiment, 1) == {"skipped": 1, "skipped:other_answer": 1}


async def test_a_variant_is_shadowed_beside_the_other(harness: Harness):
    """With the promoted version in both arms the fast replica answers what the standard one was asked."""
    fast = await harness.add_engine("dep_fast", variant=Variant.FAST, versions=(1,))
    experiment = await begin(harness, candidate_version=None, candidate_variant="fast")
    await ask(harness)
    await ask(harness, {"model": f"{POLICY}-fast"})
    found = await counts(harness, experiment, 2)
    assert (found["unscored"], found["skipped:other_answer"]) == (1, 1)
    assert len(fast.requests) == 2


async def test_a_pair_of_a_withdrawn_episode_is_not_stored(harness: Harness):
    """Training withdrawn while the pair waits for its writing: it is dropped."""
    experiment = await begin(harness)
    headers = hone_headers(await ask(harness))
    await harness.turns(headers["episode-id"])
    async with asyncio.timeout(_PATIENCE):
        while not harness.count("hone_shadow_requests_total", experiment=experiment.id, status="unscored"):
            await asyncio.sleep(0.01)
    status, _ = await harness.admin("DELETE", f"/episodes/{headers['episode-id']}")
    assert status in (200, 202, 204)
    await harness.gateway.shadow.ledger.flush()
    assert await pairs(harness, experiment) == []
    assert harness.count("hone_shadow_lost_pairs_total", cause="withdrawn") == 1


async def test_completions_and_other_surfaces_are_mirrored(harness: Harness):
    """Responses, Messages and completions reach the candidate in the engine's own form."""
    experiment = await begin(harness)
    for number, (path, body) in enumerate(
        (
            ("/v1/completions", {"model": POLICY, "prompt": "2 + 2?", "max_tokens": 4}),
            ("/v1/responses", {"model": POLICY, "input": "2 + 2?", "max_output_tokens": 16}),
            ("/v1/messages", {"model": POLICY, "messages": QUESTION, "max_tokens": 16}),
        )
    ):
        response = await harness.post(path, body, "trainer")
        assert response.status == 200, await response.text()
        await counts(harness, experiment, number + 1)
    assert await counts(harness, experiment, 3) == {"unscored": 3}
    assert len(harness.engines[CANDIDATE].requests) == 3


async def test_a_shadow_that_a_release_opened_is_followed(harness: Harness):
    """One that was written to the store and announced, as release runs do, is mirrored without a further call."""
    arms = (Arm(name="primary", version=1, share=1.0), Arm(name="candidate", version=2, share=0.0))
    experiment = Experiment(id="exp_r", policy=POLICY, kind="shadow", arms=arms, salt="s", max_requests=9)
    async with harness.store.transaction() as work:
        await work.experiments.add(experiment)
    await harness.store.events.publish(EXPERIMENTS)
    async with asyncio.timeout(_PATIENCE):
        while harness.gateway.inference.shadows.running is None:
            await asyncio.sleep(0.01)
    await harness.gateway.shadow.ledger.flush()
    await ask(harness, FOUR)
    found = await counts(harness, experiment, 1)
    assert found == {"scored": 1}


async def test_an_unreadable_answer_is_a_failure(harness: Harness, monkeypatch):
    """A candidate that answers with something else than an answer has failed; the client sees its own."""
    experiment = await begin(harness)

    async def nonsense(_request, *, chat):
        return web.json_response({"choices": "none"})

    monkeypatch.setattr(harness.engines[CANDIDATE], "_answer", nonsense)
    await ask(harness, FOUR)
    assert await counts(harness, experiment, 1) == {"failed": 1}


async def test_the_admin_api_begins_lists_reports_and_stops(harness: Harness):
    """Refusals say why; the report has differences, reasons and both sides' figures; a stopped shadow is over."""
    asleep = await harness.mint(live=False)
    assert asleep.serving is not ServingStatus.LIVE

    async def refused(**fields: Any) -> int:
        body = {"policy": POLICY, "candidate_version": 2, "sample_share": 1.0} | fields
        status, _ = await harness.admin("POST", "/shadows", body)
        return status

    assert await refused(candidate_version=asleep.version) == 409
    assert await refused(candidate_version=None) == 400
    assert await refused(policy="absent") == 404
    assert await refused(candidate_version=77) == 404
    assert await refused(sample_share=0.0) == 400
    experiment = await begin(harness)
    assert await refused() == 409
    say(harness, "5", "4")
    await ask(harness, FOUR)
    await ask(harness, key="user")
    await counts(harness, experiment, 2)
    status, listed = await harness.admin("GET", f"/shadows?policy={POLICY}&status=running")
    assert (status, [one["id"] for one in listed]) == (200, [experiment.id])
    status, view = await harness.admin("GET", f"/shadows/{experiment.id}/report")
    report = view["report"]
    assert (status, report["mirrored"], report["skipped"]) == (200, 1, {"no_consent": 1})
    (domain,) = report["domains"]
    assert (domain["domain"], domain["difference"], domain["better"], domain["worse"]) == ("maths", 1.0, 1, 0)
    assert report["candidate"]["mean_tokens"] > 0
    status, stopped = await harness.admin("POST", f"/shadows/{experiment.id}/stop", {"reason": "enough"})
    assert (status, stopped["stopped_because"]) == (200, "enough")
    assert harness.gateway.inference.shadows.running is None
    assert (await harness.admin("POST", f"/shadows/{experiment.id}/stop", {"reason": "again"}))[0] == 409
    assert (await harness.admin("GET", "/shadows/exp_absent"))[0] == 404
    async with harness.store.reading() as work:
        actions = [one.action for one in await work.audit.list()]
    assert {"shadow.begin", "shadow.stop"} <= set(actions)


async def test_odd_names_are_no_internal_errors(fresh_postgres_url, open_store, make_config):
    """Texts that PostgreSQL refuses, and Experiments of another kind, are refused or not found."""
    overrides = LIMITS | {"store.url": fresh_postgres_url}
    async with running_gateway(await open_store(fresh_postgres_url), make_config, overrides) as harness:
        await with_versions(harness)
        for text in ("a\0b", "\ud800", "\uffff"):
            status, _ = await harness.admin("POST", "/shadows", {"policy": text, "candidate_version": 2})
            assert status in (400, 404), text
        body = {"policy": POLICY, "candidate_version": 2, "share": 0.5, "reason": "a test"}
        status, split = await harness.admin("POST", "/experiments", body)
        assert status == 201
        for method, path in (("GET", ""), ("GET", "/report?alpha=0.000001"), ("POST", "/stop")):
            reason = {"reason": "x"} if method == "POST" else None
            assert (await harness.admin(method, f"/shadows/{split['id']}{path}", reason))[0] == 404
        experiment = await begin(harness)
        await ask(harness, FOUR)
        await counts(harness, experiment, 1)
        status, view = await harness.admin("GET", f"/shadows/{experiment.id}/report?alpha=0.000001")
        assert (status, view["report"]["skipped"]) == (200, {"exposed": 1})
