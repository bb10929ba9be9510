"""NcclWire: full weights over NCCL, from a sender's GPU to all workers of an engine, by vLLM's weight-transfer API.

The engine is started with ``--weight-transfer-config '{"backend":"nccl"}'``. Its side are HTTP calls
(``entrypoints/rl/online/api_router.py``, vLLM 0.32): ``/get_world_size``, ``/init_weight_transfer_engine`` once,
then for each transfer ``/start_weight_update``, ``/update_weights``, ``/finish_weight_update``. Two of them return
only when the sender has done its part, so both sides run at once. The HTTP side is tested against a server that
follows those routes; **no transfer has been run on GPUs yet**, and ``serving/engine_plugin/hone_weight_sender.py``,
the sender, least of all.
"""

import asyncio
import contextlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import aiohttp
import structlog

from core.errors import (
    AdapterRejected,
    CorruptArtefact,
    EngineError,
    EngineUnavailable,
    EngineUnsupported,
    StoreError,
)
from serving.weights.full_folder import tensors_of
from serving.weights.safetensors_file import TensorEntry
from serving.weights.wire import FullWeights, WeightLoader

log = structlog.get_logger(__name__)

_SENDER = Path(__file__).parents[1] / "engine_plugin" / "hone_weight_sender.py"
_REQUEST_SECONDS = 600.0
_LONGEST_LINE = 1 << 20
_ABOUT_TENSORS = {"/update_weights": frozenset({400, 422})}
"""Answers with which an engine refuses the tensors that it was told of; others say nothing about the version."""
_NOT_THERE = frozenset({404, 405, 501})
_DTYPES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16", "F64": "float64"}
_PACKED_BYTES = 1 << 30
_PACKED_BUFFERS = 2
"""vLLM's own defaults (``distributed/weight_transfer/packed_tensor.py``); both sides must agree."""


class WeightSender(Protocol):
    """Rank 0 of the transfer's group: it holds the tensors."""

    async def join(self, engine: str, *, address: str, port: int, world_size: int) -> None:
        """Open the group for ``engine`` and wait until all its workers have joined. Raises EngineUnavailable."""
        ...

    async def send(self, engine: str, path: str) -> None:
        """Broadcast every tensor of a folder, in the order of their names. Raises EngineUnavailable."""
        ...

    async def close(self) -> None:
        """Leave all groups."""
        ...


class NcclWire:
    """Implements ``WeightWire``; one transfer at a time."""

    def __init__(self, *, sender: WeightSender, address: str, port: int) -> None:
        """``address``, ``port``: where the sender meets the engines' workers; each engine keeps a port of its own,
        counted from ``port``.
        """
        self._sender = sender
        self._address = address
        self._port = port
        self._ports: dict[str, int] = {}
        self._joined: set[str] = set()
        """Engines with which the sender, as it runs now, has an open group."""
        self._session: aiohttp.ClientSession | None = None
        self._turn = asyncio.Lock()

    async def apply(self, engine: WeightLoader, weights: FullWeights) -> None:
        """Send all tensors of the folder. Raises as ``WeightWire.apply``."""
        entries = await asyncio.to_thread(_entries, Path(weights.path))
        names = sorted(entries)
        unknown = next((name for name in names if entries[name].dtype not in _DTYPES), None)
        if unknown is not None:
            raise AdapterRejected(f"'{unknown}' has dtype {entries[unknown].dtype}, which cannot be sent")
        update = {
            "names": names,
            "dtype_names": [_DTYPES[entries[name].dtype] for name in names],
            "shapes": [list(entries[name].shape) for name in names],
        }
        async with self._turn:
            try:
                await self._join(engine.url)
                await self._post(engine.url, "/start_weight_update")
                await self._together(
                    self._post(engine.url, "/update_weights", {"update_info": update}),
                    self._sender.send(engine.url, weights.path),
                )
                await self._post(engine.url, "/finish_weight_update", {"weight_version": weights.label})
            except BaseException:
                # The group is of no use any more, its peers may wait in a call that nobody will answer, and a sender
                # that failed or was cut has ended itself: all engines are joined anew, by a sender with free ports.
                self._joined.clear()
                await self._sender.close()
                raise

    async def close(self) -> None:
        """End the sender and the connections."""
        await self._sender.close()
        self._joined.clear()
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def _join(self, url: str) -> None:
        if url in self._joined:
            return
        workers = int((await self._request("GET", url, "/get_world_size"))["world_size"])
        port = self._ports.setdefault(url, self._port + len(self._ports))
        group = {"master_address": self._address, "master_port": port, "rank_offset": 1, "world_size": workers + 1}
        packing = {"packed": True, "packed_buffer_size_bytes": _PACKED_BYTES, "packed_num_buffers": _PACKED_BUFFERS}
        await self._together(
            self._post(url, "/init_weight_transfer_engine", {"init_info": group | packing}),
            self._sender.join(url, address=self._address, port=port, world_size=workers + 1),
        )
        self._joined.add(url)

    async def _together(self, one: Any, other: Any) -> None:
        """Run both sides; when one fails the other is waited for no longer."""
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(one)
                group.create_task(other)
        except* EngineError as errors:
            # Where both failed, the engine's refusal of the tensors says the most.
            raise min(errors.exceptions, key=lambda error: not isinstance(error, AdapterRejected)) from None

    async def _post(self, url: str, path: str, body: Mapping[str, Any] | None = None) -> None:
        await self._request("POST", url, path, body)

    async def _request(self, method: str, url: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        if self._session is None:
            self._session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=_REQUEST_SECONDS))
        try:
            async with self._session.request(method, url + path, json=body) as response:
                text = await response.text()
                if response.status >= 500:
                    raise EngineUnavailable(f"{url}{path} answered {response.status}: {text[:200]}")
                if response.status != 200:
                    raise _refusal(path, response.status, f"{url}{path} answered {response.status}: {text[:200]}")
                return json.loads(text)
        except (TimeoutError, aiohttp.ClientError, OSError, ValueError) as error:
            raise EngineUnavailable(f"{url}{path}: {type(error).__name__}: {error}") from error


