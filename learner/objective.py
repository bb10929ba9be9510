"""Objective: what a GRPO step minimises, resolved from the configuration, as functions over one micro-batch.

The presets and the reasons for their defaults: docs/objectives.md.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from core.config.learner import ObjectiveSection
from learner.advantages import (
    GroupAdvantages,
    batch_advantages,
    group_advantages,
    leave_one_out_advantages,
    whitened_by_tokens,
)
from learner.batch import TensorBatch
from learner.corrections import (
    icepop_weights,
    mismatch_weights,
    sequence_kl_weights,
    sequence_weights,
    stale_negative_weights,
)
from learner.loss import (
    clip_loss,
    clipped_tokens,
    kl_k2,
    kl_k3_as_loss,
    seq_mean_token_mean,
    seq_mean_token_sum_norm,
    token_mean,
)
from learner.policy_losses import (
    anchored_loss,
    beyond_variation,
    cispo_loss,
    dppo_loss,
    gspo_loss,
    sequence_log_ratio,
)

Loss = Literal["clip", "gspo", "cispo", "dppo", "anchored"]
Advantage = Literal["group_std", "batch_std", "none", "leave_one_out", "token_whitened"]
Correction = Literal["none", "tis", "icepop", "sequence_mask", "sequence_kl"]
Aggregation = Literal["token_mean", "sequence_mean", "constant"]

_DPPO_CAP = 4.0
"""``dppo`` weighs rare tokens up to this many times ``ratio_cap`` (20 by default, as in the paper)."""


@dataclass(frozen=True)
class Preset:
    """One consistent choice of all parts."""

    loss: Loss
    advantage: Advantage
    correction: Correction
    aggregation: Aggregation
    clip_low: float
    clip_high: float


PRESETS: dict[str, Preset] = {
    "clip": Preset("clip", "group_std", "tis", "token_mean", 0.2, 0.28),
    "dppo": Preset("dppo", "none", "none", "token_mean", 0.2, 0.2),
    "gspo": Preset("gspo", "group_std", "sequence_mask", "sequence_mean", 3e-4, 4e-4),
}


@dataclass(frozen=True)
class StepTotals:
    """What sums are divided by: over all micro-batches of all ranks of one optimizer step."""

    tokens: float
    episodes: float


class Objective:
    """The configured loss over micro-batches, each of whose samples is one sequence."""

    def __init__(self, section: ObjectiveSection) -> None:
        preset = PRESETS[section.preset]
        self._section = section
        self.loss: Loss = section.loss or preset.loss
        self.advantage: Advantage = section.advantage or preset.advantage
        self.correction: Correction = section.correction or preset.correction
        self.aggregation: Aggregation = section.aggregation or preset.aggregation
        own = preset if self.loss == preset.loss else _bounds_of(self.loss)
        self.clip_low = section.clip_low if section.clip_low is not None else own.clip_low
        self.clip_high = section.clip_high if section.clip_high is not None else own.clip_high

    @property
    def needs_reference(self) -> bool:
        """Whether ``terms`` needs the Base's log-probs."""
        return self._section.kl_weight > 0

    def advantages(self, groups: Sequence[Sequence[float]], tokens: Sequence[Sequence[int]]) -> list[GroupAdvantages]:
        """Advantages of the counted rewards of each group; ``tokens``: loss tokens of every attempt."""
        if self.advantage == "batch_std":
            return batch_advantages(groups)
        if self.advantage == "leave_one_out":
            return [leave_one_out_advantages(group) for group in groups]
        if self.advantage == "token_whitened":
            centred = [group_advantages(group, scale="none") for group in groups]
            white = whitened_by_tokens(centred, tokens)
            return [
                GroupAdvantages(values=values, zero_variance=group.zero_variance, counted=group.counted)
                for group, values in zip(centred, white, strict=True)
            ]
        return [group_advantages(group, scale=self.advantage) for group in groups]

    def terms(self, new: Tensor, old: Tensor, batch: TensorBatch, reference: Tensor | None = None) -> Tensor:
        """The loss per token with gradient, corrected, with the KL term; 0 outside the mask."""
        section, mask = self._section, batch.mask
        terms = self._policy_terms(new, old, batch) * self._weights(new, old, batch)
        if reference is not None and section.kl_weight > 0:
            estimate = kl_k2 if section.kl == "k2" else kl_k3_as_loss
            terms = terms + section.kl_weight * estimate(new, reference, mask)
        return terms

    def total(self, terms: Tensor, batch: TensorBatch, totals: StepTotals) -> Tensor:
        """This micro-batch's part of the step's loss: the parts of all micro-batches add up."""
        if self.aggregation == "token_mean":
            return token_mean(terms, batch.mask, totals.tokens)
        if self.aggregation == "sequence_mean":
            return seq_mean_token_mean(
                terms, batch.mask, sequence_tokens=batch.sequence_tokens, global_sequences=totals.episodes
            )
        return seq_mean_token_sum_norm(
            terms,
            batch.mask,
            constant_tokens=self._section.constant_tokens,
            global_sequences=totals.episodes,
        )

    @torch.no_grad()
    def clipped(self, new: Tensor, old: Tensor, batch: TensorBatch) -> Tensor:
        """True where the trust region of the loss leaves a token without gradient."""
        if self.loss == "cispo":
            return torch.zeros_like(batch.mask, dtype=torch.bool)
        if self.loss in ("dppo", "anchored"):
            return beyond_variation(
                new,
                batch.behaviour_logprobs,
                batch.advantages,
                batch.mask,
                threshold_low=self.clip_low,
                threshold_high=self.clip_high,
            )
        if self.loss == "gspo":
            # One ratio a sequence: all its tokens are clipped, or none.
            means = sequence_log_ratio(new, old, batch.mask, batch.sequences)
            new, old = means[batch.sequences], torch.zeros_like(old)
        low, high = self.clip_low, self.clip_high
        return clipped_tokens(new, old, batch.advantages, batch.mask, clip_low=low, clip_high=high)

    def _policy_terms(self, new: Tensor, old: Tensor, batch: TensorBatch) -> Tensor:
        section, mask, gain = self._section, batch.mask, batch.advantages
        low, high = self.clip_low, self.clip_high
        if self.loss == "clip":
            dual_clip = section.dual_clip or None
            return clip_loss(new, old, gain, mask, clip_low=low, clip_high=high, dual_clip=dual_clip)
        if self.loss == "gspo":
            return gspo_loss(new, old, gain, mask, batch.sequences, clip_low=low, clip_high=high)
        if self.loss == "cispo":
            return cispo_loss(new, old, gain, mask, cap=section.ratio_cap)
        behaviour = batch.behaviour_logprobs
        if self.loss == "dppo":
            cap = _DPPO_CAP * section.ratio_cap
            return dppo_loss(new, behaviour, gain, mask, threshold_low=low, threshold_high=high, cap=cap)
        return anchored_loss(new, behaviour, gain, mask, threshold_low=low, threshold_high=high)

    def _weights(self, new: Tensor, old: Tensor, batch: TensorBatch) -> Tensor:
        section, mask, behaviour = self._section, batch.mask, batch.behaviour_logprobs
        low, high = section.correction_low, section.correction_high
        sequences = batch.sequences
        weights = torch.ones_like(mask)
        if self.correction == "tis":
            weights = mismatch_weights(old, behaviour, cap=high)
        elif self.correction == "icepop":
            weights = icepop_weights(old, behaviour, low=low, high=high)
        elif self.correction == "sequence_mask":
            weights = sequence_weights(old, behaviour, mask, sequences, low=low, high=high)
        elif self.correction == "sequence_kl":
            weights = sequence_kl_weights(old, behaviour, mask, sequences, limit=section.sequence_kl_limit)
        if section.stale_negatives > 0:
            weights = weights * stale_negative_weights(
                new, behaviour, batch.advantages, mask, sequences, limit=section.stale_negatives
            )
        return torch.where(mask.bool(), weights, torch.zeros_like(weights))


def _bounds_of(loss: Loss) -> Preset:
    """The bounds with which a loss is used, when it stands in for a preset's own."""
    if loss in ("dppo", "anchored"):
        return PRESETS["dppo"]
    return PRESETS["gspo"] if loss == "gspo" else PRESETS["clip"]
