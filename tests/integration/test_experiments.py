"""A/B Experiments on live traffic: who gets which arm, what the headers and the record say, and what comes of it."""

import asyncio

import pytest

from core.arm_outcome import ArmOutcome
from core.deployment import DeploymentStatus
from core.errors import Conflict
from core.experiment import Arm, Experiment
from core.release import ReleaseStatus
from core.task import Domain
from core.variant import Variant
from gateway.experiments.exposure import key_digest
from gateway.release_run.promotion_step import CONTROLLER
from tests import nouns
from tests.experiments_harness import CHAT, NEARLY_ALL, PATH, ask, ask_as, begin, outcomes, with_candidate
from tests.gateway_harness import POLICY, QUESTION, Harness, hone_headers, running_gateway
from tests.scripted_engine import ScriptedEngine

QUIET = {"experiments.watch_seconds": 0.0}


@pytest.fixture
async def harness(fresh_sqlite_url, open_store, make_config):
    """A gateway on SQLite whose watcher looks only when a test makes it."""
    async with running_gateway(await open_store(fresh_sqlite_url), make_config, QUIET) as harness:
        yield harness


async def test_without_an_experiment_nothing_is_said(harness: Harness):
    """No header, and the service holds nothing that a request could be exposed to."""
    await with_candidate(harness)
    headers = await ask(harness)
    assert headers.keys().isdisjoint({"experiment", "arm"})
    assert harness.gateway.inference.experiments.running is None


async def test_conversations_are_split_and_stay_on_their_arm(harness: Harness):
    """About half get the candidate's version, each continued conversation keeps its arm, and the record agrees."""
    version = await with_candidate(harness)
    experiment = await begin(harness, version)
    seen = {"promoted": 0, "candidate": 0}
    for _ in range(40):
        headers = await ask(harness)
        assert headers["experiment"] == experiment.id
        assert headers["policy-version"] == str(version if headers["arm"] == "candidate" else 0)
        seen[headers["arm"]] += 1
        again = await ask(harness, **{"x-hone-episode-id": headers["episode-id"]})
        assert (again["arm"], again["policy-version"]) == (headers["arm"], headers["policy-version"])
    assert min(seen.values()) >= 5
    found = await outcomes(harness, experiment.id)
    assert {one.requests for one in found.values()} == {2}
    async with harness.store.reading() as work:
        assert await work.arm_outcomes.counts(experiment.id) == seen
        for one in found.values():
            assignment = await work.assignments.get(experiment.id, one.key)
            assert (assignment.arm, assignment.reason) == (one.arm, "hash")
            assert assignment.turn_id == f"turn_{one.episode_id.partition('_')[2]}"
    assert harness.count("hone_experiment_requests_total", experiment=experiment.id, arm="candidate") == (
        2 * seen["candidate"]
    )


async def test_pinned_names_and_other_names_are_left_alone(harness: Harness):
    """``coder@N``, ``coder@promoted`` and the Base's own name mean what they say."""
    version = await with_candidate(harness)
    await begin(harness, version, share=NEARLY_ALL)
    for name, number in (
        (f"{POLICY}@0", "0"),
        (f"{POLICY}@promoted", "0"),
        (f"{POLICY}@{version}", str(version)),
        ("base", "0"),
    ):
        headers = await ask(harness, {"model": name})
        assert headers["policy-version"] == number
        assert "arm" not in headers


@pytest.mark.parametrize(
    ("body", "headers"),
    [({"user": "u{}"}, {}), ({"safety_identifier": "u{}"}, {}), ({}, {"x-hone-user": "u{}"})],
)
async def test_a_user_keeps_an_arm_over_conversations(harness: Harness, body, headers):
    """However the user is named, the arm is the user's; different users get different ones."""
    version = await with_candidate(harness)
    experiment = await begin(harness, version, key="user")
    arms = {}
    for number in range(24):
        named = {key: text.format(number) for key, text in body.items()}
        said = {key: text.format(number) for key, text in headers.items()}
        both = {(await ask(harness, named, **said))["arm"] for _ in range(2)}
        assert len(both) == 1
        arms[number] = both.pop()
    assert set(arms.values()) == {"promoted", "candidate"}
    found = await outcomes(harness, experiment.id)
    assert len({one.key for one in found.values()}) == 24
    assert not any("u1" in one.key for one in found.values())


