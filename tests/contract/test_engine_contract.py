"""The engine contract on the fake, and on a real vLLM where its environment is there (``tests/e2e``)."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from serving.engines.fake import FakeEngineServer
from serving.engines.vllm import VllmEngine
from tests.engine_contract import EngineContract, Served
from tests.serving_harness import BASE, write_adapter, write_base


class TestFakeEngine(EngineContract):
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
