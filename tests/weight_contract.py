"""What every engine must do whose weights are replaced while it runs. Subclass the suite and give ``controlled``."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import pytest

from core.errors import AdapterRejected
from serving.engines.base import Engine, WeightControl

PROMPT = [40 + index % 23 for index in range(48)]
"""Three blocks of a prefix cache, and not periodic within one."""


class ControlledEngine(Engine, WeightControl, Protocol):
    """An adapter with both ports."""


@dataclass
class Controlled:
    """An engine under test, which carries the first of ``weights`` when a test begins and is given it back."""

    engine: ControlledEngine
    base: str
    weights: tuple[Path, Path]
    """Two folders of full weights that fit the engine and differ."""
    wrong: Path
    """One that does not fit."""
    long_tokens: int = 24
    """So many tokens take long enough to be paused in."""


async def replace(controlled: Controlled, which: int) -> None:
    """Replace the engine's weights in the order of the hot-swap contract."""
    await controlled.engine.pause()
    await controlled.engine.load_weights(str(controlled.weights[which]), label=f"coder@{which}")
    await controlled.engine.clear_caches()
    await controlled.engine.resume()


@asynccontextmanager
async def given_back(controlled: Controlled) -> AsyncIterator[None]:
    """Whatever happens, the engine carries the first weights again."""
    try:
        yield
    finally:
        await replace(controlled, 0)


async def scored(controlled: Controlled, token_ids: tuple[int, ...]) -> list[float]:
    """Log-probs of tokens after the prompt when all is computed anew."""
    found = await controlled.engine.prompt_logprobs(controlled.base, [*PROMPT, *token_ids])
    return [value for value in found[len(PROMPT) :] if value is not None]


async def in_flight(controlled: Controlled) -> None:
    """Wait until a request is being decoded."""
    async with asyncio.timeout(60):
        while (await controlled.engine.metrics()).running == 0:
            await asyncio.sleep(0.01)


class WeightContract:
    """The port WeightControl, for every adapter and every server that it speaks with."""

    async def test_a_pause_freezes_what_runs_and_holds_what_comes(self, controlled: Controlled) -> None:
        """Requests in flight and new ones wait for ``resume``, then end whole; a second pause is no error."""
        engine, limit = controlled.engine, controlled.long_tokens
        async with given_back(controlled):
            assert not await engine.paused()
            running = asyncio.create_task(engine.generate(controlled.base, PROMPT, max_tokens=limit))
            await in_flight(controlled)
            await engine.pause()
            await engine.pause()
            late = asyncio.create_task(engine.generate(controlled.base, PROMPT[:9], max_tokens=1))
            await asyncio.sleep(0.2)
            assert await engine.paused() and not running.done() and not late.done()
            await engine.resume()
            assert not await engine.paused()
            assert len((await running).token_ids) >= 1 and len((await late).token_ids) == 1

    async def test_new_weights_answer_under_their_label_and_checksums(self, controlled: Controlled) -> None:
        """Other weights have other log-probs, checksums and the label given; the old ones come back exactly."""
        engine = controlled.engine
        async with given_back(controlled):
            await replace(controlled, 0)
            before = await engine.prompt_logprobs(controlled.base, PROMPT)
            sums = await engine.weight_checksums()
            await replace(controlled, 1)
            after = await engine.prompt_logprobs(controlled.base, PROMPT)
            assert await engine.weights_label() == "coder@1"
            assert await engine.weight_checksums() != sums and len(sums) >= 1
            assert after[1:] != pytest.approx(before[1:], abs=1e-3)
            await replace(controlled, 0)
            assert await engine.weight_checksums() == sums
            assert await engine.prompt_logprobs(controlled.base, PROMPT) == pytest.approx(before, abs=1e-3)

    async def test_no_cached_prefix_outlives_its_weights(self, controlled: Controlled) -> None:
        """A prompt that was cached under the old weights is answered as the new weights score it."""
        async with given_back(controlled):
            for _ in range(2):
                await controlled.engine.generate(controlled.base, PROMPT, max_tokens=2)
            await replace(controlled, 1)
            answer = await controlled.engine.generate(controlled.base, PROMPT, max_tokens=4)
            assert answer.logprobs == pytest.approx(await scored(controlled, answer.token_ids), abs=5e-3)

    async def test_a_request_in_flight_goes_on_under_the_new_weights(self, controlled: Controlled) -> None:
        """Tokens after the swap are sampled by the new weights alone, from keys and values of their own."""
        async with given_back(controlled):
            running = asyncio.create_task(
                controlled.engine.generate(controlled.base, PROMPT, max_tokens=controlled.long_tokens)
            )
            await in_flight(controlled)
            await replace(controlled, 1)
            answer = await running
            expected = await scored(controlled, answer.token_ids)
            assert answer.logprobs[-1] == pytest.approx(expected[-1], abs=5e-3)

    async def test_a_folder_that_does_not_fit_is_rejected(self, controlled: Controlled, tmp_path: Path) -> None:
        """Missing and unfitting folders are refused, the engine stays healthy, and good weights repair it."""
        engine = controlled.engine
        before = await engine.prompt_logprobs(controlled.base, PROMPT)
        async with given_back(controlled):
            await engine.pause()
            for folder in (tmp_path / "missing", controlled.wrong):
                with pytest.raises(AdapterRejected):
                    await engine.load_weights(str(folder), label="coder@9")
            assert await engine.health() and await engine.weights_label() != "coder@9"
        assert await engine.prompt_logprobs(controlled.base, PROMPT) == pytest.approx(before, abs=1e-3)
