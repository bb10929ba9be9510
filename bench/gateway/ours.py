"""Hone as a candidate: a real gateway process on SQLite, with keys, limits, routing and the journal switched on."""

import array
import asyncio
import os
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import msgspec
import psutil

from bench.gateway.candidates import Server
from bench.gateway.load import Target, Window
from bench.gateway.machine import LOAD_CORE, clean_environment, pinned
from bench.gateway.native import free_port, logprobs, token_ids
from core.access import Allowance, ApiKey, Scope, Tenant, hash_key, mint_key
from core.config.load import load_config
from core.deployment import Deployment, DeploymentStatus
from core.policy import Base, Policy
from core.turn import Turn
from core.variant import Variant
from gateway.capture.frames import decode_call
from gateway.capture.reader import JournalReader
from gateway.capture.record import CapturedCall
from gateway.release import base_release
from store.migrate import upgrade
from store.store import Store

POLICY = "coder"
_AMPLE = 10**9
_LIMITS = Allowance(
    requests_per_minute=_AMPLE, tokens_per_minute=_AMPLE, concurrent_streams=_AMPLE, tokens_per_month=10**15
)
"""High enough never to refuse: what is measured is the counting."""
_DRAIN_SECONDS = 600.0
_STILL = 12
"""Looks, half a second apart, without a new Turn after which the recorder is taken to be done."""
_COUNTER_DIGITS = 8


class _Entry(msgspec.Struct):
    logprob: float


class _Logprobs(msgspec.Struct):
    content: list[_Entry]


class _Text(msgspec.Struct):
    content: str = ""


class _Choice(msgspec.Struct):
    message: _Text | None = None
    delta: _Text | None = None
    logprobs: _Logprobs | None = None
    token_ids: list[int] | None = None


class _Payload(msgspec.Struct):
    choices: list[_Choice]


_decode_payload = msgspec.json.Decoder(_Payload).decode


@dataclass
class TurnCount:
    """What was compared with what the mock engine had sent."""

    checked: int = 0
    lost: int = 0
    """Answers that a client had received whole and that are not there."""
    wrong: int = 0
    """Turns whose ids or log-probs are not those of the answer."""
    content_without_consent: int = 0

    def add(self, other: "TurnCount") -> None:
        """Add another count to this one."""
        self.checked += other.checked
        self.lost += other.lost
        self.wrong += other.wrong
        self.content_without_consent += other.content_without_consent


