"""Full-weight swaps on a real vLLM: under streams, exact across the swap, without a trace of old keys and values."""

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from core.config.schema import HoneConfig
from core.ids import CHECKPOINT, RELEASE, new_id
from core.policy import Base, Checkpoint, PolicyVersion, Provenance
from core.release import Release
from core.turn import Turn
from hone.settings import load_settings
from learner.merge import MergeSource, write_merged
from serving.engines.fake_model import probe_for
from serving.engines.vllm import VllmEngine
from serving.fleet import Fleet
from serving.weights.base_model import prepare_base
from serving.weights.folder import folder_checksum
from store.events import POLICIES, VERSIONS
from store.store import Store
from tests.gateway_harness import BASE, POLICY, Harness, hone_headers, running_gateway
from tests.serving_harness import write_adapter

pytestmark = [pytest.mark.engine, pytest.mark.timeout(900)]

START_SECONDS = 400.0
STREAMS = 6
PREFIX = " ".join(f"Rule {number}: always answer in plain words." for number in range(40))
QUESTION = [{"role": "system", "content": PREFIX}, {"role": "user", "content": "Tell me about the sea."}]
SAME_NATS = 2e-3
"""Largest difference of log-probs of the same tokens under the same weights, computed in other batches."""


async def test_full_weights_on_a_real_engine(
    tmp_path: Path, fresh_sqlite_url: str, make_config: Callable[..., HoneConfig], open_store: Any
) -> None:
    """Two swaps of the only replica: no request fails; a Turn that straddles one has two spans and, after it, the
    log-probs of the new weights; a prefix that was cached under the old ones leaves no trace in an answer."""
    overrides = {
        "store.url": fresh_sqlite_url,
        "fleet.variants": ("standard",),
        "fleet.full_weights_policy": POLICY,
        "fleet.first_port": 0,
        "engine.python": load_settings().engine.python,
    }
    config = make_config(overrides | {"base.name": BASE})
    base = prepare_base(config, lambda _: None)
    store = await open_store(fresh_sqlite_url, overrides)
    async with AsyncExitStack() as stack:
        harness = await stack.enter_async_context(running_gateway(store, make_config, overrides))
        async with store.transaction() as unit:
            await unit.bases.put(base)
        fleet = Fleet(config=config, store=store, base=base, registry=CollectorRegistry())
        await fleet.start()
        stack.push_async_callback(fleet.stop)
        for seed in (1, 2):
            await _publish(store, await asyncio.to_thread(_merge, tmp_path, base, seed))
        await fleet.wait_ready(START_SECONDS)
        await harness.gateway.routing.refresh()
        engine = VllmEngine(fleet.deployments[0].url)
        stack.push_async_callback(engine.close)

        turns = await _swapped_under_streams(harness, fleet, store, version=1)
        await _check_straddling(engine, turns)

        first = [await _greedy(harness) for _ in range(2)]
        assert first[1].usage.cached_tokens, "the prefix was not cached, so this shows nothing"
        await _promote(store, fleet, 2)
        await harness.gateway.routing.refresh()
        warm = await _greedy(harness)
        await engine.clear_caches()
        cold = await _greedy(harness)
        assert [span.version for span in warm.policy_spans] == [2]
        assert warm.output_ids == cold.output_ids
        assert _apart(warm.output_logprobs, cold.output_logprobs) <= SAME_NATS
        assert (
            warm.output_ids != first[1].output_ids
            or _apart(warm.output_logprobs, first[1].output_logprobs) > SAME_NATS
        )


def _merge(folder: Path, base: Base, seed: int) -> Checkpoint:
    """A version of full weights that the learner's own code made from a random adapter."""
    adapter = write_adapter(folder / f"adapter-{seed}", Path(base.path), seed=seed, scale=0.06)
    lora = Checkpoint(
        id=new_id(CHECKPOINT),
        policy="lora",
        version=seed,
        kind="lora",
        path=str(adapter),
        checksum=folder_checksum(adapter),
        base_fingerprint=base.fingerprint,
        probe=probe_for(version="v", parent="p", base="b"),
        provenance=Provenance(parent_version=0, code_commit="none", config={}, packages={}, seed=0, step=seed),
    )
    origin = PolicyVersion(policy="lora", version=seed, kind="lora", origin="sft")
    source = MergeSource(base, lora, origin, parent_path=Path(base.path), parent_version=0, episode_ids=())
    return write_merged(source, folder / "merged", POLICY)


