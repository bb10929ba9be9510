"""One Hone on this machine that all runs of the learning benchmark use, one Policy each."""

from collections.abc import Callable
from types import TracebackType
from typing import Any

from bench.learning.plan import Plan
from core.config.schema import HoneConfig
from core.evaluation import Evaluation
from core.noun import now
from core.run import TrainingRun
from core.task import Split
from hone.admin_client import local_admin
from hone.jobs import finished
from hone.training import request_run, watch_run
from hone.up import PROCESSES, engines_ready, gateway_answers, make_supervisor, prepare, stop_everything
from sandbox.domains.registry import domain_source
from store.store import Store

_EVALUATION_SECONDS = 3600.0


class LearningStack:
    """Gateway, one standard engine, worker and learner; a block that stops them at its end."""

    def __init__(self, config: HoneConfig, *, say: Callable[[str], None]) -> None:
        self._config = config
        self._say = say
        self._supervisor = make_supervisor(config)
        self._store: Store | None = None

    async def __aenter__(self) -> "LearningStack":
        await prepare(self._config, self._say)
        self._store = await Store.open(self._config)
        started_at = now()
        for name in PROCESSES:
            await self._supervisor.start(name)
        await gateway_answers(self._config, self._supervisor)
        await engines_ready(self._config, self._store, self._supervisor, started_at=started_at)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if self._store is not None:
                await self._store.close()
        finally:
            await stop_everything(self._config, self._supervisor)

    @property
    def store(self) -> Store:
        """The open Store."""
        assert self._store is not None, "the stack is not started"
        return self._store

    async def new_policy(self, name: str) -> None:
        """A Policy that no run has touched."""
        with local_admin(self._config) as admin:
            admin.post("/policies", {"name": name, "base": self._config.base.name, "release_policy": "demo"})

    async def add_tasks(self, domain: str, plan: Plan, seed: int) -> None:
        """The Tasks of one Domain and seed; those that are there stay."""
        counts: dict[Split, int] = {
            "warmup": plan.warmup_tasks,
            "train": plan.train_tasks,
            "heldout": plan.heldout_tasks,
        }
        source = domain_source(domain)
        async with self.store.transaction() as work:
            for split, count in counts.items():
                await work.tasks.add_many(source.generate(split, count, seed))

    async def train(
        self,
        policy: str,
        algorithm: str,
        domains: tuple[str, ...],
        *,
        steps: int,
        start: int,
        seed: int,
        overrides: dict[str, Any],
        shuffled: bool = False,
    ) -> TrainingRun:
        """One training run, followed to its end."""
        run_id, job = await request_run(
            self.store,
            policy=policy,
            algorithm=algorithm,
            domains=domains,
            steps=steps,
            start_version=start,
            seed=seed,
            overrides=overrides,
            shuffle_rewards=shuffled,
        )
        async for step in watch_run(self.store, run_id=run_id, job=job, check=self._supervisor.check):
            reward = "" if step.reward_mean is None else f" reward {step.reward_mean:.3f}"
            self._say(f"  {policy}@{step.version} {algorithm}{' shuffled' if shuffled else ''} {step.step}{reward}")
        async with self.store.reading() as work:
            return await work.runs.get(run_id)

    async def evaluate(
        self, policy: str, version: int, baseline: int, domain: str, *, tasks: int, plan: Plan, seed: int
    ) -> Evaluation:
        """Two versions on the same held-out Tasks."""
        payload = {
            "policy": policy,
            "version": version,
            "baseline_version": baseline,
            "domain": domain,
            "tasks": tasks,
            "temperature": plan.temperature,
            "seed": seed,
        }
        job = await self.store.queue.enqueue("evaluate", payload, priority=5)
        await finished(self.store, job, check=self._supervisor.check, seconds=_EVALUATION_SECONDS)
        async with self.store.reading() as work:
            found = await work.evaluations.list(policy, version)
        evaluation = next(one for one in reversed(found) if one.domain == domain and one.baseline_version == baseline)
        self._say(
            f"  {domain}: {policy}@{baseline} {evaluation.baseline_success:.3f} → @{version} {evaluation.success:.3f}"
        )
        return evaluation
