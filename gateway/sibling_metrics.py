"""One view of the metrics of all gateway processes that share a port.

A scrape reaches any one of them. Each writes its own metrics to a file every second; whoever is asked reads the
others' and tells them apart by the label ``gateway_process``.
"""

import asyncio
import contextlib
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

import structlog
from prometheus_client import CollectorRegistry, Metric, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

log = structlog.get_logger(__name__)

WRITE_SECONDS = 1.0
_STALE_SECONDS = 10.0
_SUFFIX = ".prom"
_LABEL = "gateway_process"


class SiblingMetrics:
    """The metrics of process number ``index`` and of its siblings, which write into the same ``folder``."""

    def __init__(self, *, folder: Path, index: int, registry: CollectorRegistry) -> None:
        self._folder = folder
        self._path = folder / f"{index}{_SUFFIX}"
        self._registry = registry
        self._task: asyncio.Task[None] | None = None
        self._stopping = asyncio.Event()

    async def start(self) -> None:
        """Write from now on."""
        await asyncio.to_thread(self._folder.mkdir, parents=True, exist_ok=True)
        self._stopping.clear()
        self._task = asyncio.create_task(self._run(), name="sibling metrics")

    async def stop(self) -> None:
        """Write no more, and take the file away."""
        if self._task is None:
            return
        # Not cancelled: a write that is under way in its thread would put the file back after it was taken away.
        self._stopping.set()
        await self._task
        self._task = None
        await asyncio.to_thread(self._path.unlink, missing_ok=True)

    async def text(self) -> bytes:
        """All processes' metrics in Prometheus' text format; this one's are of this moment."""
        texts = await asyncio.to_thread(self._read_siblings)
        texts[self._path.stem] = generate_latest(self._registry).decode()
        return merge(texts)

    async def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                await asyncio.to_thread(self._write, generate_latest(self._registry))
            except OSError as error:
                log.warning("metrics_not_written", error=str(error))
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), WRITE_SECONDS)

    def _write(self, text: bytes) -> None:
        fresh = self._path.with_suffix(".new")
        fresh.write_bytes(text)
        fresh.replace(self._path)

    def _read_siblings(self) -> dict[str, str]:
        texts = {}
        oldest = time.time() - _STALE_SECONDS
        for path in self._folder.glob(f"*{_SUFFIX}"):
            try:
                if path != self._path and path.stat().st_mtime >= oldest:
                    texts[path.stem] = path.read_text()
            except OSError as error:
                log.debug("metrics_not_read", path=path.name, error=str(error))
        return texts


def merge(texts: Mapping[str, str]) -> bytes:
    """Process → its metrics in Prometheus' text format; the same with every sample labelled by its process."""
    families: dict[str, Metric] = {}
    for process in sorted(texts):
        for family in text_string_to_metric_families(texts[process]):
            merged = families.setdefault(family.name, Metric(family.name, family.documentation, family.type))
            for sample in family.samples:
                merged.add_sample(sample.name, {**sample.labels, _LABEL: process}, sample.value)
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Merged(families.values()))
    return generate_latest(registry)


class _Merged(Collector):
    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = list(families)

    def collect(self) -> Iterable[Metric]:
        return self._families
