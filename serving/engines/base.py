"""The port to one engine replica, in two parts: what every engine does, and what replaces weights in place."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True)
class EngineMetrics:
    """What an engine counts, in one shape for all engines. Counters begin at zero when an engine starts."""

    running: int = 0
    """Requests being decoded, now."""
    waiting: int = 0
    """Requests that have not begun, now."""
    kv_use: float = 0.0
    """Share of the KV cache in use, now, 0 to 1."""
    prefix_queries: float = 0.0
    """Prompt tokens looked up in the prefix cache, so far."""
    prefix_hits: float = 0.0
    """Prompt tokens found there, so far."""
    output_tokens: float = 0.0
    """Sampled tokens, so far."""
    decoded_tokens: float = 0.0
    """Sampled tokens of requests that have ended, so far."""
    decode_seconds: float = 0.0
    """Time from first to last token of requests that have ended, summed, so far."""
    drafts: float = 0.0
    """Speculation steps, so far."""
    draft_tokens: float = 0.0
    """Proposed tokens, so far."""
    accepted_tokens: float = 0.0
    """Proposed tokens that were accepted, so far; the bonus token is not counted."""
    accepted_by_position: tuple[float, ...] = ()
    """Accepted tokens at each position of a draft, so far."""
    raw: Mapping[str, float] = field(default_factory=dict)
    """Every sample under the engine's own name, summed over labels."""


@dataclass(frozen=True)
class Generated:
    """What an engine sampled after a prompt."""

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    """Log-prob (nats) of each token given the prompt and those before it, as the engine says."""


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

    async def version(self) -> str:
        """The engine's release, such as ``0.32.0``."""
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

    async def generate(
        self, model: str, token_ids: Sequence[int], *, max_tokens: int, temperature: float = 0.0, seed: int = 0
    ) -> Generated:
        """Sample after a prompt of token ids; temperature 0 is greedy. EngineError: unknown model."""
        ...

    async def metrics(self) -> EngineMetrics:
        """Its counters and gauges."""
        ...

    async def close(self) -> None:
        """Give back connections."""
        ...


class WeightControl(Protocol):
    """Replacing an engine's own weights while it runs. The order of the calls is the hot-swap's business.

    Raises like Engine; EngineUnsupported where this engine, as it was started, cannot do that at all.
    """

    async def pause(self) -> None:
        """Freeze requests in flight, which go on after ``resume``; new ones wait. Calling it twice is no error."""
        ...

    async def resume(self) -> None:
        """Go on; requests that were frozen are recomputed under the present weights."""
        ...

    async def paused(self) -> bool:
        """Whether it is paused."""
        ...

    async def load_weights(self, path: str, *, label: str) -> None:
        """Replace all weights by those of the Hugging Face folder ``path``, as the engine's machine sees it.

        ``label`` names them from now on (``weights_label``). Caches are not cleared. AdapterRejected: the folder
        does not fit; what the engine holds then is undefined until a good folder was loaded.
        """
        ...

    async def clear_caches(self) -> None:
        """Forget every key and value computed so far. EngineError when the engine could not forget all of it."""
        ...

    async def weights_label(self) -> str:
        """The label of the present weights; ``default`` when none was ever given."""
        ...

    async def weight_checksums(self) -> dict[str, str]:
        """Parameter name, as the engine calls it → digest of what is in its memory."""
        ...

    async def load_drafter(self, path: str) -> None:
        """Replace the draft model's weights by those of ``path``; of the same architecture and sizes."""
        ...

    async def set_speculation(self, on: bool) -> None:
        """Switch speculation off or on again without a restart."""
        ...
