"""Publishes versions while clients talk, gives them the traffic, and takes the time until their first token."""

import asyncio
import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from bench.stack import Stack
from bench.streams import Answer, Clients
from core.errors import HoneError, RequestError
from core.ids import CHECKPOINT, RELEASE, new_id
from core.policy import Base, Checkpoint, PolicyVersion, Probe, Provenance, ServingStatus
from core.release import Release
from serving.weights.folder import folder_checksum
from store.events import VERSIONS

Kind = Literal["lora", "full"]
_LOOK_SECONDS = 0.05
_LONGEST_SECONDS = 120.0
_ASKED_TOKENS = 2


@dataclass(frozen=True)
class Made:
    """A version on disk that nobody published yet."""

    path: Path
    probe: Probe
    checksum: str


@dataclass
class Swap:
    """One swap. Times are ``time.monotonic`` of this process."""

    version: int
    published: float
    live: float = 0.0
    promoted: float = 0.0
    first_token: float | None = None
    engine_seconds: float | None = None
    """From the fleet's decision until the probe had passed."""
    error: str | None = None
    ended: float = 0.0

    @property
    def to_first_token(self) -> float | None:
        """Seconds from the published checkpoint to the first token that a client had of it."""
        return None if self.first_token is None else self.first_token - self.published


def read_made(manifest: Path) -> list[Made]:
    """What ``bench.hotswap.make`` wrote."""
    return [
        Made(Path(one["path"]), Probe.model_validate(one["probe"]), folder_checksum(Path(one["path"])))
        for one in json.loads(manifest.read_text())
    ]


class Swapper:
    """Swaps one Policy's versions, one after the other."""

    def __init__(self, *, stack: Stack, policy: str, kind: Kind, base: Base, clients: Clients) -> None:
        self.swaps: list[Swap] = []
        self._stack = stack
        self._policy = policy
        self._kind: Kind = kind
        self._base = base
        self._first_tokens: dict[int, float] = {}
        self._last = 0
        self._clients = clients
        clients.watch(self._seen)

    async def swap(self, made: Made) -> Swap:
        """Publish, wait until it is served, promote, wait for its first token; the error of a swap is kept in it."""
        swap = Swap(version=0, published=time.monotonic())
        self.swaps.append(swap)
        try:
            async with asyncio.timeout(_LONGEST_SECONDS):
                version = await self._publish(made)
                swap.version = self._last = version.version
                if self._kind == "full":
                    # A single replica takes full weights only once they are to have the traffic.
                    await self._promote(swap)
                    await self._until_live(swap)
                else:
                    await self._until_live(swap)
                    await self._promote(swap)
                while swap.version not in self._first_tokens:
                    # Clients ask again when their answers have ended; how soon a new request is answered by the
                    # new version must not depend on that.
                    if (await self._clients.once(max_tokens=_ASKED_TOKENS)).error is not None:
                        await asyncio.sleep(_LOOK_SECONDS)
                swap.first_token = self._first_tokens[swap.version]
        except (HoneError, TimeoutError) as error:
            swap.error = f"{type(error).__name__}: {error}"
        swap.ended = time.monotonic()
        return swap

    def _seen(self, answer: Answer) -> None:
        self._first_tokens.setdefault(answer.version, answer.arrivals[0])

    async def _publish(self, made: Made) -> PolicyVersion:
        """As the learner does, in one transaction."""
        checkpoint_id = new_id(CHECKPOINT)
        async with self._stack.store.transaction() as work:
            version = await work.versions.mint(
                self._policy,
                kind=self._kind,
                origin="imported",
                parent_version=self._last,
                checkpoint_id=checkpoint_id,
            )
            await work.checkpoints.add(self._checkpoint(checkpoint_id, made, version))
            await work.releases.add(Release(id=new_id(RELEASE), policy=self._policy, version=version.version))
        await self._stack.store.events.publish(VERSIONS, {"policy": self._policy, "version": version.version})
        return version

    def _checkpoint(self, checkpoint_id: str, made: Made, version: PolicyVersion) -> Checkpoint:
        provenance = Provenance(
            parent_version=version.parent_version or 0, code_commit="bench", config={}, packages={}, seed=0, step=0
        )
        more: dict[str, Any] = {"lora_rank": 4} if self._kind == "lora" else {}
        return Checkpoint(
            id=checkpoint_id,
            policy=self._policy,
            version=version.version,
            kind=self._kind,
            path=str(made.path),
            checksum=made.checksum,
            base_fingerprint=self._base.fingerprint,
            probe=made.probe,
            provenance=provenance,
            **more,
        )

    async def _until_live(self, swap: Swap) -> None:
        while True:
            async with self._stack.store.reading() as work:
                stored = await work.versions.get(self._policy, swap.version)
            if stored.serving is ServingStatus.REFUSED:
                raise HoneError(f"the fleet refused {stored.label}: {stored.serving_reason}")
            if stored.serving is ServingStatus.LIVE:
                swap.live, swap.engine_seconds = time.monotonic(), stored.swap_seconds
                return
            await asyncio.sleep(_LOOK_SECONDS)

    async def _promote(self, swap: Swap) -> None:
        body = {"version": swap.version, "reason": "hot-swap benchmark", "skip": ["evaluation"]}
        try:
            await self._stack.admin_post(f"/policies/{self._policy}/promote", body)
        except RequestError as error:
            raise HoneError(f"promoting @{swap.version}: {error.message}") from error
        swap.promoted = time.monotonic()
