"""Sampling one Episode, from the first message to its Reward."""

import json

import pytest
from prometheus_client import CollectorRegistry

from core.config.gateway import ContextBudget, ContextSection
from core.episode import Episode, EpisodeStatus, StopReason
from core.errors import (
    EngineError,
    EngineUnavailable,
    RequestError,
    SandboxError,
    StoreError,
    TaskError,
    VerifierError,
)
from core.job import Job
from core.task import Limits, ToolSpec, VerifierSpec, make_task
from sandbox.metrics import WorkerMetrics
from sandbox.policy_client import PolicyClient
from sandbox.rollout import EpisodeRunner, RolloutRequest, episode_id
from tests.sandbox_fakes import DirectRuntime, StubAnswer, StubGateway

CALL = '{"name":"python","arguments":{"code":"print(6)"}}'


def task_of(*, max_turns=1, verifiers=(("tool_output", {"expected": "6"}),), tools=("python",), **fields):
    """A Task of one question."""
    return make_task(
        domain="d",
        split="train",
        messages=({"role": "user", "content": "six?"},),
        tools=tuple(ToolSpec(name=name) for name in tools),
        verifiers=tuple(VerifierSpec(name=name, options=options) for name, options in verifiers),
        limits=Limits(max_turns=max_turns, **fields.pop("limits", {})),
        **fields,
    )


def job_of(token=1, attempts=1):
    """A leased job."""
    return Job(id="job_01hzzzzzzzzzzzzzzzzzzzzzzz", kind="rollout", payload={}, token=token, attempts=attempts)


class Bench:
    """A store, a scripted gateway, a runtime, and a runner on top of them."""

    def __init__(self, store):
        self.store = store
        self.runtime = DirectRuntime()
        self.answers = []
        self.gateway = StubGateway(self._answer, store=store)
        self.metrics = WorkerMetrics(CollectorRegistry())
        self.budgets = {"small": ContextBudget(tokens=256, keep_results=1, least_characters=20)}

    def _answer(self, body, number):
        answer = self.answers[min(number, len(self.answers) - 1)]
        return answer(body) if callable(answer) else answer

    async def start(self):
        await self.gateway.start()
        self.client = PolicyClient(gateway_url=self.gateway.url, api_key="k", timeout_seconds=20, max_retries=2)
        self.runner = EpisodeRunner(
            store=self.store,
            runtime=self.runtime,
            policy=self.client,
            tenant_id="ten_1",
            metrics=self.metrics,
            concurrency=4,
            durable_seconds=1.0,
            context=ContextSection(budgets=self.budgets),
        )

    async def stop(self):
        await self.client.close()
        await self.gateway.stop()

    async def run(self, task, *answers, job=None, policy="coder", **request):
        """The Episode of one attempt at ``task`` that the policy answers so."""
        self.answers = [StubAnswer(text=answer) if isinstance(answer, str) else answer for answer in answers]
        async with self.store.transaction() as tx:
            await tx.tasks.add_many([task])
        payload = RolloutRequest(task_id=task.id, policy=policy, version=3, **request)
        return await self.runner.run_episode(payload, job=job or job_of())

    async def stored(self, token=1):
        """The Episode as stored, with its Verdicts."""
        async with self.store.reading() as tx:
            identity = episode_id(job_of().id, "", token)
            return await tx.episodes.get(identity), await tx.verdicts.for_episode(identity)


@pytest.fixture
async def bench(fresh_sqlite_url, open_store):
    """Everything around a runner."""
    bench = Bench(await open_store(fresh_sqlite_url))
    await bench.start()
    yield bench
    await bench.stop()


async def test_a_tool_call_is_run_judged_and_rewarded(bench):
    """One Turn with a call: it runs in a box, its output is judged, everything is stored together."""
    episode = await bench.run(task_of(), CALL, group_id="grp_1", attempt=2, run_id="run_1")
    stored, verdicts = await bench.stored()
    assert stored == episode
    assert (episode.status, episode.stop_reason) == (EpisodeStatus.SCORED, StopReason.ANSWERED)
    assert (episode.reward, episode.success, episode.trainable) == (1.0, True, True)
    assert (episode.policy, episode.version, episode.group_id, episode.tenant_id) == ("coder", 3, "grp_1", "ten_1")
    assert episode.tool_results[0].output == "6" and len(verdicts) == 1
    async with bench.store.reading() as tx:
        assert (await tx.rewards.get(episode.id)).value == 1.0
        assert [turn.id for turn in await tx.turns.for_episode(episode.id)] == list(episode.turn_ids)
    (call,) = bench.gateway.calls
    assert call.body["model"] == "coder@3" and call.headers["x-hone-episode-id"] == episode.id
    assert "x-hone-train" not in call.headers and call.headers["authorization"] == "Bearer k"


