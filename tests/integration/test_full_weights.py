"""Full-weight swaps under load: gateway, fleet and fake engines on a real store."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from openai import APIStatusError, AsyncOpenAI
from prometheus_client import CollectorRegistry

from core.config.schema import HoneConfig
from core.deployment import Deployment, DeploymentStatus
from core.errors import EngineUnavailable, EngineUnsupported, HoneError, StoreError
from core.policy import PolicySpan, ServingStatus
from core.turn import Turn
from serving.engines.fake import FakeEngineServer
from serving.engines.vllm import VllmEngine
from serving.fleet import Fleet
from serving.full_reconciler import FullReconciler
from store.store import Store
from tests.full_harness import BASE, POLICY, FullPublisher, full_base, full_probe
from tests.gateway_harness import Harness, hone_headers, running_gateway

PATIENCE = 60.0
"""Longest wait in seconds; generous, because machines that run tests are busy."""
TOKEN_SECONDS = 0.01
QUESTION: list[Any] = [{"role": "user", "content": "Say something long about the sea."}]


@dataclass
class World:
    """A gateway and a fleet whose replicas carry full weights."""

    harness: Harness
    publisher: FullPublisher
    engines: list[FakeEngineServer]
    config: HoneConfig
    store: Store
    fleet: Fleet
    failures: list[Exception] = field(default_factory=list)
    episodes: list[str] = field(default_factory=list)
    """Of the requests under load, in the order of their answers."""

    async def until(self, condition: Callable[[], Any]) -> None:
        """Wait until an async or plain condition holds."""
        async with asyncio.timeout(PATIENCE):
            while True:
                value = condition()
                if asyncio.iscoroutine(value):
                    value = await value
                if value:
                    return
                await asyncio.sleep(0.02)

    async def deployments(self) -> list[Deployment]:
        """The replicas as others see them, in order."""
        async with self.store.reading() as unit:
            return sorted(await unit.deployments.list(), key=lambda one: one.replica)

    async def carried(self) -> list[int | None]:
        """The version of each ready replica; None: it is closed."""
        return [
            (0 if one.weights is None else one.weights.version) if one.status is DeploymentStatus.READY else None
            for one in await self.deployments()
        ]

    async def until_carried(self, *versions: int) -> None:
        """Wait until the replicas carry these versions and the gateway knows it."""

        async def reached() -> bool:
            return await self.carried() == list(versions)

        await self.until(reached)
        await self.harness.gateway.routing.refresh()

    async def until_serving(self, number: int, status: ServingStatus) -> None:
        """Wait until a version has a serving status."""

        async def reached() -> bool:
            return (await self.publisher.version(number)).serving is status

        await self.until(reached)

    @asynccontextmanager
    async def load(self, streams: int = 6) -> AsyncIterator[None]:
        """Streams and whole answers, one after the other on each line, while the block runs; failures are kept."""
        ending = asyncio.Event()
        async with self.harness.client("trainer") as client:
            lines = [asyncio.create_task(self._line(client, ending, number)) for number in range(streams)]
            try:
                yield
            finally:
                ending.set()
                await asyncio.gather(*lines)

    async def _line(self, client: AsyncOpenAI, ending: asyncio.Event, number: int) -> None:
        count = 0
        while not ending.is_set():
            count += 1
            fields = {"model": POLICY, "messages": QUESTION, "max_tokens": 24, "seed": 100 * number + count}
            fields["extra_body"] = {"ignore_eos": True}
            try:
                if number % 3 == 2:
                    answer = await client.chat.completions.with_raw_response.create(**fields)
                    assert answer.parse().kv_transfer_params is None  # type: ignore[attr-defined]
                else:
                    answer = await client.chat.completions.with_raw_response.create(**fields, stream=True)
                    chunks = [chunk async for chunk in answer.parse()]
                    assert all(chunk.choices for chunk in chunks)
                self.episodes.append(answer.headers["x-hone-episode-id"])
            except Exception as error:
                self.failures.append(error)

    async def turns(self) -> list[Turn]:
        """All Turns of the load."""
        return [turn for episode in self.episodes for turn in await self.harness.turns(episode)]


@asynccontextmanager
async def _world(
    replicas: int, tmp_path: Path, url: str, make_config: Callable[..., HoneConfig], open_store: Any
) -> AsyncIterator[World]:
    base = full_base(tmp_path / "base")
    async with AsyncExitStack() as stack:
        engines = []
        for _ in range(replicas):
            server = FakeEngineServer(base_name=BASE, base_path=Path(base.path))
            server.token_delay_seconds = TOKEN_SECONDS
            engines.append(await stack.enter_async_context(server))
        overrides = {
            "store.url": url,
            "base.name": BASE,
            "fleet.variants": ("standard",),
            "fleet.attach": {"standard": ",".join(server.url for server in engines)},
            "fleet.full_weights_policy": POLICY,
            "fleet.reconcile_seconds": 0.05,
            "gateway.routing_refresh_seconds": 0.05,
            "engine.dtype": "float32",
        }
        config = make_config(overrides)
        store = await open_store(url, overrides)
        harness = await stack.enter_async_context(running_gateway(store, make_config, overrides))
        publisher = FullPublisher(store, base, tmp_path)
        await publisher.start()
        fleet = Fleet(config=config, store=store, base=base, registry=CollectorRegistry())
        await fleet.start()
        stack.push_async_callback(fleet.stop)
        await fleet.wait_ready(PATIENCE)
        await harness.gateway.routing.refresh()
        yield World(harness, publisher, engines, config, store, fleet)


@pytest.fixture
async def single(
    tmp_path: Path, fresh_sqlite_url: str, make_config: Callable[..., HoneConfig], open_store: Any
) -> AsyncIterator[World]:
    """One replica."""
    async with _world(1, tmp_path, fresh_sqlite_url, make_config, open_store) as world:
        yield world


@pytest.fixture
async def pair(
    tmp_path: Path, fresh_sqlite_url: str, make_config: Callable[..., HoneConfig], open_store: Any
) -> AsyncIterator[World]:
    """Two replicas."""
    async with _world(2, tmp_path, fresh_sqlite_url, make_config, open_store) as world:
        yield world


def _spans(turns: list[Turn]) -> Counter[tuple[int, ...]]:
    return Counter(tuple(span.version for span in turn.policy_spans) for turn in turns)


async def test_no_request_fails_while_the_only_replica_is_swapped(single: World) -> None:
    """Requests wait for the swap or straddle it, none fails, and every Turn says which version sampled its tokens."""
    await single.publisher.publish()
    await single.publisher.publish()
    async with single.load():
        await asyncio.sleep(0.3)
        await single.publisher.promote(1)
        await single.until_carried(1)
        await single.publisher.promote(2)
        await single.until_carried(2)
        await asyncio.sleep(0.3)
    assert single.failures == []
    turns = await single.turns()
    assert len(turns) == len(single.episodes)
    spans = _spans(turns)
    assert spans[(0, 1)] + spans[(1, 2)] + spans[(0, 1, 2)] > 0, spans
    assert spans[(2,)] > 0, spans
    for turn in turns:
        assert turn.policy_spans[0].first_token == 0
        assert all(span.first_token < len(turn.output_ids) for span in turn.policy_spans)
    assert any(turn.trainable for turn in turns)


async def test_two_replicas_swap_one_after_the_other(pair: World) -> None:
    """While one replica is closed the other answers: nothing fails, and nothing had to wait."""
    await pair.publisher.publish()
    await pair.until_carried(0, 1)
    async with pair.load():
        await asyncio.sleep(0.2)
        await pair.publisher.promote(1)
        await pair.until_carried(1, 1)
        await asyncio.sleep(0.2)
    assert pair.failures == []
    assert pair.harness.count("hone_swap_waits_total") == 0
    assert _spans(await pair.turns())[(1,)] > 0


async def test_a_candidate_is_tried_on_one_replica_and_answers_only_by_number(pair: World) -> None:
    """With two replicas a new version becomes live on one of them, without getting the Policy's traffic."""
    await pair.publisher.publish()
    await pair.until_serving(1, ServingStatus.LIVE)
    await pair.until_carried(0, 1)
    async with pair.harness.client() as client:
        for _ in range(4):
            plain = await client.chat.completions.with_raw_response.create(model=POLICY, messages=QUESTION)
            assert plain.headers["x-hone-policy-version"] == "0"
        asked = await client.chat.completions.with_raw_response.create(model=f"{POLICY}@1", messages=QUESTION)
        assert asked.headers["x-hone-policy-version"] == "1"
        assert asked.parse().model == f"{POLICY}@1"


