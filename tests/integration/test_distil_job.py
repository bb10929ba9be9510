"""``distil`` jobs against a SQLite store: what is recorded with consent becomes a Drafter candidate."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from prometheus_client import CollectorRegistry

from core.config.schema import HoneConfig
from core.distillation import DISTIL, DistilRequest
from core.drafter import Drafter, DrafterStatus
from core.episode import Episode, EpisodeStatus
from core.errors import LearnerError, NotFound
from core.ids import EPISODE, TURN, new_id
from core.job import Job, JobStatus
from core.policy import Base, Policy, PolicySpan
from core.turn import Timing, Turn
from core.variant import Variant
from learner.distil_job import Progress
from learner.distill import DistilProgress
from learner.main import Learner
from serving.weights.folder import base_fingerprint, folder_checksum
from store.events import DRAFTERS
from store.migrate import upgrade
from store.store import Store
from tests.tiny_model import build_tiny_base

POLICY = "coder"


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Base:
    """The tiny model as a Base."""
    torch.set_num_threads(1)
    path = build_tiny_base(tmp_path_factory.mktemp("base"))
    return Base(name="tiny", path=str(path), fingerprint=base_fingerprint(path))


@pytest.fixture
def config(tmp_path: Path) -> HoneConfig:
    """One layer, few tokens."""
    drafter = {"layers": 1, "epochs": 2, "min_tokens": 100, "sample_tokens": 8}
    return HoneConfig.model_validate(
        {"data_dir": tmp_path / "data", "learner": {"metrics_port": 0, "drafter": drafter}}
    )


@pytest.fixture
async def store(config: HoneConfig, base: Base) -> AsyncIterator[Store]:
    """A migrated store with a Base and a Policy."""
    config.data_dir.mkdir(parents=True)
    await asyncio.to_thread(upgrade, config.database_url)
    opened = await Store.open(config)
    async with opened.transaction() as work:
        await work.bases.put(base)
        await work.policies.add(Policy(name=POLICY, base=base.name))
    yield opened
    await opened.close()


@asynccontextmanager
async def learning(config: HoneConfig, store: Store) -> AsyncIterator[Learner]:
    """A running learner."""
    learner = Learner(config=config, store=store, registry=CollectorRegistry())
    await learner.start()
    try:
        yield learner
    finally:
        await learner.stop()


async def record(store: Store, number: int, *, episode_consent: bool = True, turn_consent: bool = True) -> None:
    """One Episode of one Turn."""
    episode_id, turn_id = new_id(EPISODE), new_id(TURN)
    output = tuple(20 + (number + place) % 60 for place in range(12))
    turn = Turn(
        id=turn_id,
        episode_id=episode_id,
        index=0,
        tenant_id="ten",
        policy=POLICY,
        policy_spans=(PolicySpan(version=0),),
        variant=Variant.STANDARD,
        deployment_id="dep",
        prompt_ids=(4, 10 + number, 2, 5),
        output_ids=output,
        output_logprobs=(-1.0,) * len(output),
        timing=Timing(started_at=0.0, total_seconds=1.0),
        request_id=f"req_{number}",
        trainable=turn_consent,
    )
    episode = Episode(
        id=episode_id,
        tenant_id="ten",
        policy=POLICY,
        trainable=episode_consent,
        turn_ids=(turn_id,),
        status=EpisodeStatus.FINISHED,
    )
    async with store.transaction() as work:
        await work.episodes.add(episode)
        await work.turns.add_many([turn])


async def ended(store: Store, job: Job) -> Job:
    """Wait until a job is done or dead."""
    async with asyncio.timeout(120):
        while (job := await store.queue.get(job.id)).status not in (JobStatus.DONE, JobStatus.DEAD):
            await asyncio.sleep(0.05)
    return job


async def ask(store: Store, base: Base, **fields: Any) -> Job:
    """Enqueue a distillation."""
    request = DistilRequest(base=base.name, reason="a test", **fields)
    return await store.queue.enqueue(DISTIL, request.model_dump(mode="json"), idempotency_key=request.idempotency_key)


async def test_recorded_turns_become_a_candidate(config: HoneConfig, store: Store, base: Base) -> None:
    """The Drafter has a number, its folder's checksum and what was measured; the next one begins with it."""
    for number in range(14):
        await record(store, number)
    async with store.events.subscribe([DRAFTERS]) as told, learning(config, store):
        job = await ended(store, await ask(store, base, policy=POLICY))
        assert job.status is JobStatus.DONE, job.error
        assert await told.wait(10.0)
        after = await ended(store, await ask(store, base, policy=POLICY, after=job.result["drafter_id"]))
        assert after.status is JobStatus.DONE, after.error
        again = await ask(store, base, policy=POLICY)
    assert again.id == job.id, "the same wish adds no second job"
    async with store.reading() as work:
        first, second = await work.drafters.list(base.name)
    assert (first.number, second.number) == (1, 2)
    assert first.status is DrafterStatus.CANDIDATE
    assert (first.policy, first.target_version, first.reason) == (POLICY, 0, "a test")
    assert first.checksum == folder_checksum(Path(first.path))
    assert first.metrics["train_tokens"] + first.metrics["heldout_tokens"] == 14 * 12
    assert second.metrics["acceptance_before"] > first.metrics["acceptance_before"] - 0.05