def test_a_users_digest_hangs_on_the_secret():
    """Who knows the user's name and not the secret computes another digest; however long the secret is."""
    digests = [key_digest(secret, "ten_a", "user", "ann") for secret in (b"", b"one", b"two", b"x" * 200)]
    assert len(set(digests)) == 4
    assert digests[1] == key_digest(b"one", "ten_a", "user", "ann") != key_digest(b"one", "ten_b", "user", "ann")


async def test_one_api_key_is_one_arm(harness: Harness):
    """With the API key as what sticks, every conversation of a key has the same arm."""
    version = await with_candidate(harness)
    await begin(harness, version, key="api_key")
    assert len({(await ask(harness))["arm"] for _ in range(8)}) == 1


async def test_a_conversation_older_than_the_experiment_stays_out(harness: Harness):
    """It keeps its version, is told nothing, and leaves no outcome."""
    version = await with_candidate(harness)
    before = await ask(harness)
    experiment = await begin(harness, version, share=NEARLY_ALL)
    after = await ask(harness, **{"x-hone-episode-id": before["episode-id"]})
    assert after["policy-version"] == "0"
    assert "arm" not in after
    assert await outcomes(harness, experiment.id) == {}


async def test_a_ramp_moves_on_and_conversations_keep_their_version(harness: Harness):
    """At 100% every new conversation gets the candidate; one that began on the promoted version ends there."""
    version = await with_candidate(harness)
    experiment = await begin(harness, version)
    old = await ask_as(harness, "promoted")
    status, moved = await harness.admin("POST", f"/experiments/{experiment.id}/share", {"share": 1.0})
    assert (status, moved["stage"], moved["earlier_shares"]) == (200, 1, [0.5])
    assert {(await ask(harness))["arm"] for _ in range(6)} == {"candidate"}
    again = await ask(harness, **{"x-hone-episode-id": old["episode-id"]})
    assert (again["arm"], again["policy-version"]) == ("promoted", "0")
    found = await outcomes(harness, experiment.id)
    assert not any(one.mixed for one in found.values())
    assert {one.stage for one in found.values()} == {0, 1}
    status, refused = await harness.admin("POST", f"/experiments/{experiment.id}/share", {"share": 0.2})
    assert (status, refused["error"]["param"]) == (400, "share")


async def test_a_candidate_that_nobody_holds_falls_back_and_says_so(harness: Harness):
    """The promoted version answers, headers and metrics say it, and the Episode is left out of the comparison."""
    version = await with_candidate(harness)
    experiment = await begin(harness, version, share=NEARLY_ALL)
    await harness.deploy("dep_a", versions=())
    headers = await ask(harness)
    assert (headers["arm"], headers["arm-assigned"], headers["policy-version"]) == ("promoted", "candidate", "0")
    await harness.deploy("dep_a", versions=(version,))
    again = await ask(harness, **{"x-hone-episode-id": headers["episode-id"]})
    assert (again["arm"], again["policy-version"]) == ("promoted", "0")
    found = (await outcomes(harness, experiment.id))[headers["episode-id"]]
    assert (found.arm, found.mixed, found.events["fallback"]) == ("candidate", True, 2)
    labels = {"experiment": experiment.id, "arm": "candidate", "cause": "not_held"}
    assert harness.count("hone_experiment_fallbacks_total", **labels) == 1


async def test_a_broken_candidate_breaks_no_answer(harness: Harness):
    """A first request whose candidate does not answer is answered by the promoted version; the failure is counted."""
    version = await with_candidate(harness)
    experiment = await begin(harness, version, share=NEARLY_ALL)
    await harness.add_engine("dep_b")
    await harness.engines["dep_a"].stop()
    headers = await ask(harness)
    assert (headers["arm"], headers["arm-assigned"]) == ("promoted", "candidate")
    found = (await outcomes(harness, experiment.id))[headers["episode-id"]]
    assert (found.mixed, found.events["error"], found.events["fallback"]) == (True, 1, 1)
    labels = {"experiment": experiment.id, "arm": "candidate"}
    assert harness.count("hone_experiment_failed_requests_total", **labels) == 1


