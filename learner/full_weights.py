"""Full weights as a Hugging Face folder that an engine can take in the Base's place.

The folder has the Base's files, tensor names and shapes, and its dtypes or float32 in their place.
"""

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM

from core.errors import LearnerError, boundary
from learner.logprobs import sequence_logprobs

_WEIGHTS = ("*.safetensors", "*.bin", "*.pt", "*.gguf")
_HALVES = frozenset({torch.float16, torch.bfloat16})
_DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


def write_full_folder(
    state: Mapping[str, torch.Tensor], base_path: Path, folder: Path, *, widen: bool = False
) -> None:
    """The Base's files again, tensor by tensor, each in the Base's dtype, with all that is not weights beside them.

    ``widen``: 16-bit tensors in float32 instead, for engines that run in it; config.json then says so.
    Raises LearnerError when ``state`` lacks a tensor of the Base's folder.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for file in sorted(base_path.glob("*.safetensors")):
        tensors = {}
        with safe_open(file, framework="pt") as opened:
            metadata = opened.metadata()
            for name in opened.keys():  # noqa: SIM118 - no mapping
                if name not in state:
                    raise LearnerError(f"the loaded model has no tensor '{name}', which the Base's folder has")
                dtype = opened.get_tensor(name).dtype
                tensors[name] = state[name].to(torch.float32 if widen and dtype in _HALVES else dtype).contiguous()
        # Tensors that share memory cannot be written as they are.
        save_file({name: tensor.clone() for name, tensor in tensors.items()}, folder / file.name, metadata=metadata)
    weights = {file for pattern in _WEIGHTS for file in base_path.glob(pattern)}
    for file in sorted(base_path.iterdir()):
        if file.is_file() and file not in weights:
            shutil.copyfile(file, folder / file.name)
    if widen:
        _name_float32(folder / "config.json")


def _name_float32(file: Path) -> None:
    """What reads the folder in the dtype that its configuration names must not round it."""
    config = json.loads(file.read_text())
    named = [key for key in ("dtype", "torch_dtype") if key in config]
    if any(config[key] != "float32" for key in named):
        file.write_text(json.dumps(config | dict.fromkeys(named, "float32"), indent=2))


def folder_dtypes(path: Path) -> frozenset[torch.dtype]:
    """The dtypes of a folder's tensors."""
    found = set()
    for file in sorted(path.glob("*.safetensors")):
        with safe_open(file, framework="pt") as opened:
            found |= {opened.get_slice(name).get_dtype() for name in opened.keys()}  # noqa: SIM118 - no mapping
    return frozenset(_DTYPES[name] for name in found if name in _DTYPES)


def load_model(path: Path, dtype: torch.dtype = torch.float32) -> Any:
    """The model of a folder, on the CPU. Raises LearnerError."""
    with boundary(LearnerError, f"loading the model from {path}"):
        model: Any = AutoModelForCausalLM.from_pretrained(str(path), dtype=dtype)
        return model.eval()


@torch.no_grad()
def score_sequences(model: Any, sequences: Sequence[tuple[int, ...]]) -> tuple[tuple[float, ...], ...]:
    """Log-prob of each token given those before it; the first gets 0."""
    head = model.get_output_embeddings().weight
    scores = []
    for sequence in sequences:
        tokens = torch.tensor([sequence])
        hidden = model.get_decoder()(input_ids=tokens, use_cache=False).last_hidden_state
        logprobs, _ = sequence_logprobs(hidden, head, tokens, torch.ones_like(tokens))
        scores.append(tuple(logprobs[0].tolist()))
    return tuple(scores)
