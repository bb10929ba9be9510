"""The gateways that are compared: how each is configured, started on the gateway's core, and kept quiet."""

import shutil
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

from bench.gateway.load import Target
from bench.gateway.machine import GATEWAY_CORE, clean_environment, pinned, signal_tree
from bench.gateway.native import HERE, free_port, wait_for

KEY = "sk-bench"
_BIN = HERE.parent.parent / ".venv-bench" / "bin"
_NGINX = """
daemon off;
worker_processes 1;
user root;
pid {folder}/nginx.pid;
error_log {folder}/nginx-error.log;
events {{ worker_connections 8192; }}
http {{
  access_log off;
  client_body_temp_path {folder}/body;
  proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/fastcgi;
  uwsgi_temp_path {folder}/uwsgi;
  scgi_temp_path {folder}/scgi;
  keepalive_requests 100000000;
  tcp_nodelay on;
  upstream engine {{ server 127.0.0.1:{upstream}; keepalive 1024; keepalive_requests 100000000; }}
  server {{
    listen 127.0.0.1:{port} backlog=4096;
    location / {{
      proxy_pass http://engine;
      proxy_http_version 1.1;
      proxy_set_header Connection "";
      proxy_buffering off;
    }}
  }}
}}
"""
_LITELLM = """
model_list:
  - model_name: base
    litellm_params:
      model: openai/base
      api_base: http://127.0.0.1:{upstream}/v1
      api_key: none
general_settings:
  master_key: {key}
"""
_LITELLM_LOGGED = """
litellm_settings:
  callbacks: litellm_sqlite.handler
"""


class Server:
    """One process on the gateway's core. ``rest`` stops it so that it takes no CPU time, ``wake`` goes on."""

    def __init__(
        self, *, name: str, command: list[str], port: int, log: Path, environment: dict[str, str] | None = None
    ) -> None:
        self.name = name
        self.port = port
        self._log = log
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                pinned(GATEWAY_CORE, command),
                stdout=output,
                stderr=subprocess.STDOUT,
                env=clean_environment(environment),
            )

    @property
    def pid(self) -> int:
        """The process."""
        return self._process.pid

    def ready(self, path: str = "/health") -> None:
        """Wait until it answers; where it does not, end it and raise RuntimeError with the end of its log."""
        try:
            wait_for(f"http://127.0.0.1:{self.port}{path}", self._process)
        except RuntimeError as error:
            self.stop()
            raise RuntimeError(f"{self.name}: {error}\n{self._log.read_text()[-2000:]}") from error

    def rest(self) -> None:
        """Take no CPU time until ``wake``."""
        signal_tree(self.pid, signal.SIGSTOP)

    def wake(self) -> None:
        """Go on."""
        signal_tree(self.pid, signal.SIGCONT)

    def stop(self) -> None:
        """End, in order if it can, and wait for that."""
        self.wake()
        self._process.terminate()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            signal_tree(self.pid, signal.SIGKILL)
            self._process.wait()


def nginx(folder: Path, upstream: int) -> tuple[Server, Target]:
    """nginx as a plain reverse proxy without buffering: the limit."""
    port = free_port()
    configuration = folder / "nginx.conf"
    configuration.write_text(_NGINX.format(folder=folder, upstream=upstream, port=port))
    program = shutil.which("nginx") or "/usr/sbin/nginx"
    command = [program, "-p", str(folder), "-c", str(configuration)]
    server = Server(name="nginx", command=command, port=port, log=folder / "nginx.log")
    server.ready()
    return server, Target(name="nginx", port=port, pid=server.pid)


def vllm_router(folder: Path, upstream: int) -> tuple[Server, Target]:
    """vllm-router with its plainest policy."""
    port = free_port()
    command = [str(_BIN / "vllm-router"), "--host", "127.0.0.1", "--port", str(port), "--policy", "round_robin"]
    command += ["--worker-urls", f"http://127.0.0.1:{upstream}", "--prometheus-port", str(free_port())]
    command += ["--log-level", "warning"]
    server = Server(name="vllm-router", command=command, port=port, log=folder / "vllm-router.log")
    server.ready()
    return server, Target(name="vllm-router", port=port, pid=server.pid)


def passthrough(folder: Path, upstream: int) -> tuple[Server, Target]:
    """FastAPI and httpx under uvicorn."""
    port = free_port()
    command = [str(_BIN / "uvicorn"), "--app-dir", str(HERE), "--port", str(port), "--no-access-log"]
    command += ["--log-level", "warning", "--backlog", "4096", "passthrough:app"]
    server = Server(
        name="fastapi-httpx",
        command=command,
        port=port,
        log=folder / "passthrough.log",
        environment={"UPSTREAM": f"http://127.0.0.1:{upstream}"},
    )
    server.ready()
    return server, Target(name="fastapi-httpx", port=port, pid=server.pid)


def litellm(folder: Path, upstream: int, *, logged: bool) -> tuple[Server, Target]:
    """LiteLLM's proxy with one worker and no database; logged: with a success callback that writes to SQLite."""
    port = free_port()
    name = "litellm-logged" if logged else "litellm"
    home = folder / name
    home.mkdir()
    shutil.copy(HERE / "litellm_sqlite.py", home)
    configuration = home / "config.yaml"
    text = _LITELLM + (_LITELLM_LOGGED if logged else "")
    configuration.write_text(text.format(upstream=upstream, key=KEY))
    command = [str(_BIN / "litellm"), "--config", str(configuration), "--host", "127.0.0.1", "--port", str(port)]
    command += ["--num_workers", "1", "--telemetry", "False"]
    server = Server(
        name=name,
        command=command,
        port=port,
        log=home / "log",
        environment={
            "LITELLM_MODE": "PRODUCTION",
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",
            "LITELLM_LOG": "ERROR",
            "LITELLM_LOG_DATABASE": str(home / "calls.db"),
        },
    )
    server.ready("/health/liveliness")
    return server, Target(name=name, port=port, pid=server.pid, key=KEY, exact=False)


def litellm_plain(folder: Path, upstream: int) -> tuple[Server, Target]:
    """LiteLLM with its logging off."""
    return litellm(folder, upstream, logged=False)


def litellm_logged(folder: Path, upstream: int) -> tuple[Server, Target]:
    """LiteLLM with its logging on."""
    return litellm(folder, upstream, logged=True)


PEERS: dict[str, Callable[[Path, int], tuple[Server, Target]]] = {
    "nginx": nginx,
    "vllm-router": vllm_router,
    "fastapi-httpx": passthrough,
    "litellm": litellm_plain,
    "litellm-logged": litellm_logged,
}
