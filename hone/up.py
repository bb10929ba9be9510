"""``hone up``: everything on one machine with embedded defaults, supervised."""

import asyncio
from collections.abc import Callable

import httpx
from rich.markup import escape

from core.config.schema import HoneConfig
from core.deployment import Deployment, DeploymentStatus
from core.errors import EngineUnavailable, MachineError
from core.fleet_plan import planned
from core.noun import now
from hone.bootstrap import migrate, register_base, seed
from hone.doctor import examine
from hone.leftovers import end_leftover_engines
from hone.opened_store import opened_store
from hone.output import console
from hone.settings import child_environment
from hone.signals import until_signal
from hone.supervisor import Supervisor
from serving.slots import log_name
from store.events import DEPLOYMENTS
from store.store import Store

PROCESSES = ("gateway", "fleet", "worker", "learner", "release")
STOP_ORDER = ("release", "learner", "worker", "gateway", "fleet")
"""The engines end last, so that running answers are finished."""

_CHECK_SECONDS = 2.0
_GRACE_SECONDS = 60.0
"""What a fleet may take beside the engines' own start."""

Progress = Callable[[str], None]


def check_machine(config: HoneConfig) -> None:
    """Raise MachineError for the first thing that is missing, before anything is started."""
    for finding in examine(config):
        if finding.state == "missing":
            raise MachineError(f"{finding.name}: {finding.detail}", hint=finding.hint)
        if finding.name == "gateway port" and finding.state == "warning":
            raise MachineError(f"gateway port {finding.detail}", hint=finding.hint)


async def prepare(config: HoneConfig, progress: Progress) -> None:
    """Migrate, mint local keys, register Domains and the Base."""
    await asyncio.to_thread(migrate, config)
    async with opened_store(config) as store:
        await seed(config, store)
        await register_base(config, store, progress)


def make_supervisor(config: HoneConfig) -> Supervisor:
    """A Supervisor whose children resolve exactly this configuration."""
    return Supervisor(environment=child_environment(config), log_folder=config.data_dir.expanduser() / "logs")


async def up(config: HoneConfig) -> None:
    """Run everything until SIGINT, SIGTERM or SIGHUP."""
    await until_signal(_up(config))


async def stop_everything(config: HoneConfig, supervisor: Supervisor) -> None:
    """Stop the processes, the engines last, and end engines that a killed fleet left."""
    await supervisor.stop(STOP_ORDER)
    await end_leftover_engines(config)


async def _up(config: HoneConfig) -> None:
    screen = console()
    await asyncio.to_thread(check_machine, config)
    await prepare(config, lambda text: screen.print(f"[dim]{escape(text)}[/]"))
    started_at = now()
    supervisor = make_supervisor(config)
    try:
        for name in PROCESSES:
            await supervisor.start(name)
        screen.print("starting engines (about a minute on a CPU) ...")
        async with opened_store(config) as store:
            await _announce(config, store, supervisor, started_at)
        while True:
            supervisor.check()
            await asyncio.sleep(_CHECK_SECONDS)
    finally:
        screen.print("stopping ...")
        await stop_everything(config, supervisor)


async def _announce(config: HoneConfig, store: Store, supervisor: Supervisor, started_at: float) -> None:
    await gateway_answers(config, supervisor)
    await engines_ready(config, store, supervisor, started_at=started_at)
    key_file = config.data_dir / "keys.json"
    console().print(
        f"[bold green]ready[/] on {config.gateway_url}/v1, keys in {key_file}\n"
        f'  hone chat "hello"        hone policies create NAME        Ctrl-C stops everything'
    )


async def gateway_answers(config: HoneConfig, supervisor: Supervisor, *, seconds: float = 60.0) -> None:
    """Wait until the gateway's health route answers."""
    async with httpx.AsyncClient(trust_env=False) as client:
        for _ in range(int(seconds / 0.2)):
            failure = supervisor.failure_of("gateway")
            if failure is not None:
                raise MachineError(f"the gateway could not start:\n{failure}")
            if await _healthy(client, config.gateway_url):
                return
            await asyncio.sleep(0.2)
    raise EngineUnavailable("the gateway does not answer", hint="see its log under the data folder")


async def _healthy(client: httpx.AsyncClient, gateway_url: str) -> bool:
    try:
        return (await client.get(f"{gateway_url}/health")).status_code == 200
    except httpx.HTTPError:
        return False


async def engines_ready(
    config: HoneConfig, store: Store, supervisor: Supervisor, *, started_at: float
) -> list[Deployment]:
    """Wait until every configured Variant is READY with a heartbeat since ``started_at`` (epoch seconds).

    Raises EngineUnavailable when the fleet or the start of an engine fails (the fleet would try again, but nobody
    waits for that here), or when the engines are too late.
    """
    async with store.reading() as tx:
        config = planned(config, await tx.fleet_plans.find(config.base.name))
    wanted = set(config.fleet.variants)
    starts = _Starts(config, started_at)
    loop = asyncio.get_running_loop()
    deadline = loop.time() + config.engine.start_timeout_seconds + _GRACE_SECONDS
    async with store.events.subscribe([DEPLOYMENTS]) as subscription:
        while True:
            failure = supervisor.failure_of("fleet")
            if failure is not None:
                raise EngineUnavailable(f"the fleet could not start:\n{failure}")
            supervisor.check()
            async with store.reading() as tx:
                deployments = await tx.deployments.list(config.base.name)
            starts.look(deployments)
            ready = [item for item in deployments if starts.is_ready(item)]
            missing = wanted - {str(item.variant) for item in ready}
            if not missing:
                return ready
            if loop.time() >= deadline:
                raise EngineUnavailable(
                    f"not ready after {config.engine.start_timeout_seconds + _GRACE_SECONDS:.0f} s: "
                    f"{', '.join(sorted(missing))}",
                    hint="see the engines' logs under the data folder, or raise engine.start_timeout_seconds",
                )
            await subscription.wait(0.5)


class _Starts:
    """Tells a failed start of an engine from an outage that the fleet repairs by itself."""

    def __init__(self, config: HoneConfig, started_at: float) -> None:
        self._config = config
        self._started_at = started_at
        self._starting: set[str] = set()

    def is_ready(self, row: Deployment) -> bool:
        """READY, and not by the word of an earlier fleet."""
        return row.status is DeploymentStatus.READY and row.heartbeat_at >= self._started_at

    def look(self, rows: list[Deployment]) -> None:
        """Raise EngineUnavailable when an engine that this fleet launched is UNHEALTHY before it was READY."""
        for row in rows:
            if str(row.variant) not in set(self._config.fleet.variants) - set(self._config.fleet.attach):
                continue
            if row.status is DeploymentStatus.STARTING:
                self._starting.add(row.id)
            elif self.is_ready(row):
                self._starting.discard(row.id)
            began = row.id in self._starting or row.created_at >= self._started_at
            if row.status is DeploymentStatus.UNHEALTHY and row.status_reason and began:
                raise EngineUnavailable(
                    f"the {row.variant} engine could not start: {row.status_reason}",
                    hint=f"see {self._config.data_dir / 'logs' / log_name(row.variant, row.replica)}",
                )
