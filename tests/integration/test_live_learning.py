"""Learning from live traffic, from the client's request through the gateway to a new PolicyVersion."""

import asyncio
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from peft import PeftModel
from prometheus_client import CollectorRegistry
from transformers import AutoModelForCausalLM

from core.job import Job, JobStatus
from core.policy import Base
from core.run import TrainingRun
from learner.main import Learner
from serving.engines.fake_model import Sampling, render_chat
from serving.weights.folder import base_fingerprint
from tests.gateway_harness import BASE, POLICY, Harness, running_gateway
from tests.learner_harness import stub_fleet
from tests.live_users import ANSWER, has_style, make_users, sampler, talk
from tests.tiny_model import build_tiny_base

pytestmark = pytest.mark.timeout(240)
VOCABULARY = 264
SETTINGS = {
    "learner.lora.rank": 4,
    "learner.lora.alpha": 8.0,
    "learner.learning_rate": 0.015,
    "learner.metrics_port": 0,
    "learner.live.settle_seconds": 0.0,
    "learner.live.rewards": {"thumbs_up": {}, "score": {}, "stars": {"low": 1, "high": 5}},
    "learner.live.episodes_per_step": 20,
    "learner.live.max_staleness": 20,
}


@pytest.fixture
def base_path(tmp_path: Path) -> Path:
    """A random model over the fake engine's tokens."""
    torch.set_num_threads(1)
    return build_tiny_base(tmp_path / "base", vocabulary_size=VOCABULARY)


@pytest.fixture
async def harness(fresh_sqlite_url, open_store, make_config, base_path, monkeypatch: pytest.MonkeyPatch):
    """A gateway before an engine that samples from the model that the learner trains."""
    model = AutoModelForCausalLM.from_pretrained(str(base_path), dtype=torch.float32)
    monkeypatch.setattr("serving.engines.fake_model.generate", sampler(model))
    async with running_gateway(await open_store(fresh_sqlite_url), make_config, SETTINGS) as harness:
        async with harness.store.transaction() as work:
            await work.bases.put(Base(name=BASE, path=str(base_path), fingerprint=base_fingerprint(base_path)))
        await harness.add_engine()
        yield harness


async def learn(harness: Harness, run_id: str, **payload: object) -> tuple[Job, TrainingRun]:
    """One run of live learning from its job to its end."""
    body = {"run_id": run_id, "policy": POLICY, "algorithm": "live", "domains": [], "seed": 3, **payload}
    job = await harness.store.queue.enqueue("train", body, max_attempts=1)
    learner = Learner(config=harness.config, store=harness.store, registry=CollectorRegistry())
    fleet = asyncio.create_task(stub_fleet(harness.store))
    await learner.start()
    try:
        async with harness.store.events.subscribe(["jobs"]) as subscription:
            while (job := await harness.store.queue.get(job.id)).status in (JobStatus.QUEUED, JobStatus.LEASED):
                await subscription.wait(1.0)
    finally:
        await learner.stop()
        fleet.cancel()
        with suppress(asyncio.CancelledError):
            await fleet
    assert job.status is JobStatus.DONE, job.error
    async with harness.store.reading() as work:
        return job, await work.runs.get(run_id)


async def style(harness: Harness, base_path: Path, version: int) -> float:
    """Mean log-probability of a token in style, in the Base's own answers to unseen questions."""
    model = AutoModelForCausalLM.from_pretrained(str(base_path), dtype=torch.float32)
    prompts = [render_chat([{"role": "user", "content": f"unseen {number}"}]) for number in range(40)]
    answer = sampler(model)
    texts = [(prompt, answer("", prompt, Sampling(ANSWER, 5, False, (), True)).token_ids) for prompt in prompts]
    if version:
        async with harness.store.reading() as work:
            checkpoint = await work.checkpoints.for_version(POLICY, version)
        model = PeftModel.from_pretrained(model, checkpoint.path)
    even = torch.tensor([has_style(token) for token in range(VOCABULARY)])
    found = []
    with torch.no_grad():
        for prompt, tokens in texts:
            logits = model(input_ids=torch.tensor([prompt + tokens])).logits[0, len(prompt) - 1 : -1]
            found.append(float(logits.log_softmax(-1)[:, even].logsumexp(-1).mean()))
    return sum(found) / len(found)


async def test_a_policy_moves_towards_what_200_users_like(harness, base_path) -> None:
    """Thumbs of users with a hidden taste raise its probability on unseen questions, shuffled thumbs do not; who
    grants no training is never trained on, nobody is trained on twice, and what is said later counts later."""
    users = await make_users(harness, 200)
    episodes = await talk(harness, users)
    assert await harness.gateway.recorder.flush(10.0)
    job, run = await learn(harness, "run_live")
    _, control = await learn(harness, "run_control", shuffle_rewards=True)
    newest = run.steps[-1].version
    before, after = await style(harness, base_path, 0), await style(harness, base_path, newest)
    shuffled = await style(harness, base_path, control.steps[-1].version)
    assert job.result == {"run_id": "run_live", "versions": list(range(1, 10))}
    assert after > before + 0.06
    assert after > shuffled + 0.06
    assert all(step.values["live_tenants"] >= 2 for step in run.steps)
    async with harness.store.reading() as work:
        seen = []
        for step in run.steps:
            checkpoint = await work.checkpoints.for_version(POLICY, step.version)
            seen += await work.lineage.episodes_of(checkpoint.id)
        version = await work.versions.get(POLICY, newest)
    assert sorted(seen) == sorted(episodes[user.key] for user in users if user.consents)
    assert version.origin == "live"
    await _what_is_said_later(harness, users, episodes, newest)


async def _what_is_said_later(harness, users, episodes, newest: int) -> None:
    """From where the line stands nothing is left; then eight users change their minds."""
    job, run = await learn(harness, "run_again", start_version=newest)
    assert (job.result["versions"], run.steps) == ([], ())
    changed = [user for user in users if user.consents][:8]
    for user in changed:
        async with harness.store.reading() as work:
            (turn,) = await work.turns.for_episode(episodes[user.key])
        said = {"turn_id": turn.id, "name": "score", "value": 0.9}
        assert (await harness.post("/v1/feedback", said, user.key)).status == 201
    async with harness.store.reading() as work:
        known = (await work.checkpoints.for_version(POLICY, newest)).provenance.live
    _, run = await learn(harness, "run_late", start_version=newest)
    async with harness.store.reading() as work:
        checkpoint = await work.checkpoints.for_version(POLICY, run.steps[-1].version)
    assert set(checkpoint.provenance.episode_ids) == {episodes[user.key] for user in changed}
    after = checkpoint.provenance.live.baselines["live"]
    assert known.baselines["live"].count == 180
    assert after.count == 188
