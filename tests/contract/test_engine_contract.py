"""The engine contracts on the fake vLLM and on the stand-in for SGLang; a real vLLM has them in ``tests/e2e``."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from serving.engines.fake import FakeEngineServer
from serving.engines.fake_sglang import FakeSglangServer
from serving.engines.sglang import SglangEngine
from serving.engines.vllm import VllmEngine
from tests.engine_contract import EngineContract, Served, VllmAnswersContract
from tests.serving_harness import BASE, write_adapter, write_base
from tests.weight_contract import Controlled, WeightContract, in_flight
from tests.weight_harness import write_full


class TestFakeEngine(EngineContract, VllmAnswersContract):
    """The fake answers as vLLM does."""

    @pytest.fixture
    async def served(self, tmp_path: Path) -> AsyncIterator[Served]:
        """A fresh fake engine and two adapters."""
        base = write_base(tmp_path / "base")
        adapters = [write_adapter(tmp_path / f"adapter-{seed}", Path(base.path), seed=seed) for seed in (1, 2)]
        async with FakeEngineServer(base_name=BASE, speculative=True) as server:
            server.token_delay_seconds = 0.001
            engine = VllmEngine(server.url)
            yield Served(engine=engine, base=BASE, adapters=(adapters[0], adapters[1]))
            await engine.close()


class TestSglangStandIn(EngineContract):
    """The SGLang adapter against a server of SGLang's forms."""

    @pytest.fixture
    async def served(self, tmp_path: Path) -> AsyncIterator[Served]:
        """A fresh stand-in and two adapters."""
        base = write_base(tmp_path / "base")
        adapters = [write_adapter(tmp_path / f"adapter-{seed}", Path(base.path), seed=seed) for seed in (1, 2)]
        async with FakeSglangServer(base_name=BASE) as server:
            engine = SglangEngine(server.url)
            yield Served(engine=engine, base=BASE, adapters=(adapters[0], adapters[1]))
            await engine.close()


def _folders(folder: Path) -> tuple[Path, Path, Path]:
    base = write_base(folder / "base")
    return Path(base.path), write_full(folder / "full", seed=1), write_full(folder / "wrong", seed=2, hidden=4)


class TestFakeVllmWeights(WeightContract):
    """The fake replaces its weights as vLLM does."""

    @pytest.fixture
    async def server(self, tmp_path: Path) -> AsyncIterator[FakeEngineServer]:
        """A fresh fake engine with a slow token."""
        async with FakeEngineServer(base_name=BASE, base_path=tmp_path / "base") as server:
            server.token_delay_seconds = 0.01
            yield server

    @pytest.fixture
    async def controlled(self, server: FakeEngineServer, tmp_path: Path) -> AsyncIterator[Controlled]:
        """It, with weights that fit and weights that do not."""
        base, full, wrong = _folders(tmp_path)
        engine = VllmEngine(server.url)
        yield Controlled(engine=engine, base=BASE, weights=(base, full), wrong=wrong)
        await engine.close()

    async def test_stale_keys_and_values_are_caught(self, server: FakeEngineServer, controlled: Controlled) -> None:
        """The suite's tests of caches fail for an engine that says it cleared them and did not."""
        server.weights.keep_stale = True
        with pytest.raises(AssertionError):
            await self.test_no_cached_prefix_outlives_its_weights(controlled)
        with pytest.raises(AssertionError):
            await self.test_a_request_in_flight_goes_on_under_the_new_weights(controlled)
        server.weights.keep_stale = False
        await controlled.engine.clear_caches()
        await self.test_no_cached_prefix_outlives_its_weights(controlled)


class TestSglangStandInWeights(WeightContract):
    """The SGLang adapter replaces the weights of a server of SGLang's forms."""

    @pytest.fixture
    async def controlled(self, tmp_path: Path) -> AsyncIterator[Controlled]:
        """A fresh stand-in with a slow token; it takes any shapes, so the wrong folder is one without weights."""
        base, full, _ = _folders(tmp_path)
        (tmp_path / "empty").mkdir()
        async with FakeSglangServer(base_name=BASE) as server:
            server.token_delay_seconds = 0.01
            engine = SglangEngine(server.url, base=BASE)
            await engine.load_weights(str(base), label="coder@0")
            yield Controlled(engine=engine, base=BASE, weights=(base, full), wrong=tmp_path / "empty")
            await engine.close()


async def test_in_flight_is_what_the_engine_says(tmp_path: Path) -> None:
    """The suites' own waiting ends when a request is decoded, and not before there is one."""
    async with FakeEngineServer(base_name=BASE) as server:
        engine = VllmEngine(server.url)
        controlled = Controlled(engine=engine, base=BASE, weights=(tmp_path, tmp_path), wrong=tmp_path)
        server.running = 1
        await in_flight(controlled)
        await engine.close()
