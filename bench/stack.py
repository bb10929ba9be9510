"""A whole Hone for a benchmark: gateway with its recorder, fleet and real engines, started as ``hone up`` does it.

Each engine writes down what it sends (``engine_side/engine_record.py``).
"""

import asyncio
import os
import time
from collections.abc import Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import aiohttp

from bench.report import ROOT
from core.config.schema import HoneConfig
from core.deployment import Deployment, DeploymentStatus
from core.errors import HoneError, MachineError
from hone.admin_client import AdminClient
from hone.local_keys import read_local_keys
from hone.settings import child_environment, load_settings
from hone.supervisor import Supervisor
from hone.up import prepare, stop_everything
from serving.ports import free_port
from store.store import Store

ENGINE_SIDE = ROOT / "bench" / "engine_side"
_GATEWAY_SECONDS = 60.0


class Stack:
    """A running Hone. ``store`` is this process's own connection to its database."""

    store: Store

    def __init__(self, folder: Path, overrides: Mapping[str, Any], *, replicas: int = 1) -> None:
        self.folder = folder
        self.records = folder / "engine-records"
        self._replicas = replicas
        ports = {
            "data_dir": str(folder),
            "gateway.port": free_port("127.0.0.1"),
            "fleet.first_port": 0,
            "fleet.metrics_port": 0,
            "log.level": "info",
        }
        self.config: HoneConfig = load_settings(Path(os.devnull), overrides={**ports, **overrides})
        self._supervisors: dict[str, Supervisor] = {}
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> "Stack":
        self.records.mkdir(parents=True, exist_ok=True)
        await prepare(self.config, lambda _: None)
        self.store = await Store.open(self.config)
        self._stack.push_async_callback(self.store.close)
        try:
            for name in ("gateway", "fleet"):
                await self._start(name)
            await self._until_gateway_answers()
            await self.until_ready(self._replicas)
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        gateway, fleet = self._supervisors.pop("gateway", None), self._supervisors.pop("fleet", None)
        if gateway is not None:
            await gateway.stop()
        if fleet is not None:
            await stop_everything(self.config, fleet)
        await self._stack.aclose()

    @property
    def url(self) -> str:
        """Where the gateway answers."""
        return self.config.gateway_url

    @property
    def key(self) -> str:
        """The worker's key, whose Turns are recorded with their ids."""
        return read_local_keys(self.config).worker

    def admin(self) -> AdminClient:
        """The admin API."""
        return AdminClient(gateway_url=self.url, api_key=read_local_keys(self.config).admin)

    async def admin_post(self, path: str, body: dict[str, Any]) -> Any:
        """POST to the admin API without holding up the clients of this process."""

        def post() -> Any:
            with self.admin() as admin:
                return admin.post(path, body)

        return await asyncio.to_thread(post)

    async def create_policy(self, name: str) -> None:
        """A Policy on the Base, once the gateway routes its name."""
        await self.admin_post("/policies", {"name": name, "base": self.config.base.name, "release_policy": "demo"})
        headers = {"authorization": f"Bearer {self.key}"}
        async with aiohttp.ClientSession(headers=headers) as session, asyncio.timeout(_GATEWAY_SECONDS):
            while True:
                async with session.get(f"{self.url}/v1/models/{name}") as answer:
                    if answer.status == 200:
                        return
                await asyncio.sleep(0.1)

    async def deployments(self) -> list[Deployment]:
        """The replicas as the fleet last stored them."""
        async with self.store.reading() as work:
            return await work.deployments.list()

    async def until_ready(self, replicas: int) -> list[Deployment]:
        """Wait for so many ready replicas; MachineError with the ends of the logs when they do not come."""
        seconds = self.config.engine.start_timeout_seconds * replicas
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            ready = [one for one in await self.deployments() if one.status is DeploymentStatus.READY]
            if len(ready) >= replicas:
                return ready
            for supervisor in self._supervisors.values():
                supervisor.check()
            await asyncio.sleep(0.25)
        raise MachineError(f"{replicas} replicas were not ready after {seconds:.0f} s:\n{self.logs()}")

    async def restart_gateway(self, **changes: Any) -> None:
        """End the gateway and start it with other fields in its ``gateway`` section."""
        await self._supervisors.pop("gateway").stop()
        section = self.config.gateway.model_copy(update=changes)
        self.config = self.config.model_copy(update={"gateway": section})
        await self._start("gateway")
        await self._until_gateway_answers()

    def logs(self) -> str:
        """The ends of all logs."""
        return "\n".join(
            f"== {path.name}\n" + "\n".join(path.read_text(errors="replace").splitlines()[-8:])
            for path in sorted((self.folder / "logs").glob("*.log"))
        )

    async def _start(self, name: str) -> None:
        environment = child_environment(self.config)
        if name == "fleet":
            paths = [str(ENGINE_SIDE), *filter(None, [environment.get("PYTHONPATH")])]
            environment["PYTHONPATH"] = os.pathsep.join(paths)
            environment["ENGINE_RECORD_FOLDER"] = str(self.records)
        supervisor = Supervisor(environment=environment, log_folder=self.folder / "logs")
        self._supervisors[name] = supervisor
        await supervisor.start(name)

    async def _until_gateway_answers(self) -> None:
        deadline = time.monotonic() + _GATEWAY_SECONDS
        while True:
            try:
                with self.admin() as admin:
                    await asyncio.to_thread(admin.get, "/deployments")
                return
            except HoneError:
                if time.monotonic() > deadline:
                    raise
            await asyncio.sleep(0.25)


RECORDED = ("--middleware", "engine_record.EngineRecord")
"""For ``engine.extra_args``: the engine writes down what it sends."""