async def test_other_models_are_refused_with_the_reason(single: World) -> None:
    """The Base's name and a version that is not carried are 409s that say whose weights answer here."""
    await single.publisher.publish()
    await single.harness.gateway.routing.refresh()
    async with single.harness.client() as client:
        for name, reason in ((BASE, "serve nothing else"), (f"{POLICY}@1", "one version of full weights at a time")):
            with pytest.raises(APIStatusError) as caught:
                await client.chat.completions.create(model=name, messages=QUESTION)
            assert caught.value.status_code == 409
            assert reason in str(caught.value)


async def test_a_failed_probe_is_rolled_back_and_what_it_sampled_never_trains(single: World) -> None:
    """A promoted version that fails its probe gives way to the one before, its promotion is taken back, and no
    request fails; tokens sampled between the swap and the rollback are marked untrainable."""
    await single.publisher.publish()
    await single.publisher.promote(1)
    await single.until_carried(1)
    await single.publisher.publish(probe=full_probe(single.publisher.path(1)))
    # The engine goes on while it is asked to pause for the rollback.
    single.engines[0].weights.delay_seconds["pause"] = 0.2
    single.engines[0].token_delay_seconds = 0.05
    async with single.load():
        await asyncio.sleep(0.2)
        await single.publisher.promote(2)
        await single.until_serving(2, ServingStatus.REFUSED)
        await single.until_carried(1)
        await asyncio.sleep(0.3)
    assert single.failures == []
    assert (await single.publisher.policy()).promoted_version == 1
    turns = await single.turns()
    straddling = [turn for turn in turns if 2 in {span.version for span in turn.policy_spans}]
    assert straddling
    assert not any(turn.trainable for turn in straddling)
    response = await single.harness.post(
        "/v1/chat/completions", {"model": POLICY, "messages": QUESTION, "max_tokens": 4}, "trainer"
    )
    (turn,) = await single.harness.turns(hone_headers(response)["episode-id"])
    assert turn.trainable
    outcomes = [swap.outcome for swap in (await single.deployments())[0].swaps]
    assert outcomes[-1] == "rolled_back"


