"""The demo's stages: each asks the running processes for something and waits for it, as any operator would."""

from pathlib import Path
from types import TracebackType

import httpx
from openai import AsyncOpenAI, DefaultAsyncHttpxClient
from prometheus_client.parser import text_string_to_metric_families
from rich.console import Console
from rich.markup import escape

from core.config.schema import HoneConfig
from core.errors import LearnerError
from core.evaluation import Evaluation
from core.job import Job
from core.noun import now
from core.run import TrainingRun
from core.statistics.intervals import Interval, wilson_interval
from core.task import Split
from hone.admin_client import AdminClient, local_admin
from hone.demo.plan import POLICY, DemoPlan
from hone.demo.summary import Figures, Stopwatch
from hone.jobs import finished
from hone.local_keys import read_local_keys
from hone.training import request_run, watch_run
from hone.up import PROCESSES, engines_ready, gateway_answers, make_supervisor, prepare, stop_everything
from sandbox.domains.registry import domain_source
from store.store import Store

_QUESTION = "What is the capital of France?"
_EVALUATION_SECONDS = 1800.0
_STREAM_BROKEN = 599
"""The gateway's status for a stream that an engine broke off after its start."""
_SPLITS: tuple[Split, ...] = ("warmup", "train", "heldout")


class Demo:
    """One demo run; opened as a block, which stops every process at its end unless ``keep``."""

    def __init__(
        self,
        config: HoneConfig,
        plan: DemoPlan,
        *,
        seed: int,
        keep: bool,
        screen: Console,
        stopwatch: Stopwatch,
    ) -> None:
        self.plan = plan
        self._config = config
        self._seed = seed
        self._keep = keep
        self._screen = screen
        self._stopwatch = stopwatch
        self._supervisor = make_supervisor(config)
        self._store: Store | None = None
        self._titles = 0
        self._warmup: tuple[str, Job] | None = None

    async def __aenter__(self) -> "Demo":
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if self._store is not None:
                await self._store.close()
        finally:
            if self._keep and error is None:
                self._say_what_runs()
            else:
                self._say("stopping what was started")
                await stop_everything(self._config, self._supervisor)

    async def prepare(self) -> None:
        """Base model, database, keys, Domains, Tasks."""
        with self._stopwatch.stage("prepare"):
            self._title("the base model and the database")
            await prepare(self._config, self._say)
            self._store = await Store.open(self._config)
            source = domain_source(self.plan.domain)
            async with self._store.transaction() as tx:
                for split in _SPLITS:
                    tasks = source.generate(split, self._count(split), self._seed)
                    added = await tx.tasks.add_many(tasks)
                    self._say(f"{added} {split} Tasks in Domain {self.plan.domain}")

    async def start(self) -> None:
        """Gateway, fleet, worker and learner; the warm-up is asked for at once, so it trains meanwhile."""
        with self._stopwatch.stage("start"):
            self._title("gateway, engines, worker, learner")
            started_at = now()
            for name in PROCESSES:
                await self._supervisor.start(name)
            await gateway_answers(self._config, self._supervisor)
            with self._admin() as admin:
                body = {"name": POLICY, "base": self._config.base.name, "release_policy": "demo"}
                admin.post("/policies", body)
            self._warmup = await request_run(
                self.store,
                policy=POLICY,
                algorithm="sft",
                domains=(self.plan.domain,),
                steps=self.plan.warmup_steps,
                start_version=0,
                seed=self._seed,
                overrides=self.plan.sft_overrides,
            )
            with self._screen.status("vLLM is starting: about a minute"):
                ready = await engines_ready(self._config, self.store, self._supervisor, started_at=started_at)
            for deployment in ready:
                self._say(f"{deployment.variant} variant ready on {deployment.url}")

    async def chat(self) -> None:
        """One real chat completion per Variant, by the ordinary client."""
        with self._stopwatch.stage("chat"):
            self._title("one question through the gateway")
            for model in (self._config.base.name, f"{self._config.base.name}-fast"):
                headers, answer = await self._ask(model, _QUESTION)
                self._screen.print(f"  [bold]{model}[/]: {escape(answer.strip())}")
                self._say(f"variant {headers['x-hone-variant']}, Turn {headers['x-hone-turn-id']}")

    async def warm_up(self) -> int:
        """Wait for the SFT warm-up; its PolicyVersion is where GRPO starts."""
        with self._stopwatch.stage("warm-up"):
            self._title("warm-up: a few demonstrations of the answer's form (SFT)")
            if self._warmup is None:
                raise LearnerError("the warm-up was not asked for")
            run_id, job = self._warmup
            version = 0
            with self._screen.status("training on demonstrations"):
                async for step in watch_run(self.store, run_id=run_id, job=job, check=self._supervisor.check):
                    version = step.version
                    self._say(f"{POLICY}@{step.version}: loss {step.loss:.3f}")
            return version

    async def train(self, start_version: int) -> TrainingRun:
        """GRPO: attempts through the gateway, tools in the sandbox, a step, a hot-swap, again."""
        with self._stopwatch.stage("grpo"):
            self._title(f"GRPO from {POLICY}@{start_version}")
            run_id, job = await request_run(
                self.store,
                policy=POLICY,
                algorithm="grpo",
                domains=(self.plan.domain,),
                steps=self.plan.grpo_steps,
                start_version=start_version,
                seed=self._seed,
                overrides=self.plan.grpo_overrides,
            )
            with self._screen.status("attempting, judging, training, swapping"):
                async for step in watch_run(self.store, run_id=run_id, job=job, check=self._supervisor.check):
                    reward = step.reward_mean or 0.0
                    bar = "█" * round(reward * 30)
                    self._screen.print(
                        f"  step {step.step:>2}/{self.plan.grpo_steps} → @{step.version:<3} reward "
                        f"{reward:.3f} {bar}",
                        highlight=False,
                    )
            async with self.store.transaction() as tx:
                return await tx.runs.get(run_id)

    async def evaluate(self, version: int, *, baseline: int, stage: str) -> Evaluation:
        """Both versions on the same held-out Tasks, paired."""
        with self._stopwatch.stage(stage):
            self._title(f"{POLICY}@{version} against @{baseline} on {self.plan.heldout_tasks} held-out Tasks")
            payload = {
                "policy": POLICY,
                "version": version,
                "baseline_version": baseline,
                "domain": self.plan.domain,
                "tasks": self.plan.heldout_tasks,
                "temperature": self.plan.evaluation_temperature,
                "seed": self._seed,
            }
            job = await self.store.queue.enqueue("evaluate", payload, priority=5)
            with self._screen.status("both versions attempt the same Tasks"):
                await finished(self.store, job, check=self._supervisor.check, seconds=_EVALUATION_SECONDS)
            async with self.store.transaction() as tx:
                evaluation = (await tx.evaluations.list(POLICY, version))[-1]
            gain = evaluation.gain
            self._say(
                f"@{baseline} {100 * evaluation.baseline_success:.1f}%, @{version} "
                f"{100 * evaluation.success:.1f}%, difference {100 * gain.mean:+.1f} "
                f"[{100 * gain.low:+.1f}, {100 * gain.high:+.1f}]"
            )
            return evaluation

    async def promote_and_roll_back(self, version: int) -> None:
        """Promote through the admin API, show what a client gets, and take it back."""
        with self._stopwatch.stage("promote"):
            self._title("promotion and rollback")
            with self._admin() as admin:
                self._say(f"before: a client of '{POLICY}' is answered by {await self._served()}")
                admin.post(f"/policies/{POLICY}/promote", {"version": version})
                self._say(f"promoted: it is answered by {await self._served()}")
                admin.post(f"/policies/{POLICY}/rollback", {"reason": "the demo shows a rollback"})
                self._say(f"rolled back: it is answered by {await self._served()}")
                admin.post(f"/policies/{POLICY}/promote", {"version": version, "reason": "after the rollback"})
                self._say(f"promoted again: it is answered by {await self._served()}")

    async def figures(self, warmup: Evaluation, trained: Evaluation, run: TrainingRun) -> Figures:
        """Collect what the report shows."""
        async with self.store.transaction() as tx:
            versions = await tx.versions.list(POLICY)
        requests, failed = await self._request_counts()
        return Figures(
            warmup=warmup,
            trained=trained,
            base_interval=_share(warmup.baseline_success, warmup.tasks),
            start_interval=_share(trained.baseline_success, trained.tasks),
            trained_interval=_share(trained.success, trained.tasks),
            run=run,
            requests=requests,
            failed_requests=failed,
            swap_seconds=tuple(item.swap_seconds for item in versions if item.swap_seconds is not None),
        )

    async def trouble(self) -> str | None:
        """What went wrong so far though every stage passed: failed requests, processes that died; None: nothing."""
        _, failed = await self._request_counts()
        found = [f"{failed} requests failed"] if failed else []
        found += [f"the {name} process died {times} times" for name, times in self._supervisor.deaths.items()]
        return ", ".join(found) or None

    def next_steps(self) -> list[str]:
        """Commands worth trying after the demo."""
        state = self._config.data_dir
        return [
            "make demo SEED=1              another seed, another curve",
            "make demo KEEP=1              leave everything running, then:",
            f"HONE_DATA_DIR={_relative(state)} .venv/bin/hone chat --model {POLICY} 'hello'",
            f"HONE_DATA_DIR={_relative(state)} .venv/bin/hone policies show {POLICY}",
            f"HONE_DATA_DIR={_relative(state)} .venv/bin/hone episodes list",
            ".venv/bin/hone up             your own gateway, with the same defaults",
        ]

    @property
    def store(self) -> Store:
        """The demo's open Store."""
        if self._store is None:
            raise LearnerError("the demo's store is opened by prepare()")
        return self._store

    def _count(self, split: Split) -> int:
        return {
            "warmup": self.plan.warmup_tasks,
            "train": self.plan.train_tasks,
            "heldout": self.plan.heldout_tasks,
        }[split]

    def _admin(self) -> AdminClient:
        return local_admin(self._config)

    async def _ask(self, model: str, question: str) -> tuple[httpx.Headers, str]:
        client = AsyncOpenAI(
            base_url=f"{self._config.gateway_url}/v1",
            api_key=read_local_keys(self._config).admin,
            http_client=DefaultAsyncHttpxClient(trust_env=False),
        )
        async with client:
            raw = await client.chat.completions.with_raw_response.create(
                model=model,
                messages=[{"role": "user", "content": question}],
                max_tokens=24,
                temperature=0.0,
            )
            return raw.headers, raw.parse().choices[0].message.content or ""  # type: ignore[return-value]

    async def _served(self) -> str:
        headers, _ = await self._ask(POLICY, _QUESTION)
        return f"{POLICY}@{headers['x-hone-policy-version']}"

    async def _request_counts(self) -> tuple[int, int]:
        """All requests to the API, and those that failed by no fault of the client."""
        async with httpx.AsyncClient(trust_env=False) as client:
            text = (await client.get(f"{self._config.gateway_url}/metrics")).raise_for_status().text
        return request_counts(text)

    def _say(self, text: str) -> None:
        self._screen.print(f"  [dim]{escape(text)}[/]")

    def _title(self, text: str) -> None:
        self._titles += 1
        self._screen.print(f"\n[bold]{self._titles}. {escape(text)}[/]")

    def _say_what_runs(self) -> None:
        pids = " ".join(str(pid) for pid in self._supervisor.pids.values())
        (self._config.data_dir / "pids").write_text(pids + "\n")
        self._say(f"left running: {self._config.gateway_url}/v1; stop it with: kill {pids}")


def request_counts(metrics: str) -> tuple[int, int]:
    """Requests to the API and those that failed, with streams that broke off, from the gateway's metrics text."""
    total = failed = broken = streams_broken = 0.0
    for family in text_string_to_metric_families(metrics):
        for sample in family.samples:
            if sample.name == "hone_requests_total" and sample.labels["route"].startswith("/v1/"):
                total += sample.value
                status = int(sample.labels["status"])
                broken += sample.value if status == _STREAM_BROKEN else 0.0
                failed += sample.value if status >= 400 and status != _STREAM_BROKEN else 0.0
            elif sample.name == "hone_stream_failures_total":
                streams_broken += sample.value
    # The gateway counts a broken stream in both metrics: once is enough here.
    return int(total), int(failed + max(broken, streams_broken))


def _share(share: float, tasks: int) -> Interval:
    return wilson_interval(round(share * tasks), tasks)


def _relative(path: Path) -> str:
    return f"runs/demo/{path.name}"
