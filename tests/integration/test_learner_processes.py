"""Learners as real processes: killed and gone on from, started by torchrun, training all weights."""

import asyncio
import json
import signal
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from core.config.load import environment_for_child
from core.config.schema import HoneConfig
from core.job import JobStatus
from core.policy import Base, Checkpoint, Policy
from core.run import TrainingRun
from core.task import Domain, VerifierSpec, make_task
from learner.checkpoints import verify_folder
from serving.weights.folder import base_fingerprint
from serving.weights.full_folder import check_full_folder
from store.migrate import upgrade
from store.store import Store
from tests.learner_harness import stub_fleet
from tests.tiny_model import build_tiny_base

pytestmark = pytest.mark.timeout(300)
POLICY = "coder"
FULL_POLICY = "coder-full"
PROJECT = Path(__file__).parents[2]
STEPS = 6


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Base:
    """The tiny model as a Base."""
    path = build_tiny_base(tmp_path_factory.mktemp("base"))
    return Base(name="tiny", path=str(path), fingerprint=base_fingerprint(path))


def _config(folder: Path, **learner: Any) -> HoneConfig:
    values = {"lora": {"rank": 4}, "sft_learning_rate": 0.01, "sft_batch": 3, "metrics_port": 0}
    values |= {"schedule": "linear", "decay_steps": 20}
    return HoneConfig.model_validate({"data_dir": folder / "data", "learner": {**values, **learner}})


def _payload(run_id: str, policy: str) -> dict[str, Any]:
    names = {"run_id": run_id, "policy": policy, "algorithm": "sft", "domains": ["words"]}
    return names | {"steps": STEPS, "seed": 3, "start_version": 0}


async def _filled(config: HoneConfig, base: Base) -> Store:
    """A migrated SQLite store with a Base, Policies, a Domain and demonstrations."""
    config.data_dir.mkdir(parents=True)
    await asyncio.to_thread(upgrade, config.database_url)
    opened = await Store.open(config)
    async with opened.transaction() as work:
        await work.bases.put(base)
        for name in (POLICY, FULL_POLICY):
            await work.policies.add(Policy(name=name, base=base.name))
        await work.domains.put(Domain(name="words", kind="text", description="words"))
        await work.tasks.add_many(
            [
                make_task(
                    domain="words",
                    split="warmup",
                    messages=({"role": "user", "content": f"w{index} w{index + 1}"},),
                    verifiers=(VerifierSpec(name="exact"),),
                    demonstration=f"w{index + 2} w{index + 3}",
                )
                for index in range(7)
            ]
        )
    return opened


@dataclass
class Outcome:
    """What three runs left: one undisturbed, one killed four times, one of full weights."""

    folder: Path
    ends: list[list[int]]
    """How the processes of each ended."""
    runs: dict[str, TrainingRun] = field(default_factory=dict)
    checkpoints: dict[str, list[Checkpoint]] = field(default_factory=dict)
    """By Policy, one for each version."""
    kinds: dict[str, list[str]] = field(default_factory=dict)


async def _led(folder: Path, base: Base) -> Outcome:
    config, full = _config(folder), _config(folder, train="full", sft_learning_rate=1e-3)
    store = await _filled(config, base)
    plan = []
    for run_id, policy, settings, points in (
        ("run_whole", POLICY, config, [""]),
        ("run_killed", POLICY, config, ["state_saved", "between_steps", "checkpoint_written", "published", ""]),
        ("run_full", FULL_POLICY, full, [""]),
    ):
        plan.append((settings.model_dump(mode="json"), _payload(run_id, policy), points))
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        str(Path(__file__).with_name("learner_process.py")),
        json.dumps(plan),
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(PROJECT), "OMP_NUM_THREADS": "1"},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    stdout, stderr = await process.communicate()
    assert process.returncode == 0, stderr.decode()
    found = Outcome(folder=folder, ends=json.loads(stdout.decode().splitlines()[-1]))
    async with store.reading() as work:
        for name in ("run_whole", "run_killed", "run_full"):
            found.runs[name] = await work.runs.get(name)
        for policy in (POLICY, FULL_POLICY):
            versions = await work.versions.list(policy)
            found.kinds[policy] = [one.kind for one in versions]
            found.checkpoints[policy] = [await work.checkpoints.for_version(policy, one.version) for one in versions]
    await store.close()
    return found


