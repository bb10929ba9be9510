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

    Raises LearnerError for a batch without loss tokens, or a gradient that is not finite.
    """
    started = time.perf_counter()
    objective = Objective(config.objective)
    totals = _totals(batches, world)
    old: list[Tensor] | None = None
    if config.updates_per_batch > 1:
        with torch.no_grad():
            old = [_forward(engine, batch, config.temperature)[0] for batch in batches]
    bases = _reference(engine, batches, reference, config) if objective.needs_reference else None
    for _ in range(config.updates_per_batch):
        loss_sum, entropy_sum, statistics = 0.0, 0.0, LossStatistics()
        for index, batch in enumerate(batches):
            new, entropy = _forward(engine, batch, config.temperature)
            before = new.detach() if old is None else old[index]
            terms = objective.terms(new, before, batch, None if bases is None else bases[index])
            loss = objective.total(terms, batch, totals)
            engine.backward(loss * world.size)
            loss_sum += float(loss.detach())
            entropy_sum += float((entropy * batch.mask).sum())
            statistics += loss_statistics(
                new, before, batch.behaviour_logprobs, batch.mask, clipped=objective.clipped(new, before, batch)
            )
        norm = engine.step()
    loss_sum, entropy_sum, *sums = world.sum([loss_sum, entropy_sum, *astuple(statistics)])
    values = LossStatistics(*sums).values() | {
        "entropy": entropy_sum / totals.tokens,
        "train_seconds": time.perf_counter() - started,
    }
    return UpdateMetrics(loss=loss_sum, gradient_norm=norm, values=values)


def sft_update(engine: DeepSpeedEngine, batches: Sequence[TensorBatch], *, world: World) -> UpdateMetrics:
    """One optimizer step towards the demonstrations' tokens. Raises LearnerError as ``grpo_update`` does."""
    started = time.perf_counter()
    tokens = _totals(batches, world).tokens
    loss_sum = 0.0
    for batch in batches:
        new, _ = _forward(engine, batch, 1.0)
        loss = token_mean(sft_loss(new, batch.mask), batch.mask, tokens)
        engine.backward(loss * world.size)
        loss_sum += float(loss.detach())
    norm = engine.step()
    (loss_sum,) = world.sum([loss_sum])
    values = {"tokens": tokens, "train_seconds": time.perf_counter() - started}
    return UpdateMetrics(loss=loss_sum, gradient_norm=norm, values=values)


def _totals(batches: Sequence[TensorBatch], world: World) -> StepTotals:
    tokens, episodes = world.sum(
        [float(sum(float(batch.mask.sum()) for batch in batches)), sum(batch.episodes for batch in batches)]
    )
    if tokens <= 0:
        raise LearnerError("a batch without a single token to learn from cannot be trained on")
    return StepTotals(tokens=tokens, episodes=episodes)


def _forward(engine: DeepSpeedEngine, batch: TensorBatch, temperature: float) -> tuple[Tensor, Tensor]:
    logprobs, entropy = engine(**batch.inputs, temperature=temperature)
    return logprobs, entropy


def _reference(
    engine: DeepSpeedEngine,
    batches: Sequence[TensorBatch],
    reference: Callable[[], AbstractContextManager[None]],
    config: LearnerSection,
) -> list[Tensor]:
    with torch.no_grad(), reference():
        return [_forward(engine, batch, config.temperature)[0] for batch in batches]
