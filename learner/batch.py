"""From MicroBatches (NumPy, any rank) to tensors on the rank's device."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from learner.packing import MicroBatch


@dataclass(frozen=True)
class TensorBatch:
    """What a forward pass and a token-level loss need, each of shape (rows, width)."""

    tokens: Tensor
    mask: Tensor
    """1 where a token was sampled and enters the loss; float32."""
    behaviour_logprobs: Tensor
    advantages: Tensor
    sequence_tokens: Tensor
    """Per row: loss tokens of the row's whole Episode; float32, of shape (rows,)."""
    episodes: float
    """How many Episodes have their first row here: summed over the step, each Episode counts once."""


def to_tensors(batch: MicroBatch, device: torch.device) -> TensorBatch:
    """The MicroBatch on ``device``."""
    return TensorBatch(
        tokens=torch.from_numpy(batch.tokens).to(device),
        mask=torch.from_numpy(batch.loss_mask.astype(np.float32)).to(device),
        behaviour_logprobs=torch.from_numpy(batch.behaviour_logprobs).to(device),
        advantages=torch.from_numpy(batch.advantages).to(device),
        sequence_tokens=torch.from_numpy(batch.sequence_tokens.astype(np.float32)).to(device),
        episodes=float(batch.first_rows.sum()),
    )


def pad_sequences(sequences: list[tuple[int, ...]]) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Right-padded token ids, and a mask that is 1 on every token of a sequence but its first."""
    shape = (len(sequences), max(len(sequence) for sequence in sequences))
    tokens = np.zeros(shape, dtype=np.int64)
    mask = np.zeros(shape, dtype=np.float32)
    for row, sequence in enumerate(sequences):
        tokens[row, : len(sequence)] = sequence
        mask[row, 1 : len(sequence)] = 1.0
    return tokens, mask
