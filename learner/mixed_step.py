"""One optimizer step on a Mixture: the weighted sum of policy-gradient, SFT, DPO and rejection-sampling losses.

Each loss is a mean over its own tokens or pairs of all ranks and micro-batches, so that the step's gradient is the
weighted sum of the gradients that each loss would have alone, however much of each kind there is.

DPO needs the sums of log-probs over both whole answers of a pair, which may lie in different micro-batches and on
different ranks. So the sums are computed first, without gradient; the loss is then linear in each log-prob, with the
derivative as its factor, and gives the exact gradient whatever the packing.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from core.config.learner import LearnerSection
from core.config.learner_live import LossWeightsSection
from core.errors import LearnerError
from learner.batch import TensorBatch
from learner.deepspeed_engine import DeepSpeedEngine
from learner.distributed import World
from learner.preference_loss import dpo_loss
from learner.step import PolicyPart, SftPart, UpdateMetrics, forward

Reference = Callable[[], AbstractContextManager[None]]


@dataclass(frozen=True)
class MixedBatches:
    """This rank's micro-batches of a Mixture, by loss."""

    policy: Sequence[TensorBatch] = ()
    demonstrations: Sequence[TensorBatch] = ()
    pairs: Sequence[TensorBatch] = ()
    """Of ``learner.mixture.paired_samples``: sample 2 k is chosen and sample 2 k + 1 rejected in pair k."""
    pair_count: int = 0
    """Of the whole step."""
    best: Sequence[TensorBatch] = ()


class _Part(Protocol):
    def backward(self, weight: float) -> None: ...

    def result(self) -> tuple[float, dict[str, float]]: ...


def mixed_update(
    engine: DeepSpeedEngine,
    batches: MixedBatches,
    *,
    config: LearnerSection,
    weights: LossWeightsSection,
    world: World,
    reference: Reference = nullcontext,
) -> UpdateMetrics:
    """``config.updates_per_batch`` optimizer steps; metrics of the last one.

    ``reference``: inside what it returns, the engine's model is the Base. Raises LearnerError for a Mixture without
    anything to learn from, Diverged for a gradient that is not finite.
    """
    started = time.perf_counter()
    parts: list[tuple[str, float, _Part]] = []
    if batches.policy:
        part = PolicyPart(engine, batches.policy, config=config, world=world, reference=reference)
        parts.append(("policy", weights.policy, part))
    if batches.demonstrations:
        parts.append(("sft", weights.sft, SftPart(engine, batches.demonstrations, world=world)))
    if batches.best:
        parts.append(("rejection", weights.rejection, SftPart(engine, batches.best, world=world)))
    if batches.pairs:
        parts.append(
            ("dpo", weights.dpo, DpoPart(engine, batches, weights=weights, world=world, reference=reference))
        )
    if not parts:
        raise LearnerError("a step without anything to learn from cannot be trained on")
    for _ in range(config.updates_per_batch):
        for _, weight, one in parts:
            one.backward(weight)
        norm = engine.step()
    total, values = 0.0, dict[str, float]()
    for name, weight, one in parts:
        loss, more = one.result()
        total += weight * loss
        values |= {f"{name}_loss": loss} | more
    values["train_seconds"] = time.perf_counter() - started
    return UpdateMetrics(loss=total, gradient_norm=norm, values=values)


class DpoPart:
    """The preferences of one step."""

    def __init__(
        self,
        engine: DeepSpeedEngine,
        batches: MixedBatches,
        *,
        weights: LossWeightsSection,
        world: World,
        reference: Reference,
    ) -> None:
        self._engine = engine
        self._batches = batches.pairs
        self._count = batches.pair_count
        self._weights = weights
        self._world = world
        with torch.no_grad(), reference():
            self._reference = self._sums()
        self._loss = self._accuracy = self._margin = 0.0

    def backward(self, weight: float) -> None:
        """Add ``weight`` times the gradient of the mean loss of a pair."""
        with torch.no_grad():
            own = self._sums()
        factors = self._factors(own)
        for batch in self._batches:
            new, _ = forward(self._engine, batch, 1.0)
            factor = factors.to(new)[batch.owners]
            loss = torch.where(batch.mask.bool(), factor * new, torch.zeros_like(new)).sum()
            self._engine.backward(loss * weight * self._world.size)

    def result(self) -> tuple[float, dict[str, float]]:
        """Mean loss, share of pairs in the right order and mean margin, before the last update."""
        return self._loss, {"pairs": float(self._count), "dpo_accuracy": self._accuracy, "dpo_margin": self._margin}

    def _factors(self, own: Tensor) -> Tensor:
        """The derivative of the mean loss by each sample's sum; notes the loss itself."""
        sums = own.clone().requires_grad_()
        loss = dpo_loss(
            sums[0::2],
            sums[1::2],
            self._reference[0::2],
            self._reference[1::2],
            beta=self._weights.dpo_beta,
            label_smoothing=self._weights.dpo_label_smoothing,
        ).mean()
        (factors,) = torch.autograd.grad(loss, sums)
        margins = (own - self._reference)[0::2] - (own - self._reference)[1::2]
        self._loss = float(loss.detach())
        self._accuracy = float((margins > 0).double().mean())
        self._margin = float(margins.mean())
        return factors

    def _sums(self) -> Tensor:
        """Of every sample of all ranks: the log-probs of its answer's tokens, added up in float64."""
        sums = torch.zeros(2 * self._count, dtype=torch.float64)
        for batch in self._batches:
            new, _ = forward(self._engine, batch, 1.0)
            counted = torch.where(batch.mask.bool(), new, torch.zeros_like(new)).double().cpu()
            sums.index_add_(0, batch.owners.flatten().cpu(), counted.flatten())
        return torch.tensor(self._world.sum(sums.tolist()), dtype=torch.float64)