async def test_evaluation_episodes_do_not_train_and_fast_is_asked_for_by_name(bench):
    """Purpose evaluate narrows consent; the variant is in the model's name."""
    episode = await bench.run(task_of(), CALL, purpose="evaluate", variant="fast")
    assert not episode.trainable
    (call,) = bench.gateway.calls
    assert call.headers["x-hone-train"] == "false" and call.body["model"] == "coder-fast@3"


async def test_tools_and_policy_take_turns_until_an_answer(bench):
    """With more Turns the output goes back as a user message, files persist, and a plain answer ends it."""
    write = json.dumps({"name": "python", "arguments": {"code": "open('a','w').write('x'); print(5)"}})
    read = json.dumps({"name": "python", "arguments": {"code": "print(open('a').read())"}})
    task = task_of(max_turns=5, verifiers=(("exact", {"expected": "done"}),))
    episode = await bench.run(task, write, read, "done")
    assert episode.success and episode.stop_reason is StopReason.ANSWERED and len(episode.turn_ids) == 3
    assert [result.output for result in episode.tool_results] == ["5", "x"]
    assert bench.runtime.boxes == 1
    last = bench.gateway.calls[-1].body["messages"]
    assert [message["role"] for message in last] == ["user", "assistant", "user", "assistant", "user"]
    assert last[2]["content"] == "Tool output:\n5"
    seeds = {call.body["seed"] for call in bench.gateway.calls}
    assert len(seeds) == 3


async def test_older_tool_results_leave_a_prompt_that_outgrows_its_budget(bench):
    """The policy is shown a line in their place, the gateway is told which Turn was compacted, and judges see all."""
    talk = json.dumps({"name": "python", "arguments": {"code": "print('x' * 500)"}})
    task = task_of(max_turns=5, verifiers=(("exact", {"expected": "done"}),))
    episode = await bench.run(task, talk, talk, talk, "done", policy="small")
    shown = [[message["content"] for message in call.body["messages"]] for call in bench.gateway.calls]
    stub = "Tool output:\n[tool result left out to save context: 500 characters]"
    long = f"Tool output:\n{'x' * 500}"
    assert [[text for text in prompt if text.startswith("Tool")] for prompt in shown] == [
        [], [long], [stub, long], [stub, stub, long],
    ]  # fmt: skip
    named = [call.headers.get("x-hone-compacts") for call in bench.gateway.calls]
    assert named == [None, None, *episode.turn_ids[1:3]]
    assert [result.output for result in episode.tool_results] == ["x" * 500] * 3
    assert episode.success


async def test_calls_that_the_engine_parsed_are_answered_by_tool_messages(bench):
    """Native calls get one tool message each, under their ids; native Tasks announce their tools."""
    calls = tuple(
        {"id": f"c{n}", "type": "function", "function": {"name": "python", "arguments": f'{{"code":"print({n})"}}'}}
        for n in range(2)
    )
    task = task_of(max_turns=3, verifiers=(("exact", {"expected": "ok"}),), metadata={"native_tools": True})
    await bench.run(task, StubAnswer(text=None, tool_calls=calls, finish_reason="tool_calls"), "ok")
    first, second = bench.gateway.calls
    assert first.body["tools"][0]["function"]["name"] == "python"
    assert [(m["role"], m.get("tool_call_id"), m["content"]) for m in second.body["messages"][-2:]] == [
        ("tool", "c0", "0"),
        ("tool", "c1", "1"),
    ]


@pytest.mark.parametrize(
    ("answers", "max_turns", "stop"),
    [
        ((CALL, CALL), 2, StopReason.MAX_TURNS),
        ((StubAnswer(text=CALL, finish_reason="length"),), 1, StopReason.TRUNCATED),
        (("no call",), 3, StopReason.ANSWERED),
        (
            (CALL, StubAnswer(status=400, error={"code": "context_length_exceeded", "message": "too long"})),
            3,
            StopReason.TRUNCATED,
        ),
    ],
)
async def test_each_way_to_stop_is_told_apart(bench, answers, max_turns, stop):
    """Out of turns, cut off, answered, out of context: all are judged, none is infrastructure."""
    episode = await bench.run(task_of(max_turns=max_turns), *answers)
    assert (episode.status, episode.stop_reason) == (EpisodeStatus.SCORED, stop)


async def test_tool_time_is_bounded_and_running_out_is_a_zero(bench):
    """When tools use up the wall time of the Episode, it is the policy's failure."""
    task = task_of(max_turns=4, limits={"wall_seconds": 0.001})
    episode = await bench.run(task, CALL)
    assert (episode.stop_reason, episode.reward, episode.success) == (StopReason.TIMED_OUT, 0.0, False)


