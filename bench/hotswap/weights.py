"""Weights of the versions that the benchmark swaps, as torch computes with them: the judge of what engines answer."""

import json
import random
import shutil
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import AutoModelForCausalLM

RANK = 4
ALPHA = 8.0
MODULES = ("q_proj", "v_proj", "o_proj")
SPREAD = 0.05
"""Of the random entries of both matrices: versions differ by half a nat a token, and still write sentences."""
_CONFIG = "adapter_config.json"
_WEIGHTS = "adapter_model.safetensors"


def write_adapter(folder: Path, base: Path, *, seed: int) -> None:
    """A PEFT folder whose matrices are random: another seed is another version."""
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for name, (outputs, inputs) in _shapes(base).items():
        tensors[f"base_model.model.{name}.lora_A.weight"] = torch.randn(RANK, inputs, generator=generator) * SPREAD
        tensors[f"base_model.model.{name}.lora_B.weight"] = torch.randn(outputs, RANK, generator=generator) * SPREAD
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": RANK,
        "lora_alpha": ALPHA,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": list(MODULES),
    }
    folder.mkdir(parents=True)
    save_file(tensors, folder / _WEIGHTS, metadata={"format": "pt"})
    (folder / _CONFIG).write_text(json.dumps(config))


def write_whole(folder: Path, base: Path, adapter: Path) -> None:
    """A Hugging Face folder of the Base with the adapter merged in, in the Base's own data type."""
    shutil.copytree(base, folder)
    tensors = load_file(base / "model.safetensors")
    for name, (product, _) in _adapted(adapter).items():
        tensors[name] = (tensors[name].float() + product).to(tensors[name].dtype)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


class Judge:
    """One model whose weights become those of one version after another; float32."""

    def __init__(self, base: Path) -> None:
        self._base = base
        self._model: nn.Module = AutoModelForCausalLM.from_pretrained(str(base), dtype=torch.float32)
        self._model.train(False)
        self._parameters: dict[str, nn.Parameter] = dict(self._model.named_parameters())
        self._originals: dict[str, Tensor] = {}

    def become(self, folder: Path | None) -> None:
        """Take the weights of an adapter's or a whole model's folder; None: the Base's."""
        for name, tensor in self._originals.items():
            self._parameters[name].data.copy_(tensor)
        self._originals.clear()
        if folder is None:
            return
        changed = _adapted(folder) if (folder / _CONFIG).exists() else _whole(folder)
        for name, (tensor, added) in changed.items():
            parameter = self._parameters[name]
            self._originals[name] = parameter.data.clone()
            parameter.data.copy_(parameter.data + tensor if added else tensor)

    @torch.inference_mode()
    def logprobs(self, sequences: Sequence[Sequence[int]]) -> list[list[float]]:
        """Log-prob (nats) of each token given those before it; 0 for the first."""
        width = max(len(one) for one in sequences)
        # Padding on the right: causal attention keeps it out.
        tokens = torch.tensor([[*one, *([0] * (width - len(one)))] for one in sequences])
        scores = torch.log_softmax(self._model(input_ids=tokens[:, :-1], use_cache=False).logits.float(), dim=-1)
        chosen = scores.gather(2, tokens[:, 1:, None])[..., 0].tolist()
        return [[0.0, *row[: len(one) - 1]] for one, row in zip(sequences, chosen, strict=True)]


def windows(sequences: Sequence[Sequence[int]], *, count: int, width: int, seed: int) -> list[tuple[int, ...]]:
    """Different short pieces of texts, for Probes."""
    generator = random.Random(seed)
    found: dict[tuple[int, ...], None] = {}
    for _ in range(100 * count):
        one = sequences[generator.randrange(len(sequences))]
        start = generator.randrange(max(1, len(one) - width))
        found.setdefault(tuple(one[start : start + width]))
        if len(found) == count:
            break
    return list(found)


def _shapes(base: Path) -> dict[str, tuple[int, int]]:
    found = {}
    with safe_open(base / "model.safetensors", framework="pt") as file:
        for name in file.keys():  # noqa: SIM118 - no mapping
            module = name.removesuffix(".weight")
            if module.endswith(MODULES):
                outputs, inputs = file.get_slice(name).get_shape()
                found[module] = (outputs, inputs)
    return found


def _adapted(folder: Path) -> dict[str, tuple[Tensor, bool]]:
    config = json.loads((folder / _CONFIG).read_text())
    scale = config["lora_alpha"] / config["r"]
    tensors = load_file(folder / _WEIGHTS)
    found = {}
    for name in tensors:
        if name.endswith(".lora_A.weight"):
            stem = name.removesuffix(".lora_A.weight")
            product = scale * tensors[f"{stem}.lora_B.weight"].float() @ tensors[name].float()
            found[f"{stem.removeprefix('base_model.model.')}.weight"] = (product, True)
    return found


def _whole(folder: Path) -> dict[str, tuple[Tensor, bool]]:
    found: dict[str, tuple[Tensor, bool]] = {}
    for file in sorted(folder.glob("*.safetensors")):
        found |= {name: (tensor.float(), False) for name, tensor in load_file(file).items()}
    # A head that is tied to the embedding has no parameter of its own.
    found.pop("lm_head.weight", None)
    return found
