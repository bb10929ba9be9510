"""A learner's surroundings reduced to what it sees of them: a seeded store, a worker and a fleet."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import torch
from peft import PeftModel
from prometheus_client import CollectorRegistry
from transformers import AutoModelForCausalLM

from core.config.schema import HoneConfig
from core.episode import Episode, EpisodeStatus, StopReason
from core.errors import LeaseLost
from core.ids import EPISODE, TURN, new_id
from core.job import Job, JobStatus
from core.policy import Base, Policy, PolicySpan, ServingStatus
from core.task import Domain, VerifierSpec, make_task
from core.turn import Timing, Turn
from core.variant import Variant
from learner.main import Learner
from serving.weights.folder import base_fingerprint
from store.events import VERSIONS
from store.migrate import upgrade
from store.store import Store
from tests.tiny_model import build_tiny_base

POLICY = "coder"
OUTPUT = 4


def tiny_base(folder: Path) -> Base:
    """The tiny model as a Base."""
    torch.set_num_threads(1)
    path = build_tiny_base(folder)
    return Base(name="tiny", path=str(path), fingerprint=base_fingerprint(path))


def small_config(tmp_path: Path) -> HoneConfig:
    """Two groups of three per step, small adapters."""
    return HoneConfig.model_validate(
        {
            "data_dir": tmp_path / "data",
            "learner": {
                "lora": {"rank": 4, "alpha": 8.0},
                "learning_rate": 0.02,
                "sft_learning_rate": 0.02,
                "sft_batch": 3,
                "group_size": 3,
                "groups_per_step": 2,
                "episode_timeout_seconds": 60.0,
                "metrics_port": 0,
            },
        }
    )


@asynccontextmanager
async def seeded_store(config: HoneConfig, base: Base) -> AsyncIterator[Store]:
    """A migrated SQLite store with a Base, a Policy, a Domain and its Tasks."""
    config.data_dir.mkdir(parents=True)
    await asyncio.to_thread(upgrade, config.database_url)
    store = await Store.open(config)
    async with store.transaction() as work:
        await work.bases.put(base)
        await work.policies.add(Policy(name=POLICY, base=base.name))
        await work.domains.put(Domain(name="words", kind="text", description="words"))
        verifier = VerifierSpec(name="exact")
        await work.tasks.add_many(
            [
                make_task(
                    domain="words",
                    split=split,
                    messages=({"role": "user", "content": f"w{index} w{index + 1}"},),
                    verifiers=(verifier,),
                    demonstration=f"w{index + 2} w{index + 3}" if split == "warmup" else None,
                )
                for split, count in (("train", 5), ("warmup", 7))
                for index in range(count)
            ]
        )
    yield store
    await store.close()


class StubWorker:
    """Runs rollout jobs with the model itself, and spoils the attempts that ``spoil`` names."""

    def __init__(self, store: Store, base: Base, *, spoil: Callable[[Job], bool] = lambda job: False) -> None:
        self._store = store
        self._base = AutoModelForCausalLM.from_pretrained(base.path, dtype=torch.float32)
        self._base_path = base.path
        self._models: dict[int, torch.nn.Module] = {0: self._base}
        self._spoil = spoil
        self.jobs: list[Job] = []

    async def run(self, *, at_most: int = 1_000_000) -> None:
        """Work until cancelled, or until ``at_most`` jobs are done."""
        async with self._store.events.subscribe(["jobs"]) as subscription:
            while len(self.jobs) < at_most:
                jobs = await self._store.queue.claim(["rollout"], "worker", lease_seconds=30.0, limit=6)
                for job in jobs:
                    self.jobs.append(job)
                    await self._one(job)
                if not jobs:
                    await subscription.wait(1.0)

    async def _one(self, job: Job) -> None:
        payload = job.payload
        if self._spoil(job):
            result = {"episode_id": new_id(EPISODE), "reward": None, "success": None, "status": "invalid"}
            await self._store.queue.complete(job, result)
            return
        model = await self._model(payload["version"])
        generator = torch.Generator().manual_seed(payload["seed"])
        prompt = (4, 10 + payload["attempt"] % 3, 2, 5)
        tokens, logprobs = torch.tensor([prompt]), []
        with torch.no_grad():
            for _ in range(OUTPUT):
                distribution = model(input_ids=tokens).logits[0, -1].log_softmax(-1)
                chosen = torch.multinomial(distribution.exp(), 1, generator=generator)
                logprobs.append(float(distribution[chosen]))
                tokens = torch.cat([tokens, chosen[None]], dim=1)
        output = tuple(tokens[0, len(prompt) :].tolist())
        reward = sum(token % 2 == 0 for token in output) / OUTPUT + 0.01 * (payload["attempt"] % 3)
        await self._record(job, prompt, output, tuple(logprobs), reward)

    async def _record(self, job, prompt, output, logprobs, reward) -> None:
        payload, episode_id = job.payload, new_id(EPISODE)
        turn = Turn(
            id=new_id(TURN),
            episode_id=episode_id,
            index=0,
            tenant_id="ten_1",
            policy=POLICY,
            policy_spans=(PolicySpan(version=payload["version"]),),
            variant=Variant.STANDARD,
            deployment_id="dep_1",
            prompt_ids=prompt,
            output_ids=output,
            output_logprobs=logprobs,
            timing=Timing(started_at=0.0, total_seconds=0.1),
            request_id="req_1",
            trainable=True,
        )
        episode = Episode(
            id=episode_id,
            tenant_id="ten_1",
            status=EpisodeStatus.SCORED,
            task_id=payload["task_id"],
            domain="words",
            group_id=payload["group_id"],
            policy=POLICY,
            version=payload["version"],
            purpose="train",
            trainable=True,
            stop_reason=StopReason.ANSWERED,
            turn_ids=(turn.id,),
            reward=reward,
            success=reward > 0.5,
        )
        async with self._store.transaction() as work:
            await work.episodes.add(episode)
            await work.turns.add_many([turn])
        result = {"episode_id": episode_id, "reward": reward, "success": True, "status": "scored"}
        with suppress(LeaseLost):  # a run that ends withdraws what it asked for
            await self._store.queue.complete(job, result)

    async def _model(self, version: int) -> torch.nn.Module:
        if version not in self._models:
            async with self._store.reading() as work:
                checkpoint = await work.checkpoints.for_version(POLICY, version)
            base = AutoModelForCausalLM.from_pretrained(self._base_path, dtype=torch.float32)
            self._models[version] = PeftModel.from_pretrained(base, checkpoint.path)
        return self._models[version]


async def stub_fleet(store: Store, *, verdict: ServingStatus = ServingStatus.LIVE) -> None:
    """Make every wanted version live, or refuse it."""
    async with store.events.subscribe([VERSIONS]) as subscription:
        while True:
            async with store.transaction() as work:
                for version in await work.versions.list_serving([ServingStatus.WANTED]):
                    await work.versions.update(
                        version.model_copy(update={"serving": verdict, "serving_reason": "the probe failed"})
                    )
            await store.events.publish(VERSIONS)
            await subscription.wait(0.5)


async def run_job(
    store: Store, config: HoneConfig, payload: dict, *beside: Awaitable[None], max_attempts: int = 1
) -> Job:
    """One train job from enqueueing to its end, with ``beside`` running."""
    job = await store.queue.enqueue("train", payload, max_attempts=max_attempts)
    learner = Learner(config=config, store=store, registry=CollectorRegistry())
    tasks = [asyncio.ensure_future(awaitable) for awaitable in beside]
    await learner.start()
    try:
        async with store.events.subscribe(["jobs"]) as subscription:
            while (current := await store.queue.get(job.id)).status in (JobStatus.QUEUED, JobStatus.LEASED):
                await subscription.wait(1.0)
                for task in tasks:
                    if task.done():
                        task.result()
        return current
    finally:
        await learner.stop()
        for task in tasks:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task


def payload(algorithm: str, *, steps: int, run_id: str = "run_1", start_version: int = 0, **more: object) -> dict:
    """A train job's payload."""
    return {
        "run_id": run_id,
        "policy": POLICY,
        "algorithm": algorithm,
        "domains": ["words"],
        "steps": steps,
        "seed": 3,
        "start_version": start_version,
        **more,
    }