@pytest.fixture(scope="module")
def outcome(tmp_path_factory: pytest.TempPathFactory, base: Base) -> Outcome:
    """All three runs, led by processes that share what they import: that takes most of the time."""
    return asyncio.run(_led(tmp_path_factory.mktemp("runs"), base))


def _numbers(run: TrainingRun) -> list[tuple[float, float]]:
    return [(step.loss, step.gradient_norm) for step in run.steps]


def test_killed_learners_lead_one_run_to_the_uninterrupted_ones_numbers(outcome) -> None:
    """Killed after a state, between steps, with a checkpoint that no version names, and after publishing."""
    whole, killed = outcome.runs["run_whole"], outcome.runs["run_killed"]
    assert outcome.ends[1] == [-signal.SIGKILL] * 4 + [0]
    assert len(killed.steps) == STEPS
    assert _numbers(killed) == _numbers(whole)
    first, second = outcome.checkpoints[POLICY]
    for checkpoint in (first, second):
        verify_folder(Path(checkpoint.path), checkpoint.checksum)
    adapters = [load_file(Path(one.path) / "adapter_model.safetensors") for one in (first, second)]
    assert all(bool((adapters[0][name] == adapters[1][name]).all()) for name in adapters[0])
    states = outcome.folder / "data" / "runs" / "run_killed" / "resume"
    assert sorted(path.name for path in states.iterdir()) == ["step-000004", "step-000006"]


def test_a_run_of_full_weights_publishes_a_full_version(outcome, base) -> None:
    """The version, its Checkpoint and its folder are what the fleet takes in the Base's place."""
    run, (checkpoint,) = outcome.runs["run_full"], outcome.checkpoints[FULL_POLICY]
    assert run.steps[-1].loss < run.steps[0].loss
    assert outcome.kinds == {POLICY: ["lora", "lora"], FULL_POLICY: ["full"]}
    assert (checkpoint.kind, checkpoint.lora_rank) == ("full", None)
    verify_folder(Path(checkpoint.path), checkpoint.checksum)
    check_full_folder(Path(checkpoint.path), base_path=Path(base.path))
    assert checkpoint.provenance.config["train"] == "full"


async def test_torchrun_starts_a_learner_whose_ranks_share_rows(outcome) -> None:
    """Two ranks of torchrun train as one rank does, with sequence parallel, and end when torchrun is told to."""
    config = _config(outcome.folder, zero_stage=2, sequence_parallel=2)
    store = await Store.open(config)
    job = await store.queue.enqueue("train", _payload("run_two", POLICY), max_attempts=1)
    serving = asyncio.create_task(stub_fleet(store))
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"),
        *("-m", "hone.processes.learner"),
        env=environment_for_child(config, {"PYTHONPATH": str(PROJECT), "OMP_NUM_THREADS": "1"}),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output = asyncio.create_task(process.communicate())
    try:
        while (done := await store.queue.get(job.id)).status in (JobStatus.QUEUED, JobStatus.LEASED):
            assert not output.done(), output.result()[0].decode()
            await asyncio.sleep(0.1)
        process.terminate()
        text = (await output)[0].decode()
    finally:
        if process.returncode is None:
            process.kill()
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)
    assert done.status is JobStatus.DONE, f"{done.error}\n{text}"
    async with store.reading() as work:
        two = _numbers(await work.runs.get("run_two"))
    await store.close()
    one = _numbers(outcome.runs["run_whole"])
    assert [loss for loss, _ in two] == pytest.approx([loss for loss, _ in one], rel=1e-4)
    assert [norm for _, norm in two] == pytest.approx([norm for _, norm in one], rel=1e-4)
