"""``hone up``: everything on one machine with embedded defaults, supervised."""

import asyncio
import signal
from collections.abc import Callable

import httpx

from core.config.schema import HoneConfig
from core.errors import EngineUnavailable, MachineError
from core.variant import Deployment, DeploymentStatus
from hone.bootstrap import migrate, register_base, seed
from hone.doctor import examine
from hone.opened_store import opened_store
from hone.output import console
from hone.settings import child_environment
from hone.supervisor import Supervisor
from store.events import DEPLOYMENTS
from store.store import Store

PROCESSES = ("gateway", "fleet", "worker", "learner")
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
    """Run everything until SIGINT or SIGTERM."""
    screen = console()
    check_machine(config)
    await prepare(config, lambda text: screen.print(f"[dim]{text}[/]"))
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    supervisor = make_supervisor(config)
    try:
        for name in PROCESSES:
            await supervisor.start(name)
        screen.print("starting engines (about a minute on a CPU) ...")
        async with opened_store(config) as store:
            waiting = asyncio.create_task(_announce(config, store, supervisor))
            stopping = asyncio.create_task(stop.wait())
            await asyncio.wait({waiting, stopping}, return_when=asyncio.FIRST_COMPLETED)
            if waiting.done():
                waiting.result()
            else:
                waiting.cancel()
            await _watch(supervisor, stop)
    finally:
        screen.print("stopping ...")
        await supervisor.stop()


async def _announce(config: HoneConfig, store: Store, supervisor: Supervisor) -> None:
    await gateway_answers(config, supervisor)
    await engines_ready(config, store, supervisor, lambda _: None)
    key_file = config.data_dir / "keys.json"
    console().print(
        f"[bold green]ready[/] on {config.gateway_url}/v1, keys in {key_file}\n"
        f'  hone chat "hello"        hone policies create NAME        Ctrl-C stops everything'
    )


async def _watch(supervisor: Supervisor, stop: asyncio.Event) -> None:
    while not stop.is_set():
        supervisor.check()
        try:
            async with asyncio.timeout(2.0):
                await stop.wait()
        except TimeoutError:
            continue


async def gateway_answers(config: HoneConfig, supervisor: Supervisor, *, seconds: float = 60.0) -> None:
    """Wait until the gateway's health route answers."""
    async with httpx.AsyncClient() as client:
        for _ in range(int(seconds / 0.2)):
            failure = supervisor.failure_of("gateway")
            if failure:
                raise MachineError(f"the gateway could not start:\n{failure}")
            try:
                if (await client.get(f"{config.gateway_url}/health")).status_code == 200:
                    return
            except httpx.TransportError:
                await asyncio.sleep(0.2)
    raise EngineUnavailable("the gateway does not answer", hint="see its log under the data folder")


async def engines_ready(
    config: HoneConfig, store: Store, supervisor: Supervisor, progress: Callable[[list[Deployment]], None]
) -> list[Deployment]:
    """Wait until every configured Variant is READY; raises EngineUnavailable with the reason otherwise."""
    wanted = set(config.fleet.variants)
    async with (
        asyncio.timeout(config.engine.start_timeout_seconds + 60),
        store.events.subscribe([DEPLOYMENTS]) as subscription,
    ):
        while True:
            failure = supervisor.failure_of("fleet")
            if failure:
                raise EngineUnavailable(f"the fleet could not start:\n{failure}")
            async with store.transaction() as tx:
                deployments = await tx.deployments.list()
            ready = [item for item in deployments if item.status is DeploymentStatus.READY]
            progress(deployments)
            if {str(item.variant) for item in ready} >= wanted:
                return ready
            await subscription.wait(0.5)
