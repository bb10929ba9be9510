"""From MicroBatches (NumPy, any rank) to tensors on the rank's device."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from learner.packing import MicroBatch
from learner.token_tree import Segment


@dataclass(frozen=True)
class TensorBatch:
    """What a forward pass and a token-level loss need, each of shape (rows, width)."""

    tokens: Tensor
    positions: Tensor
    mask: Tensor
    """1 where a token was sampled and enters the loss; float32."""
    behaviour_logprobs: Tensor
    advantages: Tensor
    sequences: Tensor
    """Number of the sample that a token's loss belongs to, 0 and up in this batch."""
    sequence_tokens: Tensor
    """Loss tokens of the token's whole Episode; float32."""
    episodes: float
    """How many Episodes have their first sample here: summed over the step, each Episode counts once."""
    owners: Tensor
    """Which sample a token's loss belongs to, as an index into all that was packed for the step."""
    predecessors: Tensor | None
    segments: tuple[Segment, ...] | None

    @property
    def inputs(self) -> dict[str, Any]:
        """Keywords of ``PolicyModel.forward``."""
        return {
            "tokens": self.tokens,
            "mask": self.mask,
            "positions": self.positions,
            "predecessors": self.predecessors,
            "segments": self.segments,
        }


def to_tensors(batch: MicroBatch, device: torch.device) -> TensorBatch:
    """The MicroBatch on ``device``."""

    def moved(array: NDArray[Any]) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(array)).to(device)

    _, numbered = np.unique(batch.samples, return_inverse=True)
    return TensorBatch(
        tokens=moved(batch.tokens),
        positions=moved(batch.positions),
        mask=moved(batch.loss_mask.astype(np.float32)),
        behaviour_logprobs=moved(batch.behaviour_logprobs),
        advantages=moved(batch.advantages),
        sequences=moved(numbered.reshape(batch.samples.shape)),
        sequence_tokens=moved(batch.sequence_tokens.astype(np.float32)),
        episodes=float(len(batch.first_samples)),
        owners=moved(batch.samples),
        predecessors=None if batch.predecessors is None else moved(batch.predecessors),
        segments=batch.segments,
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
