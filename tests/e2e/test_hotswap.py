"""Hot-swap of LoRA versions on live vLLM engines: nothing fails, nothing is mislabelled, nothing wrong goes live."""

import asyncio
import shutil
from collections import Counter
from pathlib import Path

import pytest

from core.ids import CHECKPOINT, new_id
from core.policy import Checkpoint, PolicyVersion, ServingStatus
from hone.opened_store import opened_store
from serving.engines.vllm import VllmEngine
from serving.weights.folder import folder_checksum
from store.events import VERSIONS
from tests.e2e.conftest import POLICY, Stack

pytestmark = [pytest.mark.engine, pytest.mark.timeout(900)]

QUESTION = [{"role": "user", "content": 'What is the first letter of "window"?'}]


async def checkpoint_of(stack: Stack, version: int) -> Checkpoint:
    """The Checkpoint of a version of the Policy."""
    async with opened_store(stack.config) as store, store.reading() as tx:
        return await tx.checkpoints.for_version(POLICY, version)


async def publish(stack: Stack, checkpoint: Checkpoint, folder: Path, *, checksum: str | None = None) -> int:
    """Publish a folder with another Checkpoint's Probe, as a broken or malicious publisher would."""
    fields = {
        "id": new_id(CHECKPOINT),
        "path": str(folder),
        "checksum": checksum or folder_checksum(folder),
    }
    async with opened_store(stack.config) as store:
        async with store.transaction() as tx:
            version = await tx.versions.mint(
                POLICY, kind="lora", origin="imported", parent_version=0, checkpoint_id=fields["id"]
            )
            await tx.checkpoints.add(checkpoint.model_copy(update={**fields, "version": version.version}))
        await store.events.publish(VERSIONS)
    return version.version


async def answered(stack: Stack, model: str) -> str:
    """The version that answers under a name."""
    async with stack.client() as client:
        raw = await client.chat.completions.with_raw_response.create(model=model, messages=QUESTION, max_tokens=4)
        return raw.headers["x-hone-policy-version"]


async def test_swaps_under_load_fail_no_request_and_label_every_turn(stack: Stack, trained: PolicyVersion):
    """While versions are trained, swapped in and promoted, every request is answered, and each Turn's log-probs
    are those of the version that it names."""
    stop, outcomes, turns = asyncio.Event(), Counter(), []

    async def load(client) -> None:
        while not stop.is_set():
            raw = await client.chat.completions.with_raw_response.create(
                model=POLICY, messages=QUESTION, max_tokens=8, temperature=1.0
            )
            outcomes[raw.http_response.status_code] += 1
            turns.append((raw.headers["x-hone-turn-id"], int(raw.headers["x-hone-policy-version"])))

    promoted = []
    async with stack.client() as client:
        users = [asyncio.create_task(load(client)) for _ in range(6)]
        for seed in (11, 12, 13):
            version = await stack.warm_up(POLICY, seed=seed)
            assert version.serving is ServingStatus.LIVE, version.serving_reason
            assert version.swap_seconds is not None
            await stack.pin(version)
            with stack.admin() as admin:
                body = {"version": version.version, "reason": "test", "skip": ["evaluation"]}
                admin.post(f"/policies/{POLICY}/promote", body)
            promoted.append(version.version)
            await asyncio.sleep(2.0)
        stop.set()
        await asyncio.gather(*users)
    assert set(outcomes) == {200}
    seen = {version for _, version in turns}
    assert set(promoted) <= seen
    await _labels_are_true(stack, turns, promoted)


async def _labels_are_true(stack: Stack, turns: list[tuple[str, int]], versions: list[int]) -> None:
    """Re-score some Turns of each version on the engine: the named version gives the recorded log-probs."""
    engine = VllmEngine(stack.engines["standard"])
    try:
        for version in versions:
            chosen = [turn_id for turn_id, named in turns if named == version][-3:]
            async with opened_store(stack.config) as store, store.reading() as tx:
                records = [await tx.turns.get(turn_id) for turn_id in chosen]
                deployments = await tx.deployments.list()
            holder = next(item for item in deployments if item.url == stack.engines["standard"])
            loaded = holder.holding(POLICY, version)
            assert loaded is not None
            for record in records:
                assert record.version == version
                scored = await engine.prompt_logprobs(loaded.engine_model, [*record.prompt_ids, *record.output_ids])
                got = scored[len(record.prompt_ids) :]
                assert list(record.output_logprobs) == pytest.approx(got, abs=5e-3)
    finally:
        await engine.close()


async def test_a_wrong_adapter_under_a_right_name_is_refused(stack: Stack, trained: PolicyVersion):
    """The Probe tells another adapter from the one that was published; the old version goes on answering."""
    before = await answered(stack, POLICY)
    own = await checkpoint_of(stack, trained.version)
    other = await stack.warm_up(POLICY, seed=21, steps=3)
    wrong_folder = Path((await checkpoint_of(stack, other.version)).path)
    refused = await stack.served(POLICY, await publish(stack, own, wrong_folder))
    assert refused.serving is ServingStatus.REFUSED
    assert "probe" in (refused.serving_reason or "").lower()
    assert await answered(stack, POLICY) == before
    assert await answered(stack, f"{POLICY}@{trained.version}") == str(trained.version)


async def test_a_corrupt_adapter_never_reaches_an_engine(
    stack: Stack, trained: PolicyVersion, checkpoint_folder: Path, tmp_path: Path
):
    """A folder whose bytes changed after it was published is refused by its checksum."""
    before = await answered(stack, POLICY)
    own = await checkpoint_of(stack, trained.version)
    damaged = tmp_path / "damaged"
    shutil.copytree(checkpoint_folder, damaged)
    weights = damaged / "adapter_model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-64:] = bytes(64)
    weights.write_bytes(bytes(data))
    version = await stack.served(POLICY, await publish(stack, own, damaged, checksum=own.checksum))
    assert version.serving is ServingStatus.REFUSED
    assert "checksum" in (version.serving_reason or "").lower()
    assert await answered(stack, POLICY) == before


async def test_rollback_goes_back_at_once(stack: Stack, trained: PolicyVersion):
    """After a rollback the next request is answered by the version before."""
    with stack.admin() as admin:
        body = {"version": trained.version, "reason": "test", "skip": ["evaluation"]}
        if admin.get(f"/policies/{POLICY}")["policy"]["promoted_version"] != trained.version:
            admin.post(f"/policies/{POLICY}/promote", body)
        previous = admin.get(f"/policies/{POLICY}")["policy"]["previous_version"]
    assert await answered(stack, POLICY) == str(trained.version)
    with stack.admin() as admin:
        admin.post(f"/policies/{POLICY}/rollback", {"reason": "test"})
    assert await answered(stack, POLICY) == str(previous)
    assert await answered(stack, f"{POLICY}-fast") == str(previous)
