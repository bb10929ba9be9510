"""The Runtime on this machine: a pool of single-use boxes behind whichever wall its Launcher builds."""

import asyncio
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import structlog
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from core.config.sandbox import SandboxSection
from core.errors import HoneError, SandboxError
from sandbox.runtimes.base import BoxSpec
from sandbox.runtimes.channel import Channel, ChannelClosed
from sandbox.runtimes.identities import lease_identity
from sandbox.runtimes.launch import BoxPlace, Launcher
from sandbox.runtimes.local_box import Limits, LocalBox, Surroundings
from sandbox.runtimes.memory import Guards, detect_guards
from sandbox.runtimes.scratch import make_box_folder, make_scratch, remove_tree
from sandbox.runtimes.selftest import prove

log = structlog.get_logger(__name__)

_READY_SECONDS = 60.0
_STARTING_AT_ONCE = 4
_REFILL_DELAY_SECONDS = 0.03


class Metrics:
    """What the sandbox tells Prometheus."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.alive = Gauge("hone_sandbox_boxes", "Boxes in use", registry=registry)
        self.warm = Gauge("hone_sandbox_boxes_warm", "Boxes ready and never used", registry=registry)
        self.starts = Counter("hone_sandbox_starts", "Boxes started", ["result"], registry=registry)
        self.waits = Histogram("hone_sandbox_box_seconds", "From asking for a box to having it", registry=registry)


class LocalRuntime:
    """Boxes on this machine; see ``sandbox.runtimes.base.Runtime``."""

    def __init__(
        self,
        *,
        section: SandboxSection,
        launcher: Launcher,
        registry: CollectorRegistry | None = None,
        guards: Guards | None = None,
    ) -> None:
        """``guards`` limits memory in another way than the strongest one found."""
        self._section = section
        self._launcher = launcher
        self._metrics = Metrics(registry or CollectorRegistry())
        self._chosen_guards = guards
        self._slots = asyncio.Semaphore(section.max_boxes)
        self._starting = asyncio.Semaphore(min(_STARTING_AT_ONCE, section.max_boxes))
        self._warm: list[LocalBox] = []
        self._used: set[LocalBox] = set()
        self._refill: asyncio.Task[None] | None = None
        self._scratch: Path | None = None
        self._count = 0
        self._proven = False

    @property
    def name(self) -> str:
        """The wall's name."""
        return self._launcher.name

    async def start(self) -> None:
        """Prove the isolation and fill the pool; raises SandboxError or MachineError."""
        if self._scratch is not None:
            raise SandboxError("the sandbox has already been started")
        self._guards = self._chosen_guards or detect_guards()
        self._scratch = await asyncio.to_thread(make_scratch)
        try:
            self._launcher.prepare(self._scratch)
            findings = await prove(self)
        except BaseException:
            await self.stop()
            raise
        self._proven = True
        log.info("sandbox_ready", runtime=self.name, memory=self._guards.name, probes=len(findings))
        self._top_up()

    async def stop(self) -> None:
        """Close every box and wait for it."""
        scratch, self._scratch = self._scratch, None
        if self._refill is not None:
            self._refill.cancel()
            await asyncio.wait({self._refill})
            self._refill = None
        boxes = [*self._warm, *self._used]
        self._warm.clear()
        self._metrics.warm.set(0)
        results = await asyncio.gather(*(box.close() for box in boxes), return_exceptions=True)
        if scratch is not None:
            await remove_tree(scratch)
        for result in results:
            if isinstance(result, BaseException):
                raise result

    @asynccontextmanager
    async def box(self, spec: BoxSpec | None = None) -> AsyncIterator[LocalBox]:
        """A fresh box, closed on exit; raises SandboxError when it cannot be started."""
        asked = time.monotonic()
        async with self._slots:
            box = await self._obtain(spec or BoxSpec())
            self._used.add(box)
            self._metrics.alive.set(len(self._used))
            self._metrics.waits.observe(time.monotonic() - asked)
            self._top_up()
            try:
                yield box
            finally:
                self._used.discard(box)
                self._metrics.alive.set(len(self._used))
                await box.close()

    def limits(self, spec: BoxSpec) -> Limits:
        """The limits of a spec, completed from the configuration."""
        section = self._section
        return Limits(
            wall_seconds=spec.wall_seconds or section.wall_seconds,
            cpu_seconds=spec.cpu_seconds or section.cpu_seconds,
            memory_mib=spec.memory_mib or section.memory_mib,
            max_processes=spec.max_processes or section.max_processes,
            disk_mib=spec.disk_mib or section.disk_mib,
            output_bytes=spec.output_bytes or section.output_bytes,
        )

    async def _obtain(self, spec: BoxSpec) -> LocalBox:
        limits = self.limits(spec)
        box = await self._take_warm(limits.disk_mib) or await self._start_box(limits.disk_mib)
        try:
            box.lay_readonly(spec.readonly_files)
            await box.prepare(limits, ttl_seconds=spec.ttl_seconds, files=spec.files)
        except BaseException:
            await box.close()
            raise
        return box

    async def _take_warm(self, disk_mib: int) -> LocalBox | None:
        """A waiting box; the size of its file systems was fixed when it started."""
        while disk_mib == self._section.disk_mib and self._warm:
            box = self._warm.pop(0)
            self._metrics.warm.set(len(self._warm))
            if box.alive:
                return box
            log.warning("warm_box_died", evidence=box.evidence())
            await box.close()
        return None

    async def _start_box(self, disk_mib: int) -> LocalBox:
        if self._scratch is None:
            raise SandboxError("the sandbox is not started")
        async with self._starting:
            try:
                box = await self._launch(self._scratch, disk_mib)
            except BaseException:
                self._metrics.starts.labels("failed").inc()
                raise
        self._metrics.starts.labels("ok").inc()
        return box

    async def _launch(self, scratch: Path, disk_mib: int) -> LocalBox:
        self._count += 1
        folder = make_box_folder(scratch, self._count)
        identity = lease_identity(self._section.first_uid)

        async def release() -> None:
            identity.release()
            await remove_tree(folder)

        host, inside = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        channel = Channel(host)
        try:
            with inside:
                process = self._launcher.launch(BoxPlace(folder, identity.uid, disk_mib), inside)
        except BaseException:
            channel.close()
            await release()
            raise
        try:
            async with asyncio.timeout(_READY_SECONDS):
                await channel.receive()
            pids = process.locate()
            guard = self._guards.guard(process.pid, pids)
        except BaseException as error:
            process.kill()
            channel.shut()
            await process.gone()
            evidence = process.evidence()
            process.free()
            channel.close()
            await release()
            if isinstance(error, ChannelClosed | TimeoutError | OSError):
                raise SandboxError(f"a box does not start: {evidence or error or 'no answer in time'}") from error
            raise
        return LocalBox(
            channel=channel,
            process=process,
            guard=guard,
            surroundings=self._surroundings(folder),
            readonly=folder / "readonly",
            backend=self.name,
            enforced=self._launcher.enforced,
            on_close=release,
        )

    def _surroundings(self, folder: Path) -> Surroundings:
        within = self._launcher.work_folder is not None
        return Surroundings(
            work_folder=self._launcher.work_folder or str(folder / "work"),
            readonly_folder=self._launcher.readonly_folder or str(folder / "readonly"),
            temporary_folder="/tmp" if within else str(folder / "tmp"),  # noqa: S108 - inside the box
            path=self._launcher.command_path(),
            shared_uid=self._launcher.shared_uid,
            agent_exposed=self._launcher.agent_exposed,
        )

    def _top_up(self) -> None:
        """Start filling the pool, unless that is going on."""
        if self._proven and (self._refill is None or self._refill.done()):
            self._refill = asyncio.create_task(self._fill())

    async def _fill(self) -> None:
        await asyncio.sleep(_REFILL_DELAY_SECONDS)  # the box just handed out runs its first command meanwhile
        while self._scratch is not None and len(self._warm) < self._section.pool_size:
            try:
                box = await self._start_box(self._section.disk_mib)
            except (HoneError, OSError) as error:
                # The next request starts its own box and tells its caller; it also tries to fill again.
                log.warning("warm_box_not_started", error=str(error))
                return
            self._warm.append(box)
            self._metrics.warm.set(len(self._warm))