async def _publish(store: Store, checkpoint: Checkpoint) -> None:
    async with store.transaction() as unit:
        version = await unit.versions.mint(POLICY, kind="full", origin="sft", parent_version=0)
        await unit.checkpoints.add(checkpoint.model_copy(update={"version": version.version}))
        await unit.releases.add(Release(id=new_id(RELEASE), policy=POLICY, version=version.version))
    await store.events.publish(VERSIONS)


async def _promote(store: Store, fleet: Fleet, version: int) -> None:
    """Give the Policy's name to a version, and wait until the replica carries it."""
    async with store.transaction() as unit:
        policy = await unit.policies.get(POLICY)
        fields = {"promoted_version": version, "previous_version": policy.promoted_version}
        await unit.policies.update(policy.model_copy(update=fields))
    await store.events.publish(POLICIES)
    async with asyncio.timeout(60.0):
        while True:
            (deployment,) = fleet.deployments
            carried = deployment.weights is not None and deployment.weights.version == version
            if carried and deployment.status == "ready":
                return
            assert not any(swap.outcome == "rolled_back" for swap in deployment.swaps), deployment.swaps
            await asyncio.sleep(0.05)


async def _swapped_under_streams(harness: Harness, fleet: Fleet, store: Store, *, version: int) -> list[Turn]:
    """The Turns of streams that were open, and of requests that were sent, while the replica was swapped."""

    async def ask(tokens: int, *, stream: bool) -> Turn:
        fields: dict[str, Any] = {"model": POLICY, "max_tokens": tokens, "stream": stream, "ignore_eos": True}
        fields["messages"] = [{"role": "user", "content": "Tell me a long story about a fox."}]
        response = await harness.post("/v1/chat/completions", fields, "trainer")
        body = await response.text()
        assert response.status == 200, body
        assert "hone_weight_versions" not in body
        assert not stream or body.rstrip().endswith("data: [DONE]")
        (turn,) = await harness.turns(hone_headers(response)["episode-id"])
        return turn

    async def ask_later(seconds: float) -> Turn:
        await asyncio.sleep(seconds)
        return await ask(8, stream=False)

    open_streams = [asyncio.create_task(ask(96, stream=number % 2 == 0)) for number in range(STREAMS)]
    await asyncio.sleep(2.0)
    late = [asyncio.create_task(ask_later(0.3 * number)) for number in range(6)]
    await _promote(store, fleet, version)
    return list(await asyncio.gather(*open_streams, *late))


async def _check_straddling(engine: VllmEngine, turns: list[Turn]) -> None:
    """After the swap the log-probs of a straddling Turn are those of the new weights on its whole prefix."""
    straddling = [turn for turn in turns if [span.version for span in turn.policy_spans] == [0, 1]]
    assert straddling, [turn.policy_spans for turn in turns]
    for turn in straddling[:2]:
        start = turn.policy_spans[1].first_token
        assert 0 < start < len(turn.output_ids)
        scored = await engine.prompt_logprobs(BASE, [*turn.prompt_ids, *turn.output_ids])
        now = [value for value in scored[len(turn.prompt_ids) :] if value is not None]
        assert _apart(now[start:], turn.output_logprobs[start:]) <= SAME_NATS
        assert _apart(now[:start], turn.output_logprobs[:start]) > 10 * SAME_NATS


async def _greedy(harness: Harness) -> Turn:
    """One answer to the question with the long prefix."""
    body = {"model": POLICY, "messages": QUESTION, "max_tokens": 12, "temperature": 0, "ignore_eos": True}
    response = await harness.post("/v1/chat/completions", body, "trainer")
    assert response.status == 200, await response.text()
    (turn,) = await harness.turns(hone_headers(response)["episode-id"])
    return turn


def _apart(one: Any, other: Any) -> float:
    return max(abs(a - b) for a, b in zip(one, other, strict=True))
