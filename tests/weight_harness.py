"""Folders of full weights for fake engines."""

from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from tests.serving_harness import HIDDEN


def write_full(path: Path, *, seed: int, hidden: int = HIDDEN) -> Path:
    """Random weights with the shapes of ``serving_harness.write_base``; another ``hidden`` does not fit it."""
    random = np.random.default_rng(seed)
    path.mkdir(parents=True)
    tensors = {"model.embed_tokens.weight": random.normal(size=(16, hidden)).astype(np.float32)}
    for layer in range(2):
        prefix = f"model.layers.{layer}.self_attn"
        tensors[f"{prefix}.q_proj.weight"] = random.normal(size=(hidden, hidden)).astype(np.float32)
        tensors[f"{prefix}.v_proj.weight"] = random.normal(size=(hidden // 2, hidden)).astype(np.float32)
    save_file(tensors, path / "model.safetensors")
    (path / "config.json").write_text('{"model_type": "llama"}')
    return path