class Hone:
    """The gateway process and what belongs to it. The recorder runs apart, on the load core, when it is asked to."""

    def __init__(self, folder: Path, upstream: int) -> None:
        self.folder = folder / "hone"
        self.folder.mkdir()
        self._port = free_port()
        self._environment = {
            "HONE_CONFIG": os.devnull,
            "HONE_DATA_DIR": str(self.folder),
            "HONE_BASE__NAME": "base",
            "HONE_GATEWAY__PORT": str(self._port),
            "HONE_GATEWAY__RECORDER": "external",
            "HONE_GATEWAY__JOURNAL_MAX_MIB": "16384",
            "HONE_LOG__LEVEL": "warning",
        }
        self._config = load_config(environment=self._environment)
        self._keys = {True: mint_key(), False: mint_key()}
        upgrade(self._config.database_url)
        asyncio.run(self._seed(f"http://127.0.0.1:{upstream}"))
        self._readers: dict[Path, JournalReader] = {}
        self.server = Server(
            name="hone",
            command=[sys.executable, "-m", "hone.processes.gateway"],
            port=self._port,
            log=self.folder / "gateway.log",
            environment=self._environment,
        )
        self.server.ready("/health")
        self.captured = self._target("hone, capture on", training=True)
        self.plain = self._target("hone, capture off", training=False)

    def _target(self, name: str, *, training: bool) -> Target:
        return Target(name=name, port=self._port, pid=self.server.pid, key=self._keys[training], model=POLICY)

    async def _seed(self, engine_url: str) -> None:
        store = await Store.open(self._config)
        async with store.transaction() as work:
            await work.tenants.add(Tenant(id="ten_bench", name="bench", allowance=_LIMITS))
            await work.bases.put(Base(name="base", path="/models/base", fingerprint="f" * 64))
            await work.policies.add(Policy(name=POLICY, base="base"))
            await work.releases.add(base_release(POLICY))
            for training, plaintext in self._keys.items():
                await work.api_keys.add(
                    ApiKey(
                        id=f"key_{int(training)}",
                        tenant_id="ten_bench",
                        name="captured" if training else "plain",
                        key_hash=hash_key(plaintext),
                        scopes=frozenset({Scope.INFERENCE}),
                        training_granted=training,
                        models=(POLICY,),
                        allowance=_LIMITS,
                    )
                )
            await work.deployments.put(
                Deployment(
                    id="dep_bench",
                    base="base",
                    variant=Variant.STANDARD,
                    engine="vllm",
                    url=engine_url,
                    status=DeploymentStatus.READY,
                )
            )
        await store.close()

    def check_journal(self, windows: list[Window], samples: list[CapturedCall] | None = None) -> TurnCount:
        """Read the journal to its end, compare every Turn, and let the gateway know that it is drained.

        ``samples`` receives some of the records.
        """
        time.sleep(0.5)
        found: set[int] = set()
        count = TurnCount()
        for folder in sorted((self.folder / "journal").glob("*")):
            if not folder.is_dir() or folder.name.startswith(".") or folder.name == "corrupt":
                continue
            reader = self._readers.setdefault(folder, JournalReader(folder))
            while (chunk := reader.read(1000)).bodies:
                for body in chunk.bodies:
                    call = decode_call(body)
                    self._check_call(call, found, count)
                    if samples is not None and len(samples) < 256 and call.consent:
                        samples.append(call)
                reader.advance(chunk.ends[-1])
        seen = _counters(window for window in windows if window.target == self.captured.name)
        count.lost += len(seen - found)
        return count

    @staticmethod
    def _check_call(call: CapturedCall, found: set[int], count: TurnCount) -> None:
        if not call.consent:
            count.content_without_consent += bool(call.payloads) or b"messages" in call.request
            return
        if call.broken is not None:
            return
        text, ids, values = "", [], []
        for payload in call.payloads:
            for choice in _decode_payload(payload).choices:
                part = choice.message or choice.delta
                text += part.content if part is not None else ""
                ids += choice.token_ids or []
                values += [entry.logprob for entry in choice.logprobs.content] if choice.logprobs else []
        _compare(text, tuple(ids), tuple(values), found, count)

    def drain(self) -> tuple[int, float]:
        """Run the recorder on the load core until all is in the store: the Turns added, and its CPU µs per Turn."""
        before = len(self._stored_ids())
        command = [sys.executable, "-m", "hone.processes.recorder"]
        process = subprocess.Popen(pinned(LOAD_CORE, command), env=clean_environment(self._environment))
        try:
            handle, began, last, still = psutil.Process(process.pid), 0.0, before, 0
            until = time.monotonic() + _DRAIN_SECONDS
            while still < _STILL and time.monotonic() < until:
                time.sleep(0.5)
                if process.poll() is not None:
                    raise RuntimeError(f"the recorder ended with {process.returncode}")
                now = len(self._stored_ids())
                if now == before:
                    # Until its first Turn the recorder is starting.
                    began = sum(handle.cpu_times()[:2])
                still = still + 1 if now == last else 0
                last = now
            spent = sum(handle.cpu_times()[:2]) - began
        finally:
            process.terminate()
            process.wait()
        added = last - before
        return added, 1e6 * spent / max(1, added)

    def check_store(self, windows: list[Window]) -> TurnCount:
        """Compare every stored Turn that has content with what the mock engine sent."""
        return asyncio.run(self._check_store(windows))

    async def _check_store(self, windows: list[Window]) -> TurnCount:
        found: set[int] = set()
        count = TurnCount()
        store = await Store.open(self._config)
        async with store.reading() as work:
            for turn_id in self._stored_ids():
                turn: Turn = await work.turns.get(turn_id)
                if not turn.content_kept or turn.finish_reason != "stop":
                    continue
                text = str(turn.response.get("content", ""))
                _compare(text, turn.output_ids, turn.output_logprobs, found, count)
        await store.close()
        seen = _counters(window for window in windows if window.target == self.captured.name)
        count.lost += len(seen - found)
        return count

    def _stored_ids(self) -> list[str]:
        database = sqlite3.connect(f"file:{self.folder / 'hone.db'}?mode=ro", uri=True)
        try:
            return [row[0] for row in database.execute("SELECT id FROM turns")]
        finally:
            database.close()

    def stop(self) -> None:
        """End the gateway."""
        self.server.stop()


def _counters(windows: Iterable[Window]) -> set[int]:
    """The counters of all answers that clients received in these windows."""
    seen = array.array("I")
    for window in windows:
        assert window.counters is not None
        seen.frombytes(window.counters.read_bytes())
    return set(seen)


def _compare(text: str, ids: tuple[int, ...], values: tuple[float, ...], found: set[int], count: TurnCount) -> None:
    """Compare one Turn with what follows from the counter at the beginning of its text."""
    count.checked += 1
    digits = text[:_COUNTER_DIGITS]
    if not digits.isdigit() or int(digits) in found:
        count.wrong += 1
        return
    counter = int(digits)
    found.add(counter)
    if ids != token_ids(counter) or values != logprobs(counter):
        count.wrong += 1
