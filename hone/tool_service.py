"""The tool service as a part of the worker process: its own boxes, its sessions, its HTTP server."""

from prometheus_client import CollectorRegistry

from core.config.schema import HoneConfig
from hone.http_server import SideServer, listen
from sandbox.runtimes.factory import make_runtime
from sandbox.service.app import create_tool_app
from sandbox.service.sessions import ToolSessions


class ToolService:
    """Sandbox sessions for the gateways' hosted tools; nothing at all when ``worker.tools_port`` is 0.

    Its boxes are beside those of rollouts, so that neither waits for the other.
    """

    def __init__(self, *, config: HoneConfig, registry: CollectorRegistry) -> None:
        """``config.worker.tools_key`` must be set: see ``hone.local_keys.with_tools_key``."""
        self._config = config
        section = config.sandbox.model_copy(update={"max_boxes": config.worker.tools_sessions})
        self._runtime = make_runtime(section)
        self._sessions = ToolSessions(runtime=self._runtime, worker=config.worker, sandbox=section, registry=registry)
        self._server: SideServer | None = None

    async def start(self) -> None:
        """Prove the isolation of the boxes and begin to answer. Raises SandboxError, MachineError."""
        worker = self._config.worker
        if not worker.tools_port:
            return
        listener = listen(worker.tools_host, worker.tools_port, key="worker.tools_port")
        app = create_tool_app(
            self._sessions,
            key=worker.tools_key.get_secret_value(),
            url=self._config.tools_url,
            idle_seconds=worker.tools_idle_seconds,
        )
        self._server = SideServer(app, listener)
        await self._runtime.start()
        await self._sessions.start()
        await self._server.start()

    async def stop(self) -> None:
        """Stop answering, end every session, remove the boxes."""
        if self._server is None:
            return
        await self._sessions.stop()
        await self._server.stop()
        await self._runtime.stop()
