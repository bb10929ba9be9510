"""Provisioner: the replicas that the configuration asks for, taking over what an earlier fleet left running."""

import os
import platform
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

import structlog

from core.config.schema import HoneConfig
from core.deployment import Deployment, DeploymentStatus, Restart
from core.ids import DEPLOYMENT, new_id
from core.policy import Base
from core.variant import Speculation, Variant
from serving.capabilities import check_fleet
from serving.engines.base import Engine
from serving.launch import Build, Launch
from serving.launch_sglang import LAUNCHES, find_build_of
from serving.launcher import EngineProcess
from serving.ports import free_port
from serving.replica import Replica
from serving.slots import Slot, count_launched, log_name, next_port, take_row, wanted_slots
from store.store import Store

log = structlog.get_logger(__name__)

SpeculationOf = Callable[[Variant], Speculation | None]
"""How a launched engine of a Variant speculates, as of now."""
_OTHER_COMMAND = "its command or configuration changed"


@dataclass
class Provision:
    """What a fleet begins with."""

    replicas: list[Replica] = field(default_factory=list)
    """Wanted, in the configuration's order: attached, adopted, or yet to be launched."""
    leaving: list[Replica] = field(default_factory=list)
    """Run here by an earlier fleet and not wanted any more: to be drained and ended."""
    gone: list[str] = field(default_factory=list)
    """Deployments to forget: nothing of them is left for this fleet to end."""