async def test_variants_can_be_compared(harness: Harness):
    """With the promoted version in both arms, the arms differ in what decodes."""
    await harness.add_engine()
    await harness.add_engine("dep_fast", variant=Variant.FAST)
    experiment = await begin(harness, None, candidate_variant="fast")
    for arm, variant in (("promoted", "standard"), ("candidate", "fast")):
        headers = await ask_as(harness, arm)
        assert headers["variant"] == variant
        again = await ask(harness, **{"x-hone-episode-id": headers["episode-id"]})
        assert (again["arm"], again["variant"]) == (arm, variant)
    assert not any(one.mixed for one in (await outcomes(harness, experiment.id)).values())
    assert "arm" not in await ask(harness, {"model": f"{POLICY}-fast"})


async def test_streams_and_unattended_answers_are_exposed_alike(harness: Harness):
    """A stream says its arm in its head, and is counted."""
    version = await with_candidate(harness)
    experiment = await begin(harness, version, share=NEARLY_ALL)
    response = await harness.post(PATH, CHAT | {"stream": True})
    headers = hone_headers(response)
    assert (headers["arm"], headers["policy-version"]) == ("candidate", str(version))
    found = (await outcomes(harness, experiment.id))[headers["episode-id"]]
    assert found.requests == 1
    assert found.first_token_seconds is not None
    assert found.output_tokens > 0


async def test_feedback_reaches_the_outcome_however_late(harness: Harness):
    """At once, changed later, and after the Experiment was stopped; a rating of another scale says nothing."""
    version = await with_candidate(harness)
    async with harness.store.transaction() as work:
        await work.domains.put(Domain(name="maths", kind="text", description="sums"))
    experiment = await begin(harness, version)
    headers = await ask(harness, {"metadata": {"hone_domain": "maths"}})
    episode_id = headers["episode-id"]
    first = await outcomes(harness, experiment.id)
    assert (first[episode_id].reward, first[episode_id].domain) == (None, "maths")

    async def say(name: str, value: object) -> float | None:
        response = await harness.post("/v1/feedback", {"episode_id": episode_id, "name": name, "value": value})
        assert response.status == 201
        return (await outcomes(harness, experiment.id))[episode_id].reward

    assert await say("stars", 5) is None
    assert await say("thumbs_up", False) == 0.0
    assert await say("thumbs_up", True) == 1.0
    status, _ = await harness.admin("POST", f"/experiments/{experiment.id}/stop", {"reason": "done"})
    assert status == 200
    assert await say("score", 0.5) == 0.75
    assert (await outcomes(harness, experiment.id))[episode_id].updated_at > first[episode_id].updated_at


async def test_what_a_client_calls_a_domain_is_kept_only_where_there_is_one(harness: Harness):
    """Text of its own and another Tenant's private Domain do not get into the outcome."""
    version = await with_candidate(harness)
    async with harness.store.transaction() as work:
        await work.domains.put(Domain(name="tenant/ten_other/x", kind="text", description="private"))
    experiment = await begin(harness, version)
    for said in ("ann@example.org, her tax", "tenant/ten_other/x"):
        await ask(harness, {"metadata": {"hone_domain": said}})
    found = await outcomes(harness, experiment.id)
    assert [one.domain for one in found.values()] == [None, None]


async def test_who_gives_up_on_a_silent_candidate_is_counted(harness: Harness):
    """A client that leaves before the answer began is a request of its arm, and slow where it waited too long."""
    version = await with_candidate(harness)
    experiment = await begin(harness, version, share=NEARLY_ALL, guardrails={"slow_seconds": 0.000001})
    engine = ScriptedEngine(forever=True)
    await engine.start()
    await harness.engines["dep_a"].stop()
    harness.engines["dep_a"] = engine
    await harness.deploy("dep_a", versions=(version,))
    for headers in ({}, {"idempotency-key": "once"}):
        engine.begun.clear()
        waiting = asyncio.ensure_future(harness.post(PATH, CHAT, **headers))
        await engine.begun.wait()
        waiting.cancel()
        await asyncio.wait([waiting])
        await engine.left.wait()
        engine.left.clear()
    found: dict[str, ArmOutcome] = {}
    async with asyncio.timeout(10):
        while len(found) < 2:
            await asyncio.sleep(0.02)
            found = await outcomes(harness, experiment.id)
    assert [(one.arm, one.events, one.mixed) for one in found.values()] == [("candidate", {"slow": 1}, False)] * 2
    engine.forever = False