async def test_a_folder_that_does_not_fit_never_closes_a_replica(pair: World) -> None:
    """What can be seen from the files is refused before any engine is touched."""
    version = await pair.publisher.publish()
    await pair.until_serving(1, ServingStatus.LIVE)
    async with pair.store.transaction() as unit:
        minted = await unit.versions.mint(POLICY, kind="full", origin="sft", parent_version=version.version)
        checkpoint = await unit.checkpoints.for_version(POLICY, 1)
        broken = {"id": "ckp_broken", "version": minted.version, "checksum": "0" * 64}
        await unit.checkpoints.add(checkpoint.model_copy(update=broken))
    steps = [len(server.weights.loaded) for server in pair.engines]
    await pair.until_serving(2, ServingStatus.REFUSED)
    assert [len(server.weights.loaded) for server in pair.engines] == steps
    assert "checksum" in ((await pair.publisher.version(2)).serving_reason or "")


async def test_an_engine_that_dies_in_mid_swap_comes_back_with_the_version(pair: World) -> None:
    """The other replica answers meanwhile; the dead one, started anew with the Base, is brought to its version."""
    dying = pair.engines[0]
    await pair.publisher.publish()
    await pair.until_carried(0, 1)
    dying.weights.die_next.add("reload")
    async with pair.load(2):
        await pair.publisher.promote(1)
        await pair.until(lambda: not dying.weights.die_next)
        await asyncio.sleep(0.3)
        await dying.start()
        await pair.until_carried(1, 1)
    assert dying.weights.label == f"{POLICY}@1"
    # Streams that were frozen on the engine when it died broke with it; nothing after that.
    assert len(pair.failures) <= 2


async def test_the_only_live_replica_is_never_taken_for_a_candidate(pair: World) -> None:
    """With one of two engines away the other has the promoted version; the candidate waits until there are two."""
    await pair.publisher.publish()
    await pair.until_carried(0, 1)
    away = pair.engines[0]
    await away.stop()

    async def alone() -> bool:
        return await pair.carried() == [None, 0]

    await pair.until(alone)
    await pair.until_serving(1, ServingStatus.WANTED)
    await pair.publisher.publish()
    await asyncio.sleep(0.5)
    assert await alone()
    await pair.harness.gateway.routing.refresh()
    assert (await pair.harness.post("/v1/chat/completions", {"model": POLICY, "messages": QUESTION})).status == 200
    await away.start()
    await pair.until_carried(0, 2)


async def test_a_candidate_waits_while_the_other_replica_does_not_open(pair: World) -> None:
    """A replica that is reachable but cannot be opened does not let the one that answers go."""
    away = pair.engines[0]
    await away.stop()

    async def lost() -> bool:
        return (await pair.deployments())[0].status is DeploymentStatus.UNHEALTHY

    await pair.until(lost)
    away.weights.delay_seconds["pause"] = 0.05
    away.weights.development_routes = False
    await away.start()
    await pair.publisher.publish()
    await asyncio.sleep(1.0)
    assert await pair.carried() == [None, 0]
    away.weights.development_routes = True
    await pair.until_carried(0, 1)