def _entries(path: Path) -> dict[str, TensorEntry]:
    """As ``tensors_of``; StoreError where the disk or this process is at fault, not the folder."""
    try:
        return tensors_of(path)
    except CorruptArtefact as error:
        cause = error.__cause__
        if isinstance(cause, OSError) and not isinstance(cause, FileNotFoundError):
            raise StoreError(f"{path} cannot be read at the moment: {cause.strerror}") from error
        raise


def _refusal(path: str, status: int, message: str) -> EngineError:
    """What an answer below 500 means: only what is said of the tensors is about the version."""
    if status in _ABOUT_TENSORS.get(path, ()):
        return AdapterRejected(message)
    if status in _NOT_THERE:
        return EngineUnsupported(message, hint="start vLLM with VLLM_SERVER_DEV_MODE=1 and --weight-transfer-config")
    return EngineError(message)


class SenderProcess:
    """A WeightSender that is a process in the engine's environment, where vLLM's NCCL code is, on a GPU of its own.

    It reads commands as JSON lines and answers each with one: ``{"ok": true}`` or ``{"error": …}``.
    """

    def __init__(self, *, python: str, environment: Mapping[str, str], script: Path = _SENDER) -> None:
        """``python``: the interpreter of the engine's environment; ``environment``: without Hone's secrets."""
        self._python = python
        self._script = script
        self._environment = environment
        self._process: asyncio.subprocess.Process | None = None

    async def join(self, engine: str, *, address: str, port: int, world_size: int) -> None:
        """As ``WeightSender.join``."""
        await self._ask({"do": "join", "engine": engine, "address": address, "port": port, "world_size": world_size})

    async def send(self, engine: str, path: str) -> None:
        """As ``WeightSender.send``."""
        await self._ask({"do": "send", "engine": engine, "path": path})

    async def close(self) -> None:
        """End the process."""
        process, self._process = self._process, None
        if process is not None and process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()

    async def _ask(self, command: Mapping[str, Any]) -> None:
        try:
            process = await self._started()
            assert process.stdin is not None and process.stdout is not None
            process.stdin.write(json.dumps(command).encode() + b"\n")
            await process.stdin.drain()
            line = await process.stdout.readline()
            answer = json.loads(line) if line else {"error": "it ended"}
        except (OSError, ValueError) as error:
            await self.close()
            raise EngineUnavailable(f"the sender of weights failed: {error}") from error
        except asyncio.CancelledError:
            # It may wait for a peer that will never come.
            await self.close()
            raise
        if "error" in answer:
            await self.close()
            raise EngineUnavailable(f"the sender of weights failed: {answer['error']}")

    async def _started(self) -> asyncio.subprocess.Process:
        if self._process is None or self._process.returncode is not None:
            log.info("sender_started", python=self._python)
            self._process = await asyncio.create_subprocess_exec(
                self._python,
                str(self._script),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL,
                limit=_LONGEST_LINE,
                cwd=os.sep,
                env=dict(self._environment),
            )
        return self._process