async def test_without_content_the_events_of_an_answer_are_counted_still(harness: Harness):
    """Length, refusals and bad calls come without consent as with it, whole and as a stream; no text is kept."""
    version = await with_candidate(harness)
    experiment = await begin(harness, version, share=NEARLY_ALL)
    engine = ScriptedEngine(finish_reason="length")
    await engine.start()
    await harness.engines["dep_a"].stop()
    harness.engines["dep_a"] = engine
    await harness.deploy("dep_a", versions=(version,))
    cut = [(await ask(harness, {"stream": stream}))["episode-id"] for stream in (False, True)]
    engine.finish_reason = "stop"
    engine.message = {"role": "assistant", "content": "I cannot help with that."}
    engine.deltas = [{"content": "I cannot "}, {"content": "help with that."}]
    refused = [(await ask(harness, {"stream": stream}))["episode-id"] for stream in (False, True)]
    call = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": "{not json"}}
    engine.message = {"role": "assistant", "content": None, "tool_calls": [call]}
    engine.deltas = [{"tool_calls": [{"index": 0, **call}]}]
    called = [(await ask(harness, {"stream": stream}))["episode-id"] for stream in (False, True)]
    found = await outcomes(harness, experiment.id)
    for episodes, event in ((cut, "long"), (refused, "refusal"), (called, "invalid_tool_call")):
        assert [found[one].events for one in episodes] == [{event: 1}] * 2
    turns = await harness.turns(refused[0])
    assert [(one.content_kept, one.response, one.finish_reason) for one in turns] == [(False, {}, "stop")]


async def test_a_clients_verdict_reaches_the_outcome(harness: Harness):
    """Closing an Episode with a reward is a reward of its arm."""
    version = await with_candidate(harness)
    experiment = await begin(harness, version)
    headers = await ask(harness)
    await outcomes(harness, experiment.id)
    response = await harness.post(f"/v1/episodes/{headers['episode-id']}/close", {"reward": 0.25})
    assert response.status == 200, await response.text()
    assert (await outcomes(harness, experiment.id))[headers["episode-id"]].reward == 0.25


async def test_what_a_user_was_like_before_is_known_in_the_next_experiment(harness: Harness):
    """The mean reward of earlier Experiments becomes the covariate."""
    version = await with_candidate(harness)
    first = await begin(harness, version, key="user")
    headers = await ask(harness, {"user": "ann"})
    await outcomes(harness, first.id)
    await harness.post("/v1/feedback", {"episode_id": headers["episode-id"], "name": "score", "value": 0.75})
    await harness.admin("POST", f"/experiments/{first.id}/stop", {"reason": "done"})
    second = await begin(harness, version, key="user")
    headers = await ask(harness, {"user": "ann"})
    assert (await outcomes(harness, second.id))[headers["episode-id"]].covariate == 0.75


async def test_experiments_need_live_versions_and_one_at_a_time(harness: Harness):
    """A version that is not live, a second split, equal arms, an untested candidate without a reason: refused."""
    version = await with_candidate(harness)
    asleep = await harness.mint(live=False)

    async def refused(**fields: object) -> tuple[int, str]:
        body = {"policy": POLICY, "candidate_version": version, "share": 0.5} | fields
        status, answer = await harness.admin("POST", "/experiments", body)
        return status, answer["error"]["message"]

    assert (await refused())[0] == 409
    assert "not live" in (await refused(candidate_version=asleep.version, reason="r"))[1]
    assert (await refused(candidate_version=None))[0] == 400
    assert (await refused(policy="absent"))[0] == 404
    experiment = await begin(harness, version)
    status, message = await refused(reason="r")
    assert (status, experiment.id in message) == (409, True)
    async with harness.store.reading() as work:
        release = await work.releases.get(POLICY, version)
    assert (release.status, release.missing) == (ReleaseStatus.RAMPING, ("evaluation", "shadow"))


async def test_what_is_missing_before_a_ramp_needs_a_reason_on_record(harness: Harness):
    """An evaluated candidate that was not shadowed, as its release policy asks, gets traffic only with a reason."""
    version = await with_candidate(harness)
    async with harness.store.transaction() as work:
        evidence = {"evaluation": {"proven_better": True}}
        await work.releases.add(
            nouns.release(policy=POLICY, version=version, evidence=evidence, status=ReleaseStatus.EVALUATED)
        )
    body = {"policy": POLICY, "candidate_version": version, "share": 0.5}
    status, answer = await harness.admin("POST", "/experiments", body)
    assert (status, "shadow: no evidence" in answer["error"]["message"]) == (409, True)
    status, answer = await harness.admin("POST", "/experiments", body | {"share": 1.0, "reason": "now"})
    assert (status, answer["error"]["param"]) == (400, "share")
    await begin(harness, version)
    async with harness.store.reading() as work:
        release = await work.releases.get(POLICY, version)
    assert (release.status, release.missing, release.reason) == (ReleaseStatus.RAMPING, ("shadow",), "a test")


async def test_an_experiment_compares_with_what_is_promoted_when_it_begins(harness: Harness):
    """Arms that were chosen before a promotion are refused, and so is a version whose files are gone."""
    version = await with_candidate(harness)
    arms = (Arm(name="promoted", version=version, share=0.5), Arm(name="candidate", version=0, share=0.5))
    stale = Experiment(id="exp_stale", policy=POLICY, kind="ab", arms=arms, salt="s")
    with pytest.raises(Conflict, match="promoted by now"):
        await harness.gateway.experiments.desk.begin(CONTROLLER, stale, reason="a test")
    async with harness.store.transaction() as work:
        gone = await work.versions.get(POLICY, version, lock=True)
        await work.versions.update(gone.model_copy(update={"files_removed_at": 1.0}))
    body = {"policy": POLICY, "candidate_version": version, "reason": "a test"}
    status, answer = await harness.admin("POST", "/experiments", body)
    assert (status, "deleted" in answer["error"]["message"]) == (409, True)


async def test_a_version_beyond_all_numbers_is_a_clients_mistake(harness: Harness):
    """What no database column holds is refused by name."""
    body = {"policy": POLICY, "candidate_version": 99999999999999999999}
    assert (await harness.admin("POST", "/experiments", body))[0] == 400


async def test_the_admin_api_shows_lists_and_reports(harness: Harness):
    """What runs, its counts and its evidence; a stopped one says why, and traffic is whole again."""
    version = await with_candidate(harness)
    experiment = await begin(harness, version, share=0.5)
    for _ in range(6):
        await ask(harness)
    found = await outcomes(harness, experiment.id)
    status, shown = await harness.admin("GET", f"/experiments/{experiment.id}")
    assert (status, sum(shown["episodes"].values())) == (200, len(found))
    status, report = await harness.admin("GET", f"/experiments/{experiment.id}/report")
    assert (status, report["against"], report["evidence"]["sample_ratio"]["broken"]) == (200, [], False)
    status, listed = await harness.admin("GET", f"/experiments?policy={POLICY}&status=running")
    assert [one["id"] for one in listed] == [experiment.id]
    status, stopped = await harness.admin("POST", f"/experiments/{experiment.id}/stop", {"reason": "enough"})
    assert (status, stopped["stopped_because"]) == (200, "enough")
    assert {(await ask(harness))["policy-version"] for _ in range(4)} == {"0"}
    status, _ = await harness.admin("POST", f"/experiments/{experiment.id}/stop", {"reason": "again"})
    assert status == 409
    status, _ = await harness.admin("GET", "/experiments/exp_absent")
    assert status == 404


async def test_an_experiment_whose_control_moved_ends_by_itself(harness: Harness):
    """Once another version is promoted the split compares with nothing: requests are left alone, and it is ended."""
    version = await with_candidate(harness)
    experiment = await begin(harness, version)
    async with harness.store.transaction() as work:
        policy = await work.policies.get(POLICY)
        await work.policies.update(policy.model_copy(update={"promoted_version": version}))
    await harness.gateway.routing.refresh()
    headers = await ask(harness)
    assert (headers["policy-version"], "arm" in headers) == (str(version), False)
    await harness.gateway.experiments.watcher.look()
    async with harness.store.reading() as work:
        ended = await work.experiments.get(experiment.id)
    assert (ended.status, "promoted meanwhile" in (ended.stopped_because or "")) == ("stopped", True)


async def test_a_replica_that_breaks_down_with_the_candidate_ends_the_ramp(harness: Harness):
    """Ready with the candidate at one look, unhealthy at the next: traffic goes back and the candidate is frozen."""
    version = await with_candidate(harness)
    experiment = await begin(harness, version)
    await harness.gateway.experiments.watcher.look()
    async with harness.store.transaction() as work:
        deployment = await work.deployments.get("dep_a")
        broken = {"status": DeploymentStatus.UNHEALTHY, "status_reason": "exit 139", "loaded": ()}
        await work.deployments.put(deployment.model_copy(update=broken))
    await harness.gateway.experiments.watcher.look()
    async with harness.store.reading() as work:
        ended = await work.experiments.get(experiment.id)
        release = await work.releases.get(POLICY, version)
        actions = [one.action for one in await work.audit.list()]
    assert (ended.status, "exit 139" in (ended.stopped_because or "")) == ("stopped", True)
    assert release.status is ReleaseStatus.ROLLED_BACK
    assert release.evidence["ramp"]["passed"] is False
    assert "experiment.roll_back" in actions


async def test_messages_continue_with_their_arm(harness: Harness):
    """A conversation that is recognised by its messages alone keeps its arm as well."""
    version = await with_candidate(harness)
    await begin(harness, version)
    for arm in ("promoted", "candidate"):
        for _ in range(50):
            response = await harness.post(PATH, CHAT, "trainer")
            headers = hone_headers(response)
            if headers["arm"] == arm:
                break
        answer = (await response.json())["choices"][0]["message"]
        messages = [*QUESTION, answer, {"role": "user", "content": "and 3 + 3?"}]
        again = hone_headers(await harness.post(PATH, CHAT | {"messages": messages}, "trainer"))
        assert (again["episode-id"], again["arm"]) == (headers["episode-id"], arm)


async def test_a_request_that_fails_for_good_is_an_error_of_its_arm(harness: Harness):
    """With every replica away the client gets the error, its Episode an outcome, and the watcher goes on."""
    version = await with_candidate(harness)
    experiment = await begin(harness, version, share=0.5)
    await harness.engine.stop()
    response = await harness.post(PATH, CHAT)
    assert response.status >= 500
    found = await outcomes(harness, experiment.id)
    assert found
    assert all("error" in one.events for one in found.values())
    assert await harness.gateway.experiments.watcher.look() == []


async def test_a_verdict_of_a_worker_reaches_the_outcome(harness: Harness):
    """A Reward that nobody announced is found by the watcher's looks."""
    version = await with_candidate(harness)
    experiment = await begin(harness, version)
    headers = await ask(harness)
    await outcomes(harness, experiment.id)
    async with harness.store.transaction() as work:
        episode = await work.episodes.get(headers["episode-id"], lock=True)
        await work.episodes.update(episode.model_copy(update={"reward": 0.5}))
    for _ in range(2):
        await harness.gateway.experiments.watcher.look()
    assert (await outcomes(harness, experiment.id))[headers["episode-id"]].reward == 0.5


async def test_every_surface_is_exposed(harness: Harness):
    """Responses and Messages split by user as chat does, by header and by their own fields."""
    version = await with_candidate(harness)
    experiment = await begin(harness, version, key="user")
    chat = await ask(harness, {"user": "ann"})
    asked = {"model": POLICY, "input": "2 + 2?", "max_output_tokens": 16}
    told = {"model": POLICY, "messages": QUESTION, "max_tokens": 16}
    for path, body, headers in (
        ("/v1/responses", asked | {"user": "ann"}, {}),
        ("/v1/responses", asked, {"x-hone-user": "ann"}),
        ("/v1/messages", told | {"metadata": {"user_id": "ann"}}, {}),
        ("/v1/messages", told, {"x-hone-user": "ann"}),
    ):
        response = await harness.post(path, body, **headers)
        assert response.status == 200, await response.text()
        assert hone_headers(response).get("arm", chat["arm"]) == chat["arm"]
    found = await outcomes(harness, experiment.id)
    assert len(found) == 5
    assert len({one.key for one in found.values()}) == 1