@pytest.mark.parametrize(
    "error",
    [StoreError("stale handle"), EngineUnavailable("away"), EngineUnsupported("not so")],
    ids=lambda e: e.code,
)
async def test_passing_faults_never_refuse_a_version(
    single: World, monkeypatch: pytest.MonkeyPatch, error: HoneError
) -> None:
    """However often a folder cannot be read, or the engine of one life is away, the version is taken in the end."""
    assert isinstance(single.fleet._reconciler, FullReconciler)
    swap, failures = single.fleet._reconciler._swap, [error] * 5
    owner: Any = swap._checksums if isinstance(error, StoreError) else swap
    name = "expected" if isinstance(error, StoreError) else "_apply"
    step = getattr(owner, name)

    async def failing(*args: Any) -> Any:
        if failures and args[-1].version == 1:
            raise failures.pop()
        return await step(*args)

    monkeypatch.setattr(owner, name, failing)
    await single.publisher.publish()
    await single.publisher.promote(1)
    await single.until_carried(1)
    await single.until_serving(1, ServingStatus.LIVE)
    assert failures == []


async def test_an_engine_that_was_restarted_behind_the_fleets_back_is_closed_and_mended(single: World) -> None:
    """A replica whose engine holds other weights than recorded answers nothing until it is right again."""
    await single.publisher.publish()
    await single.publisher.promote(1)
    await single.until_carried(1)
    loads = len(single.engines[0].weights.loaded)
    single.engines[0].weights.restart()
    await single.until(lambda: len(single.engines[0].weights.loaded) > loads)
    await single.until_carried(1)
    assert single.engines[0].weights.label == f"{POLICY}@1"


async def test_a_fleet_that_follows_a_killed_one_finishes_the_swap(single: World) -> None:
    """A replica that was left closed, its engine paused between two versions, is opened by the next fleet."""
    await single.publisher.publish()
    await single.fleet.abandon()
    engine = VllmEngine(single.engines[0].url)
    (deployment,) = await single.deployments()
    async with single.store.transaction() as unit:
        await unit.deployments.put(deployment.model_copy(update={"status": DeploymentStatus.SWAPPING}))
    await engine.pause()
    await engine.load_weights(str(single.publisher.path(1)), label=f"{POLICY}@1")
    await engine.close()
    await single.publisher.promote(1)
    fleet = Fleet(
        config=single.config,
        store=single.store,
        base=single.publisher.base,
        registry=CollectorRegistry(),
    )
    await fleet.start()
    try:
        await fleet.wait_ready(PATIENCE)
        assert not single.engines[0].weights.paused
        assert fleet.deployments[0].weights is not None
        assert fleet.deployments[0].weights.version == 1
    finally:
        await fleet.stop()


async def test_without_the_plugin_a_straddling_turn_never_trains(single: World) -> None:
    """Where the engine does not say which weights sampled which token, a Turn that saw a swap is not trainable."""
    single.engines[0].weights.plugin = False
    single.engines[0].token_delay_seconds = 0.05
    await single.publisher.publish()
    asking = asyncio.create_task(
        single.harness.post(
            "/v1/chat/completions",
            {"model": POLICY, "messages": QUESTION, "max_tokens": 40, "ignore_eos": True},
            "trainer",
        )
    )
    await single.until(lambda: single.engines[0].running)
    await single.publisher.promote(1)
    response = await asking
    assert response.status == 200
    (turn,) = await single.harness.turns(hone_headers(response)["episode-id"])
    assert not turn.trainable
    await single.until_carried(1)
    response = await single.harness.post(
        "/v1/chat/completions", {"model": POLICY, "messages": QUESTION, "max_tokens": 4}, "trainer"
    )
    (turn,) = await single.harness.turns(hone_headers(response)["episode-id"])
    assert turn.trainable
    assert turn.policy_spans == (PolicySpan(version=1),)


async def test_stale_keys_and_values_would_show(single: World) -> None:
    """An engine that keeps keys and values of the version before answers otherwise than the new one: the check that
    the caches were cleared can fail."""
    prompt = {"model": POLICY, "messages": QUESTION, "max_tokens": 8, "temperature": 0, "logprobs": True}
    await single.publisher.publish()
    await single.publisher.publish()
    logprobs = []
    for keep_stale, version in ((False, 1), (True, 2)):
        single.engines[0].weights.keep_stale = keep_stale
        await single.publisher.promote(version)
        await single.until_carried(version)
        answers = [await single.harness.post("/v1/chat/completions", prompt) for _ in range(2)]
        logprobs.append([await _logprobs(answer) for answer in answers])
    single.engines[0].weights.keep_stale = False
    engine = VllmEngine(single.engines[0].url)
    await engine.clear_caches()
    await engine.close()
    cold = await _logprobs(await single.harness.post("/v1/chat/completions", prompt))
    assert logprobs[1][0] != cold
    assert logprobs[0][0] != cold


async def _logprobs(response: Any) -> list[float]:
    body = await response.json()
    return [entry["logprob"] for entry in body["choices"][0]["logprobs"]["content"]]