@pytest.mark.parametrize(
    "text",
    [
        '{"name":"rm","arguments":{}}',
        '{"name":"python","arguments":{"code":5}}',
        '{"name":"python","arguments":"x"}',
    ],
)
async def test_a_malformed_call_is_told_to_the_policy(bench, text):
    """A call that cannot run gives a result that says so, without a crash and without a success."""
    episode = await bench.run(task_of(), text)
    assert episode.tool_results[0].outcome == "malformed_call" and episode.success is False


async def test_files_that_a_verifier_wants_are_read_from_the_box(bench):
    """Code that the policy wrote into a file is judged as that file is at the end."""
    code = "open('s.py','w').write('def f(x): return x + 1')"
    task = task_of(
        verifiers=(("unit_tests", {"function": "f", "file": "s.py", "tests": [{"args": [1], "expected": 2}]}),)
    )
    written = json.dumps({"name": "python", "arguments": {"code": code}})
    assert (await bench.run(task, written)).success


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (StubAnswer(status=500, error={"message": "boom"}), EngineError),
        (StubAnswer(status=503, error={"message": "no replica"}), EngineUnavailable),
        (StubAnswer(text=CALL, version=2), EngineError),
        (StubAnswer(text=CALL, durable=False), StoreError),
        (StubAnswer(status=400, error={"message": "bad"}), RequestError),
        (StubAnswer(status=400, error={"code": "context_length_exceeded"}), TaskError),
    ],
)
async def test_what_the_gateway_spoils_is_invalid_and_never_rewarded(bench, answer, error):
    """Engine failures, the wrong version, and Turns that never became durable void the Episode."""
    with pytest.raises(error):
        await bench.run(task_of(), answer)
    stored, verdicts = await bench.stored()
    assert stored.status is EpisodeStatus.INVALID and stored.reward is None and stored.error
    assert stored.stop_reason is StopReason.INFRASTRUCTURE and verdicts == []


async def test_a_short_refusal_is_retried_with_the_same_key(bench):
    """429 and 503 are retried under one idempotency key before they count."""
    bench_answers = [StubAnswer(status=429), StubAnswer(status=503), StubAnswer(text=CALL)]
    episode = await bench.run(task_of(), *bench_answers)
    assert episode.success and len(episode.turn_ids) == 1
    assert len({call.headers["idempotency-key"] for call in bench.gateway.calls}) == 1


async def test_a_broken_sandbox_is_invalid(bench):
    """A tool that the sandbox could not run voids the Episode, and its Turn is kept on record."""
    bench.runtime.broken = True
    with pytest.raises(SandboxError):
        await bench.run(task_of(), CALL)
    stored, _ = await bench.stored()
    assert stored.status is EpisodeStatus.INVALID and len(stored.turn_ids) == 1


async def test_a_crashed_verifier_voids_the_episode_and_keeps_its_evidence(bench):
    """An invalid Verdict is stored with its evidence; there is no Reward."""
    task = task_of(tools=(), verifiers=(("reasoning_gym", {"dataset": "countdown", "seed": 1, "index": 0}),))
    with pytest.raises(VerifierError):
        await bench.run(task, "42")
    stored, verdicts = await bench.stored()
    assert stored.status is EpisodeStatus.INVALID and "TaskError" in verdicts[0].evidence["error"]


async def test_a_repeated_job_expires_the_orphan_and_makes_a_new_episode(bench):
    """What a killed worker left running is expired by the next lease of its job."""
    orphan = Episode(id=episode_id(job_of().id, "", 1), tenant_id="ten_1", policy="coder", version=3)
    async with bench.store.transaction() as tx:
        await tx.episodes.add(orphan)
    episode = await bench.run(task_of(), CALL, job=job_of(token=2, attempts=2))
    assert episode.id != orphan.id and episode.success
    stored, _ = await bench.stored(token=1)
    assert stored.status is EpisodeStatus.EXPIRED


async def test_a_repeated_job_keeps_what_was_already_scored(bench):
    """A job whose worker died between scoring and reporting does not sample again."""
    first = await bench.run(task_of(), CALL)
    again = await bench.run(task_of(), CALL, job=job_of(token=3, attempts=2))
    assert again == first and len(bench.gateway.calls) == 1


def test_episode_ids_sort_with_their_jobs_and_differ_by_lease():
    """Ids have the shape of all ids and are the same whenever they are made."""
    first, second = episode_id("job_01hzzzzzzzaaa", "", 1), episode_id("job_01hzzzzzzzaaa", "", 2)
    assert first != second and first == episode_id("job_01hzzzzzzzaaa", "", 1)
    assert first.startswith("ep_01hzzzzzzz") and len(first) == len("ep_") + 26
