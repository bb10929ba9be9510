"""What an engine must answer when asked for the checksums of its weights, computed from a Checkpoint's folder.

vLLM digests every parameter as it lies in its memory (sha256 of the bytes, ``model_loader/weight_checksum.py`` in
0.32): in the engine's dtype, with query, key and value in one tensor and gate and up in another, the vocabulary
padded with zeros to a multiple of 64. For the architectures named here that layout is known, on one device per
replica; for others a replica that passed its probe with the very same folder is the reference.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from core.errors import CorruptArtefact
from serving.weights.full_folder import tensors_of
from serving.weights.safetensors_file import TensorEntry, read_header

_KNOWN = frozenset({"LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM"})
_FUSED = {
    "qkv_proj": ("q_proj", "k_proj", "v_proj"),
    "gate_up_proj": ("gate_proj", "up_proj"),
}
_PARTS = {part: (fused, index) for fused, parts in _FUSED.items() for index, part in enumerate(parts)}
_VOCABULARY = ("model.embed_tokens.weight", "lm_head.weight")
_PADDED_TO = 64
_HEAD = "lm_head.weight"
_EMPTY = hashlib.sha256(b"").hexdigest()
"""Of a weight that the engine repacked elsewhere and emptied."""
_WORDS: dict[str, Any] = {"F32": np.uint32, "F16": np.uint16, "BF16": np.uint16}
_DTYPES = {"float32": "F32", "float16": "F16", "bfloat16": "BF16", "half": "F16", "float": "F32"}


@dataclass(frozen=True)
class Comparison:
    """How an engine's checksums stand to what was expected."""

    compared: int
    """Parameters whose digest was known on both sides."""
    wrong: tuple[str, ...]
    """Parameters with another digest, or that only one side has."""

    @property
    def equal(self) -> bool:
        """Whether all of what was compared agrees, and anything was."""
        return self.compared > 0 and not self.wrong


def expected_checksums(path: Path, *, dtype: str) -> dict[str, str] | None:
    """Parameter name without its rank prefix → digest, for an engine that runs the folder in ``dtype``.

    ``dtype``: the engine's, or ``auto`` for the one that config.json names. None: an architecture, a
    quantisation or a dtype whose layout is not known here. Blocking: reads every byte. Raises CorruptArtefact.
    """
    config = _config(path)
    architectures = config.get("architectures") or []
    kept_as = _DTYPES.get(str(config.get("dtype") or config.get("torch_dtype")) if dtype == "auto" else dtype)
    if not architectures or architectures[0] not in _KNOWN or config.get("quantization_config") or kept_as is None:
        return None
    tied = bool(config.get("tie_word_embeddings"))
    files = {name: file for file in sorted(path.glob("*.safetensors")) for name in read_header(file)}
    entries = tensors_of(path)
    if any(entry.dtype not in _WORDS for entry in entries.values()):
        return None
    return {
        name: _digest(name, [(files[part], entries[part]) for part in parts], kept_as)
        for name, parts in _layout(entries, tied=tied)
    }


def compare_checksums(expected: Mapping[str, str], found: Mapping[str, str]) -> Comparison:
    """Compare by name, without the rank prefix that the engine puts before it; emptied parameters are left out."""
    named = {name.rpartition(":")[2]: digest for name, digest in found.items()}
    told = {name: digest for name, digest in named.items() if digest != _EMPTY}
    wrong = [name for name, digest in told.items() if expected.get(name) != digest]
    wrong += [name for name in expected if name not in named]
    return Comparison(compared=len(told), wrong=tuple(sorted(wrong)))


def ranks(found: Mapping[str, str]) -> int:
    """How many workers an engine's checksums are of: each puts its rank before the names."""
    return len({name.rpartition(":")[0] for name in found})


def _layout(entries: Mapping[str, TensorEntry], *, tied: bool) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Engine parameters with the folder's tensors that lie in them, in order."""
    for name in entries:
        module, _, kind = name.rpartition(".")
        parent, _, last = module.rpartition(".")
        if last in _PARTS:
            fused, index = _PARTS[last]
            if index == 0:
                yield f"{parent}.{fused}.{kind}", tuple(f"{parent}.{part}.{kind}" for part in _FUSED[fused])
        elif not (tied and name == _HEAD) and last != "rotary_emb":
            yield name, (name,)


def _digest(name: str, parts: list[tuple[Path, TensorEntry]], dtype: str) -> str:
    digest = hashlib.sha256()
    for file, entry in parts:
        raw = np.memmap(file, dtype=np.uint8, mode="r")[entry.start : entry.end]
        digest.update(_converted(raw, entry.dtype, dtype).tobytes())
    if name in _VOCABULARY:
        rows, width = parts[0][1].shape
        padding = -rows % _PADDED_TO
        digest.update(bytes(padding * width * np.dtype(_WORDS[dtype]).itemsize))
    return digest.hexdigest()


def _converted(raw: "np.ndarray[Any, Any]", source: str, target: str) -> "np.ndarray[Any, Any]":
    """The words of ``raw`` in another dtype, rounded to nearest even as torch rounds."""
    words = np.frombuffer(raw.tobytes(), dtype=_WORDS[source])
    if source == target:
        return words
    if source == "BF16":
        values = (words.astype(np.uint32) << 16).view(np.float32)
    elif source == "F16":
        values = words.view(np.float16).astype(np.float32)
    else:
        values = words.view(np.float32)
    if target == "F32":
        return values.view(np.uint32)
    if target == "F16":
        with np.errstate(over="ignore"):
            return values.astype(np.float16).view(np.uint16)
    bits = values.view(np.uint32)
    rounded: np.ndarray[Any, Any] = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    return rounded


def _config(path: Path) -> dict[str, Any]:
    try:
        config = json.loads((path / "config.json").read_text())
    except (OSError, ValueError) as error:
        raise CorruptArtefact(f"{path / 'config.json'} cannot be read: {error}") from error
    if not isinstance(config, dict):
        raise CorruptArtefact(f"{path / 'config.json'} is not a JSON object")
    return config
