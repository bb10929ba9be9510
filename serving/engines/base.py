"""The port to one engine replica."""

from collections.abc import Sequence
from typing import Protocol


class Engine(Protocol):
    """What the fleet needs of an engine replica; requests of clients do not pass here.

    Every method raises EngineUnavailable when the engine cannot be reached or does not answer in time, and
    EngineError when it answers in a form that is not understood.
    """

    @property
    def url(self) -> str:
        """Address without a trailing slash, such as ``http://127.0.0.1:8410``."""
        ...

    async def health(self) -> bool:
        """Whether the engine says that it can answer; never raises for an engine that is away."""
        ...

    async def models(self) -> list[str]:
        """The names that the engine answers to: the Base first, then adapters."""
        ...

    async def load_adapter(self, name: str, path: str) -> None:
        """Make the LoRA folder ``path`` answer under ``name``; AdapterRejected carries the reason."""
        ...

    async def unload_adapter(self, name: str) -> None:
        """Forget ``name`` for new requests; those in flight end on it. An unknown name is no error."""
        ...

    async def prompt_logprobs(self, model: str, token_ids: Sequence[int]) -> list[float | None]:
        """Log-prob (nats) of each token given those before it, the first None. EngineError: unknown model."""
        ...

    async def metrics(self) -> dict[str, float]:
        """Sample name → value, summed over labels; a ``position`` label stays, as ``name[position]``."""
        ...

    async def close(self) -> None:
        """Give back connections."""
        ...
