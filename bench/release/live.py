"""Three real candidates on a real engine, before clients that judge what they get, each by a policy file.

The better one and the equal one go through evaluation and ramp. Evaluation of the bad one is skipped, on record, as
somebody in a hurry might: what is left between it and the users are the guardrails.
"""

import asyncio
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from bench.hotswap.swaps import Made, read_made
from bench.release.plan import ADAPTERS, MANIFEST
from bench.release.results import LiveOutcome
from bench.release.traffic import Traffic, ask
from bench.release.words import held_out, score
from bench.runs import run_module, say
from bench.stack import Stack
from core.errors import NotFound
from core.experiment import Experiment
from core.guardrails import Guardrails
from core.ids import CHECKPOINT, RELEASE, new_id
from core.policy import Base, Checkpoint, Provenance, ServingStatus
from core.release import Release, ReleaseStep
from core.release_plan import RampStage, ReleasePlan
from core.release_rule import Family, ReleaseRule
from core.release_run import ReleaseRun
from core.shadow import ShadowPair
from core.suite import Attempt, Suite, SuiteResult
from gateway.release_run.conductor import LEASE, Conductor, Sources
from gateway.release_run.notice import WebhookNotifier
from hone.local_keys import read_local_keys
from hone.release_client import ReleaseClient
from serving.weights.base_model import prepare_base
from store.events import VERSIONS
from store.leadership import Leadership, owner_name
from store.unit_of_work import UnitOfWork

POLICY = "capitals"
DOMAIN = "words"
SUITE = "held-out-words"
EXPECTED = {"better": "promoted", "equal": "rejected", "bad": "rolled_back"}
_QUESTIONS = 75
"""Of the Suite: a gain of most of them is proven by far fewer."""
CLIENTS = 8
"""That talk all the time."""
_GATEWAYS = 2
_LONGEST_SECONDS = 240.0
_SETTLE_SECONDS = 3.0
"""After the end of a release: long enough to see whether anybody still gets a candidate that was taken back."""
_RANK = 4
_SUCCESS = 1.0

PLAN = ReleasePlan(
    policy=POLICY,
    steps=(ReleaseStep.EVALUATION, ReleaseStep.RAMP),
    rule=ReleaseRule(targets=(DOMAIN,), families={"all": Family(domains=(DOMAIN,))}, alpha=0.005),
    suites=(SUITE,),
    ramp=(
        RampStage(share=0.3, min_seconds=5.0, min_episodes=40),
        RampStage(share=0.5, min_seconds=5.0, min_episodes=40),
        RampStage(share=1.0, min_seconds=2.0, min_episodes=20),
    ),
    # An answer that was still going on at the clients' limit is a long one.
    guardrails=Guardrails(long_tokens=19),
)


class AskedSuite:
    """A tenant's own questions as a Suite: every version is asked all of them through the gateway, once."""

    def __init__(self, *, url: str, key: str) -> None:
        self._url = url
        self._key = key
        self._pairs = held_out()[:_QUESTIONS]
        self._suite = Suite(name=SUITE, task_ids=tuple(question for question, _ in self._pairs))
        self._results: dict[int, SuiteResult] = {}

    async def run_on(self, version: int) -> None:
        """Ask a version that was not asked yet."""
        if version in self._results:
            return
        gate = asyncio.Semaphore(CLIENTS)
        headers = {"authorization": f"Bearer {self._key}"}
        async with aiohttp.ClientSession(self._url, headers=headers) as session:

            async def attempt(question: str, wanted: str) -> Attempt:
                async with gate:
                    text, _, episode = await ask(session, f"{POLICY}@{version}", question, temperature=0.0)
                right = score(text, wanted)
                return Attempt(
                    task_id=question,
                    domain=DOMAIN,
                    seed=0,
                    episode_id=episode,
                    success=right >= _SUCCESS,
                    reward=right,
                    turns=1,
                )

            attempts = await asyncio.gather(*(attempt(*pair) for pair in self._pairs))
        solved = sum(one.success for one in attempts)
        say(f"{POLICY}@{version} solves {solved} of {len(attempts)} held-out questions")
        self._results[version] = SuiteResult(
            id=f"asked-{version}",
            suite=SUITE,
            suite_version=1,
            policy=POLICY,
            version=version,
            attempts=tuple(attempts),
        )

    async def suite(self, work: UnitOfWork, name: str) -> Suite:
        """The Suite; raises NotFound for another name."""
        if name != SUITE:
            raise NotFound(f"there is no Suite '{name}'")
        return self._suite

    async def result(self, work: UnitOfWork, policy: str, version: int, suite: Suite) -> SuiteResult | None:
        """What ``run_on`` found; None: it was not run."""
        return self._results.get(version)


class NoPairs:
    """The plan has no shadow."""

    async def after(
        self, work: UnitOfWork, experiment_id: str, cursor: Any, limit: int, *, until: Any = None
    ) -> tuple[Sequence[ShadowPair], Any]:
        """None."""
        return (), cursor

    async def counts(self, work: UnitOfWork, experiment_id: str) -> Mapping[str, Any]:
        """None."""
        return {}


