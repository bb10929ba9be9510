"""Checks a LoRA folder before any engine is asked to load it: an engine's refusal is slower and says less."""

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from core.errors import AdapterRejected, CorruptArtefact
from serving.weights.safetensors_file import TensorEntry, first_not_finite, read_header

_LORA_TENSOR = re.compile(r"^base_model\.model\.(?P<module>.+)\.lora_(?P<side>[AB])\.weight$")


@dataclass(frozen=True)
class AdapterInfo:
    """What a LoRA folder holds."""

    rank: int
    alpha: float
    target_modules: tuple[str, ...]
    """Last name parts of the adapted layers, such as ``q_proj``, sorted."""
    tensors: int


def base_shapes(base_path: Path) -> dict[str, tuple[int, ...]]:
    """Module name → shape of its weight, for all modules of the Base at ``base_path``.

    Raises CorruptArtefact when the folder has no readable weights.
    """
    shapes = {}
    for file in sorted(base_path.glob("*.safetensors")):
        for name, entry in read_header(file).items():
            shapes[name.removesuffix(".weight")] = entry.shape
    if not shapes:
        raise CorruptArtefact(f"{base_path} has no weights")
    return shapes


def check_adapter(path: Path, *, base_path: Path, max_rank: int) -> AdapterInfo:
    """Whether the PEFT folder ``path`` fits the Base in ``base_path``, and what it holds.

    Raises CorruptArtefact for files that are missing or malformed, AdapterRejected for an adapter that is
    whole but cannot be served: too high a rank, wrong shapes, unknown layers, numbers that are not finite.
    """
    config = _read_config(path / "adapter_config.json")
    rank = _check_config(config, max_rank)
    weights = path / "adapter_model.safetensors"
    tensors = read_header(weights)
    modules = _pairs(tensors)
    base = base_shapes(base_path)
    for module, sides in modules.items():
        _check_shapes(module, sides, base, rank)
    broken = first_not_finite(weights)
    if broken is not None:
        raise AdapterRejected(f"the adapter's '{broken}' holds numbers that are not finite")
    return AdapterInfo(
        rank=rank,
        alpha=float(config.get("lora_alpha", rank)),
        target_modules=tuple(sorted({module.rsplit(".", 1)[-1] for module in modules})),
        tensors=len(tensors),
    )


def _read_config(path: Path) -> dict[str, Any]:
    try:
        config = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise CorruptArtefact(f"{path} cannot be read: {error}") from error
    if not isinstance(config, dict):
        raise CorruptArtefact(f"{path} is not a JSON object")
    return config


def _check_config(config: dict[str, Any], max_rank: int) -> int:
    if config.get("peft_type") != "LORA":
        raise AdapterRejected(f"the adapter's type is {config.get('peft_type')}, not LORA")
    if config.get("modules_to_save") or config.get("use_dora") or config.get("bias", "none") != "none":
        raise AdapterRejected("engines serve plain LoRA only: no modules_to_save, no DoRA, no bias")
    rank = config.get("r")
    if not isinstance(rank, int) or rank < 1:
        raise CorruptArtefact(f"the adapter's rank is {rank!r}")
    if rank > max_rank:
        raise AdapterRejected(f"the adapter's rank {rank} is above {max_rank}", hint="raise engine.max_lora_rank")
    return rank


def _pairs(tensors: dict[str, TensorEntry]) -> dict[str, dict[str, TensorEntry]]:
    modules: dict[str, dict[str, TensorEntry]] = {}
    for name, entry in tensors.items():
        match = _LORA_TENSOR.match(name)
        if match is None:
            raise AdapterRejected(f"'{name}' is not a LoRA tensor")
        modules.setdefault(match["module"], {})[match["side"]] = entry
    if not modules:
        raise AdapterRejected("the adapter holds no tensors")
    return modules


def _check_shapes(module: str, sides: dict[str, TensorEntry], base: dict[str, tuple[int, ...]], rank: int) -> None:
    if module not in base:
        raise AdapterRejected(f"the Base has no layer '{module}'")
    if set(sides) != {"A", "B"}:
        raise AdapterRejected(f"'{module}' lacks half of its pair of matrices")
    outputs, inputs = base[module] if len(base[module]) == 2 else (0, 0)
    for side, expected in (("A", (rank, inputs)), ("B", (outputs, rank))):
        if sides[side].shape != expected:
            raise AdapterRejected(f"'{module}' lora_{side} has shape {sides[side].shape}, not {expected}")
