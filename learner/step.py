"""One optimizer step on the micro-batches of this rank: GRPO and SFT.

Loss terms are divided by the tokens or Episodes of all ranks and multiplied by the number of ranks, because DeepSpeed
averages gradients over ranks. So neither the number of ranks nor of micro-batches changes the result.

GRPO's old log-probs are those of the policy before its first update on the batch. With one update per batch that
is the policy that runs the forward pass, so ``new.detach()`` is exactly what a second forward pass would
give. What is minimised is ``learner.objective``'s business.
"""

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import astuple, dataclass

import torch
from torch import Tensor

from core.config.learner import LearnerSection
from core.errors import LearnerError
from learner.batch import TensorBatch
from learner.deepspeed_engine import DeepSpeedEngine
from learner.distributed import World
from learner.loss import LossStatistics, loss_statistics, sft_loss, token_mean
from learner.objective import Objective, StepTotals


@dataclass(frozen=True)
class UpdateMetrics:
    """What one update showed, over all ranks."""

    loss: float
    gradient_norm: float
    """Global, before clipping."""
    values: dict[str, float]


def grpo_update(
    engine: DeepSpeedEngine,
    batches: Sequence[TensorBatch],
    *,
    config: LearnerSection,
    world: World,
    reference: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> UpdateMetrics:
    """``config.updates_per_batch`` optimizer steps on one batch of Episodes; metrics of the last one.

    ``reference``: inside what it returns, the engine's model is the Base; used for a KL term.

    Raises LearnerError for a batch without loss tokens, Diverged for a gradient that is not finite.
    """
    started = time.perf_counter()
    part = PolicyPart(engine, batches, config=config, world=world, reference=reference)
    for _ in range(config.updates_per_batch):
        part.backward()
        norm = engine.step()
    loss, values = part.result()
    values["train_seconds"] = time.perf_counter() - started
    return UpdateMetrics(loss=loss, gradient_norm=norm, values=values)


def sft_update(engine: DeepSpeedEngine, batches: Sequence[TensorBatch], *, world: World) -> UpdateMetrics:
    """One optimizer step towards the demonstrations' tokens. Raises LearnerError as ``grpo_update`` does."""
    started = time.perf_counter()
    part = SftPart(engine, batches, world=world)
    part.backward()
    norm = engine.step()
    loss, _ = part.result()
    values = {"tokens": part.tokens, "train_seconds": time.perf_counter() - started}
    return UpdateMetrics(loss=loss, gradient_norm=norm, values=values)


class PolicyPart:
    """The policy-gradient loss of one step: ``backward`` adds to the gradient, ``result`` says what it showed."""

    def __init__(
        self,
        engine: DeepSpeedEngine,
        batches: Sequence[TensorBatch],
        *,
        config: LearnerSection,
        world: World,
        reference: Callable[[], AbstractContextManager[None]],
    ) -> None:
        """Raises LearnerError for a batch without loss tokens."""
        self._engine = engine
        self._batches = batches
        self._temperature = config.temperature
        self._world = world
        self._objective = Objective(config.objective)
        self._totals = _totals(batches, world)
        self._old: list[Tensor] | None = None
        if config.updates_per_batch > 1:
            with torch.no_grad():
                self._old = [forward(engine, batch, config.temperature)[0] for batch in batches]
        needed = self._objective.needs_reference
        self._bases = _reference(engine, batches, reference, config) if needed else None
        self._sums: list[float] = []

    def backward(self, weight: float = 1.0) -> None:
        """Add ``weight`` times the gradient of the loss."""
        objective = self._objective
        loss_sum, entropy_sum, statistics = 0.0, 0.0, LossStatistics()
        for index, batch in enumerate(self._batches):
            new, entropy = forward(self._engine, batch, self._temperature)
            before = new.detach() if self._old is None else self._old[index]
            terms = objective.terms(new, before, batch, None if self._bases is None else self._bases[index])
            loss = objective.total(terms, batch, self._totals)
            self._engine.backward(loss * weight * self._world.size)
            loss_sum += float(loss.detach())
            entropy_sum += float((entropy * batch.mask).sum())
            statistics += loss_statistics(
                new, before, batch.behaviour_logprobs, batch.mask, clipped=objective.clipped(new, before, batch)
            )
        self._sums = [loss_sum, entropy_sum, *astuple(statistics)]

    def result(self) -> tuple[float, dict[str, float]]:
        """Loss and statistics of the last ``backward``, over all ranks; call it on each of them."""
        loss_sum, entropy_sum, *sums = self._world.sum(self._sums)
        return loss_sum, LossStatistics(*sums).values() | {"entropy": entropy_sum / self._totals.tokens}


class SftPart:
    """The negative log-likelihood of one step's demonstrations, per token."""

    def __init__(self, engine: DeepSpeedEngine, batches: Sequence[TensorBatch], *, world: World) -> None:
        """Raises LearnerError for a batch without loss tokens."""
        self._engine = engine
        self._batches = batches
        self._world = world
        self.tokens = _totals(batches, world).tokens
        self._loss = 0.0

    def backward(self, weight: float = 1.0) -> None:
        """Add ``weight`` times the gradient of the loss."""
        self._loss = 0.0
        for batch in self._batches:
            new, _ = forward(self._engine, batch, 1.0)
            loss = token_mean(sft_loss(new, batch.mask), batch.mask, self.tokens)
            self._engine.backward(loss * weight * self._world.size)
            self._loss += float(loss.detach())

    def result(self) -> tuple[float, dict[str, float]]:
        """Loss of the last ``backward``, over all ranks; call it on each of them."""
        (loss,) = self._world.sum([self._loss])
        return loss, {}


def _totals(batches: Sequence[TensorBatch], world: World) -> StepTotals:
    tokens, episodes = world.sum(
        [float(sum(float(batch.mask.sum()) for batch in batches)), sum(batch.episodes for batch in batches)]
    )
    if tokens <= 0:
        raise LearnerError("a batch without a single token to learn from cannot be trained on")
    return StepTotals(tokens=tokens, episodes=episodes)


def forward(engine: DeepSpeedEngine, batch: TensorBatch, temperature: float) -> tuple[Tensor, Tensor]:
    """Log-probs and entropies of the batch's loss tokens."""
    logprobs, entropy = engine(**batch.inputs, temperature=temperature)
    return logprobs, entropy


def _reference(
    engine: DeepSpeedEngine,
    batches: Sequence[TensorBatch],
    reference: Callable[[], AbstractContextManager[None]],
    config: LearnerSection,
) -> list[Tensor]:
    with torch.no_grad(), reference():
        return [forward(engine, batch, config.temperature)[0] for batch in batches]
