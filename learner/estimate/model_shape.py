"""ModelShape: the sizes of a base model, read from its folder's configuration and safetensors headers."""

import json
import math
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from core.errors import LearnerError

_HEADER_LENGTH = struct.Struct("<Q")
_LONGEST_HEADER = 100 << 20


@dataclass(frozen=True)
class ModelShape:
    """Numbers of a decoder-only transformer."""

    weights: dict[str, tuple[int, ...]]
    """Shape of every stored tensor by name; a tied head is stored once."""
    layers: int
    hidden: int
    intermediate: int
    """Width of the feed-forward part that one token goes through."""
    query_width: int
    key_value_width: int
    """Of keys, and of values, together over their heads."""
    heads: int
    vocabulary: int
    context: int

    @property
    def parameters(self) -> int:
        """Of the whole model."""
        return sum(math.prod(shape) for shape in self.weights.values())

    @property
    def embedding_parameters(self) -> int:
        """Of the token embedding and of a head of its own: they take memory and hardly any time."""
        return sum(
            math.prod(shape) for name, shape in self.weights.items() if len(shape) == 2 and self.vocabulary in shape
        )

    def lora_parameters(self, rank: int, modules: tuple[str, ...]) -> int:
        """Of an adapter on every linear layer with one of these names."""
        return sum(rank * sum(shape) for name, shape in self.weights.items() if _is_target(name, shape, modules))

    def missing_modules(self, modules: tuple[str, ...]) -> list[str]:
        """Those names that no linear layer has."""
        return [one for one in modules if not any(_is_target(*item, (one,)) for item in self.weights.items())]


def read_model_shape(folder: Path) -> ModelShape:
    """Raises LearnerError when the folder has no configuration or no safetensors files that can be read."""
    try:
        config: dict[str, Any] = json.loads((folder / "config.json").read_text())
        config = config.get("text_config") or config
        weights: dict[str, tuple[int, ...]] = {}
        for file in sorted(folder.glob("*.safetensors")):
            weights |= _shapes(file)
        heads = int(config["num_attention_heads"])
        hidden = int(config["hidden_size"])
        width = int(config.get("head_dim") or hidden // heads)
        experts = int(config.get("num_experts_per_tok") or 1)
        inner = config.get("moe_intermediate_size") or config.get("intermediate_size") or 4 * hidden
        shape = ModelShape(
            weights=weights,
            layers=int(config["num_hidden_layers"]),
            hidden=hidden,
            intermediate=experts * int(inner),
            query_width=heads * width,
            key_value_width=int(config.get("num_key_value_heads") or heads) * width,
            heads=heads,
            vocabulary=int(config["vocab_size"]),
            context=int(config.get("max_position_embeddings") or 0),
        )
    except (OSError, ValueError, KeyError, TypeError, struct.error) as error:
        raise LearnerError(
            f"the base model in {folder} cannot be measured: {type(error).__name__}: {error}"
        ) from error
    if not weights:
        raise LearnerError(f"there is no safetensors file in {folder}")
    return shape


def _shapes(file: Path) -> dict[str, tuple[int, ...]]:
    with file.open("rb") as stream:
        (length,) = _HEADER_LENGTH.unpack(stream.read(_HEADER_LENGTH.size))
        if length > _LONGEST_HEADER:
            raise ValueError(f"{file.name} has no safetensors header")
        header = json.loads(stream.read(length))
    return {name: tuple(entry["shape"]) for name, entry in header.items() if name != "__metadata__"}


def _is_target(name: str, shape: tuple[int, ...], modules: tuple[str, ...]) -> bool:
    parts = name.split(".")
    return len(shape) == 2 and parts[-1] == "weight" and len(parts) > 1 and parts[-2] in modules