async def test_only_consented_turns_are_read(config: HoneConfig, store: Store, base: Base) -> None:
    """Neither Episodes nor Turns without consent; nothing left to distil on is an error that says so."""
    for number in range(5):
        await record(store, number, episode_consent=False)
        await record(store, number, turn_consent=False)
    async with learning(config, store):
        request = DistilRequest(base=base.name, policy=POLICY, reason="a test")
        job = await store.queue.enqueue(DISTIL, request.model_dump(mode="json"), max_attempts=1)
        job = await ended(store, job)
    assert job.status is JobStatus.DEAD
    assert "no text" in (job.error or "")
    async with store.reading() as work:
        assert await work.drafters.list(base.name) == []


@pytest.mark.parametrize(
    "payload",
    [
        {},
        {"base": "tiny", "reason": "x", "what": 1},
        {"base": "tiny", "reason": "x", "target_version": 3},
    ],
)
async def test_a_malformed_wish_is_refused_for_good(
    config: HoneConfig, store: Store, payload: dict[str, Any]
) -> None:
    """It is dead at once, with the reason."""
    async with learning(config, store):
        job = await ended(store, await store.queue.enqueue(DISTIL, payload))
    assert job.status is JobStatus.DEAD
    assert job.attempts == 1
    assert "InvalidRequest" in (job.error or "")


async def test_a_version_that_does_not_exist_is_refused(config: HoneConfig, store: Store, base: Base) -> None:
    """NotFound, at once and for good."""
    async with learning(config, store):
        job = await ended(store, await ask(store, base, policy=POLICY, target_version=7))
    assert job.status is JobStatus.DEAD
    assert job.attempts == 1
    assert NotFound.__name__ in (job.error or "")


def test_work_that_nobody_waits_for_ends() -> None:
    """After ``stop`` the next report raises in the working thread."""
    progress = Progress(DistilRequest(base="tiny", reason="x"))
    progress(DistilProgress("training", 1, 2))
    progress.stop()
    with pytest.raises(LearnerError, match="called off"):
        progress(DistilProgress("training", 2, 2))


async def test_a_drafter_that_is_gone_is_not_begun_with(config: HoneConfig, store: Store, base: Base) -> None:
    """A missing folder of the Drafter before is CorruptArtefact, and the job is tried again, then dead."""
    async with store.transaction() as work:
        await work.drafters.mint(Drafter(id="drf_gone", base=base.name, path=str(config.data_dir / "gone")))
    for number in range(14):
        await record(store, number)
    async with learning(config, store):
        request = DistilRequest(base=base.name, policy=POLICY, after="drf_gone", reason="a test")
        job = await ended(store, await store.queue.enqueue(DISTIL, request.model_dump(mode="json"), max_attempts=1))
    assert job.status is JobStatus.DEAD
    assert "CorruptArtefact" in (job.error or "")
