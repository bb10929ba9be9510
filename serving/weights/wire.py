"""The wire: how a version's full weights reach a paused engine.

``DiskWire`` lets the engine read the folder itself, on any machine. ``serving.weights.nccl_wire`` sends tensors from
one GPU to the others. Both end with the same engine state, which the hot-swap verifies by checksums and a probe.
"""

from dataclasses import dataclass
from typing import Protocol

from core.policy import Probe


@dataclass(frozen=True)
class FullWeights:
    """One version of a full-weight Policy, as far as a replica needs it. Version 0 is the Base."""

    policy: str
    version: int
    path: str
    """A Hugging Face folder, as the engine's machine sees it."""
    checksum: str
    """Of the Checkpoint's folder; the Base's fingerprint for version 0."""
    probe: Probe | None = None
    """None: the Base, which no learner has scored; its checksums identify it."""

    @property
    def label(self) -> str:
        """``coder@17``: what the engine calls these weights."""
        return f"{self.policy}@{self.version}"


class WeightLoader(Protocol):
    """The part of an engine that a wire needs."""

    @property
    def url(self) -> str:
        """Address without a trailing slash."""
        ...

    async def load_weights(self, path: str, *, label: str) -> None:
        """As ``WeightControl.load_weights``."""
        ...


class WeightWire(Protocol):
    """One way to bring weights into engines."""

    async def apply(self, engine: WeightLoader, weights: FullWeights) -> None:
        """Replace all weights of a paused engine by ``weights`` and label them; caches are not cleared.

        Raises AdapterRejected when they do not fit, EngineUnavailable when the engine or the wire broke,
        EngineUnsupported when the engine was not started for this wire, StoreError when the folder cannot be read at
        the moment: what the engine holds after any of them is undefined until a load has succeeded.
        """
        ...

    async def close(self) -> None:
        """Give back processes and connections."""
        ...


class DiskWire:
    """The engine reads the folder from a disk that it shares with the fleet."""

    async def apply(self, engine: WeightLoader, weights: FullWeights) -> None:
        """One call of ``load_weights``."""
        await engine.load_weights(weights.path, label=weights.label)

    async def close(self) -> None:
        """Nothing is held."""
