"""WeightControl over vLLM's routes: what is off, refused, failed or dead has an error of its own."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from core.errors import AdapterRejected, EngineError, EngineUnavailable, EngineUnsupported
from serving.engines.fake import FakeEngineServer
from serving.engines.vllm import VllmEngine
from tests.serving_harness import BASE, write_base
from tests.weight_harness import write_full


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[FakeEngineServer]:
    """A fake engine that speculates."""
    write_base(tmp_path / "base")
    async with FakeEngineServer(base_name=BASE, base_path=tmp_path / "base", speculative=True) as server:
        yield server


@pytest.fixture
async def engine(server: FakeEngineServer) -> AsyncIterator[VllmEngine]:
    """Its adapter."""
    engine = VllmEngine(server.url, weights_seconds=5.0)
    yield engine
    await engine.close()


async def test_without_development_routes_nothing_is_supported(server, engine, tmp_path):
    """Each call says what it could not do, and how an engine must be started for it."""
    server.weights.development_routes = False
    calls = [
        engine.pause(),
        engine.resume(),
        engine.paused(),
        engine.load_weights(str(tmp_path / "base"), label="coder@1"),
        engine.clear_caches(),
        engine.weights_label(),
        engine.weight_checksums(),
        engine.load_drafter(str(tmp_path / "base")),
        engine.set_speculation(False),
    ]
    for call in calls:
        with pytest.raises(EngineUnsupported) as caught:
            await call
        assert "VLLM_SERVER_DEV_MODE" in caught.value.hint


async def test_without_the_plugin_drafters_and_speculation_are_unsupported(server, engine, tmp_path):
    """A server that Hone did not launch answers with an error of vLLM's own, which means the same."""
    server.weights.plugin = False
    for call in (engine.load_drafter(str(tmp_path / "base")), engine.set_speculation(True)):
        with pytest.raises(EngineUnsupported) as caught:
            await call
        assert "engine_plugin" in caught.value.hint
    await engine.pause()
    await engine.resume()


@pytest.mark.parametrize("step", ["pause", "resume", "clear", "label", "checksum"])
async def test_a_failed_step_is_an_engine_error_with_its_message(server, engine, tmp_path, step):
    """The engine lives, so it can be asked again, and the second time it works."""
    full = write_full(tmp_path / "full", seed=1)
    server.weights.fail_next[step] = "out of luck"
    calls = {
        "pause": engine.pause,
        "resume": engine.resume,
        "clear": engine.clear_caches,
        "label": lambda: engine.load_weights(str(full), label="coder@1"),
        "checksum": engine.weight_checksums,
    }
    with pytest.raises(EngineError, match="out of luck") as caught:
        await calls[step]()
    assert not isinstance(caught.value, (EngineUnavailable, AdapterRejected))
    await calls[step]()


async def test_a_failed_reload_is_a_rejection(server, engine, tmp_path):
    """What the engine holds then is undefined until good weights were loaded."""
    server.weights.fail_next["reload"] = "disk full"
    with pytest.raises(AdapterRejected, match="disk full"):
        await engine.load_weights(str(write_full(tmp_path / "full", seed=1)), label="coder@1")
    assert server.weights.identity.startswith("broken:")
    await engine.load_weights(str(tmp_path / "base"), label="coder@0")
    assert server.weights.identity == f"base:{BASE}"


async def test_an_engine_that_dies_in_mid_load_is_unavailable(server, engine, tmp_path):
    """Not a rejection: the weights may be good."""
    server.weights.die_next.add("reload")
    with pytest.raises(EngineUnavailable):
        await engine.load_weights(str(write_full(tmp_path / "full", seed=1)), label="coder@1")
    await server.start()
    assert await engine.weights_label() == "default"


async def test_speculation_is_switched_and_the_counters_say_so(server, engine):
    """Off: sampled tokens grow, drafts do not; on: both do."""

    async def drafts_of_a_request() -> tuple[float, float]:
        before = await engine.metrics()
        await engine.generate(BASE, list(range(40, 60)), max_tokens=8)
        after = await engine.metrics()
        return after.drafts - before.drafts, after.output_tokens - before.output_tokens

    await engine.set_speculation(False)
    drafts, tokens = await drafts_of_a_request()
    assert drafts == 0 and tokens > 0
    await engine.set_speculation(True)
    assert sum([(await drafts_of_a_request())[0] for _ in range(4)]) > 0


async def test_a_drafter_is_loaded_by_folder(server, engine, tmp_path):
    """A folder without weights is rejected."""
    full = write_full(tmp_path / "full", seed=1)
    await engine.load_drafter(str(full))
    assert server.weights.drafters == [str(full)]
    with pytest.raises(AdapterRejected):
        await engine.load_drafter(str(tmp_path))