class Provisioner:
    """Used once, when a fleet begins to lead; no engine is started or ended here, and nothing is written."""

    def __init__(
        self,
        *,
        config: HoneConfig,
        store: Store,
        base: Base,
        make_engine: Callable[[str], Engine],
        speculation: SpeculationOf,
        progress: Callable[[str], None],
    ) -> None:
        self._config = config
        self._store = store
        self._base = base
        self._make_engine = make_engine
        self._speculation = speculation
        self._progress = progress
        self._machine = platform.node()
        self._build: Build = "cpu"
        self._engines = 1
        self._ports: set[int] = set()
        """Ports of this machine that engines of ours have."""

    async def provision(self) -> Provision:
        """One Replica for each slot that the configuration has, and what is to become of all other Deployments.

        Raises MachineError when engines must be launched and the engine's environment is not there,
        ConfigurationError for what such an engine cannot do.
        """
        async with self._store.reading() as unit:
            rows = await unit.deployments.list(self._base.name)
        slots = wanted_slots(self._config.fleet)
        check_fleet(self._config)
        self._engines = max(1, count_launched(slots))
        if count_launched(slots):
            self._build = await find_build_of(self._config.engine.kind, self._launch_python())
        self._ports = {port for row in rows if (port := self._port_in_use(row)) is not None}
        found = Provision()
        for slot in slots:
            known = take_row(rows, slot)
            if slot.url is not None:
                found.replicas.append(self._attached(slot, slot.url, known))
                continue
            replica = None if known is None else await self._taken_over(slot, known)
            if replica is None:
                rows += [] if known is None else [known]
                replica = self._new(slot)
            found.replicas.append(replica)
        for row in rows:
            leaving = self._leaving(row)
            found.gone += [row.id] if leaving is None else []
            found.leaving += [] if leaving is None else [leaving]
        return found

    def _launch_python(self) -> str:
        return Launch(config=self._config, base=self._base, build="cpu", port=0).python

    def _attached(self, slot: Slot, url: str, known: Deployment | None) -> Replica:
        engine = self._make_engine(url)
        if known is None or known.status is DeploymentStatus.STOPPED:
            known = self._deployment(slot, engine.url, None if known is None else known.id)
        fields: dict[str, object] = {"replica": slot.replica}
        if known.speculation is None:
            # An attached fast engine is taken to speculate as a launched one would: what that refuses goes elsewhere.
            fields["speculation"] = self._speculation(slot.variant)
        return Replica(deployment=known.model_copy(update=fields), engine=engine)

    async def _taken_over(self, slot: Slot, known: Deployment) -> Replica | None:
        """The engine of a launched Deployment, if it still runs and can stay where it is."""
        if known.machine not in (None, self._machine):
            return await self._elsewhere(slot, known)
        port = urlsplit(known.url).port or 0
        launch = self._launch(slot, port)
        if launch.url != known.url:
            return None
        process = EngineProcess.of_launch(launch, self._log_path(slot))
        fields: dict[str, object] = {"replica": slot.replica, "machine": self._machine}
        pid = next((one for one in (known.pid, process.find()) if one is not None and process.adopt(one)), None)
        if pid is not None:
            self._progress(f"taking over the {slot.variant} engine at {known.url}")
            if known.restart is not None and known.restart.reason == _OTHER_COMMAND:
                fields["restart"] = None
            return self._replica(slot, known.model_copy(update={**fields, "pid": pid}), process)
        if known.pid is not None and process.adopt_other(known.pid, port):
            self._progress(f"taking over the {slot.variant} engine at {known.url}, to be restarted")
            replica = self._replica(slot, known.model_copy(update=fields), process)
            replica.ask_restart(Restart(reason=_OTHER_COMMAND))
            return replica
        return None

    async def _elsewhere(self, slot: Slot, known: Deployment) -> Replica | None:
        """An engine of a fleet on another machine: it serves on from there, and is replaced here once it is lost.

        One that does not answer at the moment is taken over as unhealthy: as many missed health checks as for any
        other decide whether it is lost.
        """
        if known.status is DeploymentStatus.STOPPED:
            return None
        engine = self._make_engine(known.url)
        healthy = await engine.health()
        self._progress(f"taking over the {slot.variant} engine at {known.url} on {known.machine}")
        replica = Replica(deployment=known.model_copy(update={"replica": slot.replica}), engine=engine)
        if not healthy:
            replica.move_to(DeploymentStatus.UNHEALTHY, "it did not answer the fleet that took it over")
        launch = self._launch(slot, self._new_port())
        process = EngineProcess.of_launch(launch, self._log_path(slot))
        replica.home = self._make_engine(launch.url), process
        replica.launched_as = lambda: self._launch(slot, launch.port)
        return replica

    def _new(self, slot: Slot) -> Replica:
        launch = self._launch(slot, self._new_port())
        deployment = self._deployment(slot, launch.url).model_copy(
            update={"speculation": launch.speculation, "machine": self._machine}
        )
        return self._replica(slot, deployment, EngineProcess.of_launch(launch, self._log_path(slot)))

    def _replica(self, slot: Slot, deployment: Deployment, process: EngineProcess) -> Replica:
        replica = Replica(
            deployment=deployment,
            engine=self._make_engine(deployment.url),
            process=process,
            shares_processors=self._build == "cpu",
        )
        port = urlsplit(deployment.url).port or 0
        replica.launched_as = lambda: self._launch(slot, port)
        return replica

    def _leaving(self, row: Deployment) -> Replica | None:
        """An engine of this machine that is to be ended; others are left to those who run them."""
        process = EngineProcess(command=[], environment={}, log_path=Path(os.devnull))
        port = self._port_in_use(row)
        if row.pid is None or port is None or not process.adopt_other(row.pid, port):
            return None
        return Replica(deployment=row, engine=self._make_engine(row.url), process=process)

    def _deployment(self, slot: Slot, url: str, known_id: str | None = None) -> Deployment:
        return Deployment(
            id=known_id or new_id(DEPLOYMENT),
            base=self._base.name,
            variant=slot.variant,
            engine=self._config.engine.kind,
            url=url,
            replica=slot.replica,
            max_model_len=self._config.engine.max_model_len,
        )

    def _launch(self, slot: Slot, port: int) -> Launch:
        return LAUNCHES[self._config.engine.kind](
            config=self._config,
            base=self._base,
            build=self._build,
            port=port,
            index=slot.order,
            engines=self._engines,
            speculation=self._speculation(slot.variant),
        )

    def _log_path(self, slot: Slot) -> Path:
        return self._config.data_dir.expanduser() / "logs" / log_name(slot.variant, slot.replica)

    def _new_port(self) -> int:
        first = self._config.fleet.first_port
        port = next_port(first, self._ports) if first else free_port(self._config.fleet.host)
        self._ports.add(port)
        return port

    def _port_in_use(self, row: Deployment) -> int | None:
        """The port of an engine that runs here."""
        port = urlsplit(row.url).port
        if row.pid is None or port is None or row.machine not in (None, self._machine):
            return None
        probe = EngineProcess(command=[], environment={}, log_path=Path(os.devnull))
        return port if probe.adopt_other(row.pid, port) else None
