"""Provisioner: the replicas that the configuration asks for, taking over what an earlier fleet left running."""

from collections.abc import Callable
from urllib.parse import urlsplit

from core.config.schema import HoneConfig
from core.deployment import Deployment, DeploymentStatus
from core.ids import DEPLOYMENT, new_id
from core.policy import Base
from core.variant import Variant
from serving.engines.base import Engine
from serving.launch import Build, Launch, find_build, speculation_of
from serving.launcher import EngineProcess, end_leftover
from serving.ports import free_port
from serving.replica import Replica
from store.store import Store


class Provisioner:
    """Used once, when a fleet starts; no engine is started here."""

    def __init__(
        self,
        *,
        config: HoneConfig,
        store: Store,
        base: Base,
        make_engine: Callable[[str], Engine],
        progress: Callable[[str], None],
    ) -> None:
        self._config = config
        self._store = store
        self._base = base
        self._make_engine = make_engine
        self._progress = progress

    async def replicas(self) -> list[Replica]:
        """One Replica for each configured Variant, attached, adopted or yet to be launched.

        Engines of an earlier run that are not wanted any more, or were started with another command, are ended.
        Raises MachineError when engines must be launched and vLLM is not there.
        """
        async with self._store.reading() as unit:
            earlier = await unit.deployments.list(self._base.name)
        variants = [Variant(name) for name in dict.fromkeys(self._config.fleet.variants)]
        launched = [variant for variant in variants if variant not in self._config.fleet.attach]
        build: Build = await find_build(self._launch_python()) if launched else "cpu"
        replicas = []
        for variant in variants:
            url = self._config.fleet.attach.get(variant)
            if url is not None:
                replicas.append(self._attached(variant, url, earlier))
            else:
                order = (launched.index(variant), len(launched))
                replicas.append(await self._launched(variant, build, order, earlier))
        for row in earlier:
            await self._end(row)
        return replicas

    def _launch_python(self) -> str:
        return Launch(config=self._config, base=self._base, build="cpu", port=0).python

    def _attached(self, variant: Variant, url: str, earlier: list[Deployment]) -> Replica:
        engine = self._make_engine(url)
        known = _take(earlier, lambda row: row.variant is variant and row.url == engine.url and row.pid is None)
        if known is None or known.status is DeploymentStatus.STOPPED:
            known = Deployment(
                id=new_id(DEPLOYMENT) if known is None else known.id,
                base=self._base.name,
                variant=variant,
                engine="vllm",
                url=engine.url,
                max_model_len=self._config.engine.max_model_len,
            )
        return Replica(deployment=known, engine=engine)

    async def _launched(
        self, variant: Variant, build: Build, order: tuple[int, int], earlier: list[Deployment]
    ) -> Replica:
        log_path = self._config.data_dir.expanduser() / "logs" / f"engine-{variant}.log"
        known = _take(earlier, lambda row: row.variant is variant and row.pid is not None)
        if known is not None and known.pid is not None:
            launch = self._launch(variant, build, order, port=urlsplit(known.url).port or 0)
            process = EngineProcess.of_launch(launch, log_path)
            if process.adopt(known.pid):
                self._progress(f"taking over the {variant} engine at {known.url}")
                return self._replica(known, process, build)
            await self._end(known)
        launch = self._launch(variant, build, order, port=self._port(order[0]))
        deployment = Deployment(
            id=new_id(DEPLOYMENT),
            base=self._base.name,
            variant=variant,
            engine="vllm",
            url=launch.url,
            speculation=launch.speculation,
            max_model_len=self._config.engine.max_model_len,
        )
        process = EngineProcess.of_launch(launch, log_path)
        return self._replica(deployment, process, build)

    def _replica(self, deployment: Deployment, process: EngineProcess, build: Build) -> Replica:
        return Replica(
            deployment=deployment,
            engine=self._make_engine(deployment.url),
            process=process,
            shares_processors=build == "cpu",
        )

    def _launch(self, variant: Variant, build: Build, order: tuple[int, int], port: int) -> Launch:
        return Launch(
            config=self._config,
            base=self._base,
            build=build,
            port=port,
            index=order[0],
            engines=order[1],
            speculation=speculation_of(self._config, variant),
        )

    def _port(self, index: int) -> int:
        first = self._config.fleet.first_port
        return first + index if first else free_port(self._config.fleet.host)

    async def _end(self, row: Deployment) -> None:
        port = urlsplit(row.url).port
        if row.pid is not None and port is not None and await end_leftover(row.pid, port):
            self._progress(f"ended the engine of an earlier run at {row.url}")
        async with self._store.transaction() as unit:
            await unit.deployments.remove(row.id)


def _take(rows: list[Deployment], fits: Callable[[Deployment], bool]) -> Deployment | None:
    """Remove the first fitting row from ``rows`` and return it."""
    for row in rows:
        if fits(row):
            rows.remove(row)
            return row
    return None