@dataclass
class LiveRun:
    """A running stack with its controller and its clients."""

    stack: Stack
    base: Base
    suite: AskedSuite
    traffic: Traffic

    async def release(self, name: str, made: Made) -> LiveOutcome:
        """Publish a candidate, release it by the plan, and wait for its end."""
        began, earlier = time.monotonic(), len(self.traffic.replies)
        version = await self._publish(made)
        say(f"{name}: {POLICY}@{version} is live")
        await self.suite.run_on(0)
        async with self.stack.store.reading() as work:
            await self.suite.run_on((await work.policies.get(POLICY)).promoted_version)
        if name != "bad":
            await self.suite.run_on(version)
        run = await asyncio.to_thread(self._start, name, version)
        run = await self._until_over(run.id)
        await asyncio.sleep(_SETTLE_SECONDS)
        reasons = run.decisions[-1].reasons or tuple(
            reason for one in reversed(run.decisions) for reason in one.reasons
        )
        outcome = LiveOutcome(
            candidate=name,
            expected=EXPECTED[name],
            ended=run.status.value,
            seconds=time.monotonic() - began,
            requests=len(self.traffic.replies) - earlier,
            reason=reasons[0] if reasons else "every claim was proven",
            rollback_seconds=await self._rollback_seconds(run),
        )
        say(f"{name}: {outcome.ended} after {outcome.seconds:.0f} s, because: {outcome.reason}")
        return outcome

    def _start(self, name: str, version: int) -> ReleaseRun:
        with self.stack.admin() as admin:
            client = ReleaseClient(admin)
            run = client.start(PLAN, version)
            if name == "bad":
                run = client.skip(run.id, ReleaseStep.EVALUATION, "somebody is in a hurry")
        return run

    async def _until_over(self, run_id: str) -> ReleaseRun:
        async with asyncio.timeout(_LONGEST_SECONDS):
            while True:
                async with self.stack.store.reading() as work:
                    run = await work.release_runs.get(run_id)
                if not run.is_open:
                    return run
                await asyncio.sleep(0.5)

    async def _rollback_seconds(self, run: ReleaseRun) -> float | None:
        """From the moment at which the Experiment ended to the last request that still got the candidate."""
        if run.status != "rolled_back" or run.ramp_id is None:
            return None
        async with self.stack.store.reading() as work:
            experiment: Experiment = await work.experiments.get(run.ramp_id)
        ended = experiment.stopped_at or 0.0
        late = [one.asked_at - ended for one in self.traffic.replies if one.version == run.version]
        return max(0.0, *late) if late else None

    async def _publish(self, made: Made) -> int:
        """As the learner does, in one transaction; then wait until the engine serves it."""
        checkpoint_id = new_id(CHECKPOINT)
        async with self.stack.store.transaction() as work:
            version = await work.versions.mint(
                POLICY, kind="lora", origin="imported", parent_version=0, checkpoint_id=checkpoint_id
            )
            provenance = Provenance(parent_version=0, code_commit="bench", config={}, packages={}, seed=0, step=0)
            await work.checkpoints.add(
                Checkpoint(
                    id=checkpoint_id,
                    policy=POLICY,
                    version=version.version,
                    kind="lora",
                    path=str(made.path),
                    checksum=made.checksum,
                    base_fingerprint=self.base.fingerprint,
                    probe=made.probe,
                    provenance=provenance,
                    lora_rank=_RANK,
                )
            )
            await work.releases.add(Release(id=new_id(RELEASE), policy=POLICY, version=version.version))
        await self.stack.store.events.publish(VERSIONS, {"policy": POLICY, "version": version.version})
        async with asyncio.timeout(_LONGEST_SECONDS):
            while True:
                async with self.stack.store.reading() as work:
                    stored = await work.versions.get(POLICY, version.version)
                if stored.serving is ServingStatus.LIVE:
                    return version.version
                if stored.serving is ServingStatus.REFUSED:
                    raise RuntimeError(f"the fleet refused {stored.label}: {stored.serving_reason}")
                await asyncio.sleep(0.1)


async def run(folder: Path) -> tuple[list[LiveOutcome], str]:
    """All three candidates, one after the other, and the engine's version."""
    overrides = {"fleet.variants": ("standard",), "gateway.workers": _GATEWAYS, "engine.max_num_seqs": 2 * CLIENTS}
    stack = Stack(folder / "live", overrides)
    base = await asyncio.to_thread(prepare_base, stack.config, say)
    made = await _made(folder / "adapters", Path(base.path))
    say("starting gateways, fleet and engine")
    async with stack:
        engine = next((str(one.engine_version) for one in await stack.deployments()), "")
        await stack.create_policy(POLICY)
        key = read_local_keys(stack.config).admin
        suite = AskedSuite(url=stack.url, key=key)
        notifier = WebhookNotifier()
        conductor = Conductor(
            store=stack.store,
            sources=Sources(suites=suite, pairs=NoPairs(), notifier=notifier),
            leadership=Leadership(store=stack.store, name=LEASE, owner=owner_name(), seconds=30.0),
        )
        await conductor.start()
        traffic = Traffic(url=stack.url, key=key, model=POLICY, pairs=held_out(), count=CLIENTS)
        try:
            async with traffic:
                live = LiveRun(stack, base, suite, traffic)
                # The better one comes last: once it is promoted, the others would be compared with it.
                found = [await live.release(name, made[name]) for name in ("bad", "equal", "better")]
        finally:
            await conductor.stop()
        for failure in traffic.failures[:5]:
            say(f"a request failed: {failure}")
    return found, engine


async def _made(folder: Path, base: Path) -> dict[str, Made]:
    if not (folder / MANIFEST).exists():
        say("making three adapters")
        await run_module("bench.release.make", str(folder), str(base))
    found = await asyncio.to_thread(read_made, folder / MANIFEST)
    say(f"adapters: {json.dumps([str(one.path) for one in found])}")
    return dict(zip(ADAPTERS, found, strict=True))
