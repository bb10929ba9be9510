"""Engines of the speculation benchmark, launched as the fleet launches them, and asked token by token."""

import asyncio
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from bench.speculation.domains import Prompt
from core.config.schema import HoneConfig
from core.errors import EngineError
from core.policy import Base
from core.variant import Variant
from serving.engines.base import EngineMetrics
from serving.engines.vllm import VllmEngine
from serving.launch import Launch, speculation_of
from serving.launcher import EngineProcess
from serving.ports import free_port
from serving.speculation.drafter_link import drafter_link, point

_SECONDS = 600.0


@dataclass(frozen=True)
class Answer:
    """What an engine said to one prompt."""

    prompt: tuple[int, ...]
    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]


@dataclass(frozen=True)
class Run:
    """Several answers, and what they cost."""

    answers: tuple[Answer, ...]
    seconds: float
    before: EngineMetrics
    after: EngineMetrics

    @property
    def tokens(self) -> int:
        """Sampled tokens."""
        return sum(len(answer.tokens) for answer in self.answers)

    @property
    def tokens_per_second(self) -> float:
        """Sampled tokens of all streams together."""
        return self.tokens / self.seconds


class BenchEngine:
    """One engine process. ``start`` returns when it answers."""

    def __init__(
        self, *, name: str, config: HoneConfig, base: Base, variant: Variant, folder: Path, python_path: str = ""
    ) -> None:
        """``python_path``: a folder with packages that the engine needs beside its environment's."""
        launch = Launch(
            config=config,
            base=base,
            build="cpu",
            port=free_port("127.0.0.1"),
            speculation=speculation_of(config, variant),
        )
        environment = launch.environment()
        if python_path:
            environment["PYTHONPATH"] += f":{python_path}"
        if config.fleet.draft_model and launch.speculation is not None:
            # As the fleet does: the command line names a link, so that the drafter can be another one later.
            point(drafter_link(config, launch.port), Path(config.fleet.draft_model))
        self.name = name
        self.engine = VllmEngine(launch.url, request_seconds=_SECONDS)
        self._base = base.name
        self._process = EngineProcess(
            command=launch.command(), environment=environment, log_path=folder / f"{name}.log"
        )
        self._start_seconds = config.engine.start_timeout_seconds

    async def start(self) -> None:
        """Start and wait. Raises MachineError."""
        await self._process.start()
        while True:
            await self._process.wait_ready(self.engine, timeout_seconds=self._start_seconds, progress=lambda _: None)
            # While the engine still loads, another process may answer on a port that was free a moment ago.
            if self._base in await self.engine.models():
                return
            await asyncio.sleep(1.0)

    async def warm_up(self, prompts: Sequence[tuple[int, ...]]) -> None:
        """Answer a little, alone and together: what is compiled for that, no measurement waits for."""
        for together in (1, len(prompts)):
            await self.answers(prompts, model=self._base, together=together, max_tokens=12)

    async def stop(self) -> None:
        """End the process."""
        await self.engine.close()
        await self._process.stop()

    async def render(self, prompt: Prompt) -> tuple[int, ...]:
        """The prompt's token ids, as the engine writes a conversation."""
        body: dict[str, Any] = {"model": self._base, "messages": list(prompt.messages)}
        if prompt.tools:
            body["tools"] = list(prompt.tools)
        return tuple((await self._post("/v1/chat/completions/render", body))["token_ids"])

    async def answers(
        self,
        prompts: Sequence[tuple[int, ...]],
        *,
        model: str,
        together: int,
        max_tokens: int,
        temperature: float = 0.0,
    ) -> Run:
        """Answer all prompts, ``together`` at a time; a new one begins as soon as one has ended."""
        before = await self.engine.metrics()
        waiting = list(enumerate(prompts))[::-1]
        found: dict[int, Answer] = {}

        async def work() -> None:
            while waiting:
                place, prompt = waiting.pop()
                found[place] = await self._answer(prompt, model, max_tokens, temperature, seed=place)

        started = time.perf_counter()
        await asyncio.gather(*(work() for _ in range(min(together, len(prompts)))))
        seconds = time.perf_counter() - started
        after = await self.engine.metrics()
        return Run(tuple(found[place] for place in sorted(found)), seconds, before, after)

    async def _answer(
        self, prompt: tuple[int, ...], model: str, max_tokens: int, temperature: float, seed: int
    ) -> Answer:
        body = {
            "model": model,
            "prompt": list(prompt),
            "max_tokens": max_tokens,
            "temperature": temperature,
            "seed": seed,
            "logprobs": 0,
            "return_token_ids": True,
        }
        choice = (await self._post("/v1/completions", body))["choices"][0]
        return Answer(prompt, tuple(choice["token_ids"]), tuple(choice["logprobs"]["token_logprobs"]))

    async def _post(self, path: str, body: Mapping[str, Any]) -> Any:
        timeout = aiohttp.ClientTimeout(total=_SECONDS)
        async with (
            aiohttp.ClientSession(timeout=timeout) as session,
            session.post(self.engine.url + path, json=body) as response,
        ):
            if response.status != 200:
                raise EngineError(f"{self.name} answered {response.status}: {(await response.text())[:300]}")
            return await response.json()
