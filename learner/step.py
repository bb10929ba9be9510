"""One optimizer step on the micro-batches of this rank: GRPO and SFT.

Loss terms are divided by the loss tokens of all ranks and multiplied by the number of ranks, because DeepSpeed
averages gradients over ranks. So neither the number of ranks nor of micro-batches changes the result.

GRPO's old log-probs are those of the policy before its first update on the batch. With one update per batch that
is the policy that runs the forward pass, so ``new.detach()`` is exactly what a second forward pass would
give. The engine's own log-probs (behaviour) enter as truncated importance weights.
"""

import time
from collections.abc import Sequence
from dataclasses import astuple, dataclass

import torch
from torch import Tensor

from core.config.schema import LearnerSection
from core.errors import LearnerError
from learner.batch import TensorBatch
from learner.corrections import mismatch_weights
from learner.deepspeed_engine import DeepSpeedEngine
from learner.distributed import World
from learner.loss import LossStatistics, clip_loss, loss_statistics, sft_loss, token_mean


@dataclass(frozen=True)
class UpdateMetrics:
    """What one update showed, over all ranks."""

    loss: float
    gradient_norm: float
    """Global, before clipping."""
    values: dict[str, float]


def grpo_update(
    engine: DeepSpeedEngine, batches: Sequence[TensorBatch], *, config: LearnerSection, world: World
) -> UpdateMetrics:
    """``config.updates_per_batch`` optimizer steps on one batch of Episodes; metrics of the last one.

    Raises LearnerError for a batch without loss tokens, or a gradient that is not finite.
    """
    started = time.perf_counter()
    tokens = _global_tokens(batches, world)
    old: list[Tensor] | None = None
    if config.updates_per_batch > 1:
        with torch.no_grad():
            old = [_forward(engine, batch, config.temperature)[0] for batch in batches]
    for _ in range(config.updates_per_batch):
        loss_sum, entropy_sum, statistics = 0.0, 0.0, LossStatistics()
        for index, batch in enumerate(batches):
            new, entropy = _forward(engine, batch, config.temperature)
            before = new.detach() if old is None else old[index]
            loss = token_mean(_grpo_terms(new, before, batch, config), batch.mask, tokens)
            engine.backward(loss * world.size)
            loss_sum += float(loss.detach())
            entropy_sum += float((entropy * batch.mask).sum())
            statistics += _statistics(new, before, batch, config)
        norm = engine.step()
    loss_sum, entropy_sum, *sums = world.sum([loss_sum, entropy_sum, *astuple(statistics)])
    values = LossStatistics(*sums).values() | {
        "entropy": entropy_sum / tokens,
        "train_seconds": time.perf_counter() - started,
    }
    return UpdateMetrics(loss=loss_sum, gradient_norm=norm, values=values)


def sft_update(engine: DeepSpeedEngine, batches: Sequence[TensorBatch], *, world: World) -> UpdateMetrics:
    """One optimizer step towards the demonstrations' tokens. Raises LearnerError as ``grpo_update`` does."""
    started = time.perf_counter()
    tokens = _global_tokens(batches, world)
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


def _global_tokens(batches: Sequence[TensorBatch], world: World) -> float:
    (tokens,) = world.sum([float(sum(float(batch.mask.sum()) for batch in batches))])
    if tokens <= 0:
        raise LearnerError("a batch without a single token to learn from cannot be trained on")
    return tokens


def _forward(engine: DeepSpeedEngine, batch: TensorBatch, temperature: float) -> tuple[Tensor, Tensor]:
    logprobs, entropy = engine(tokens=batch.tokens, mask=batch.mask, temperature=temperature)
    return logprobs, entropy


def _grpo_terms(new: Tensor, old: Tensor, batch: TensorBatch, config: LearnerSection) -> Tensor:
    return clip_loss(
        new,
        old,
        batch.advantages,
        batch.mask,
        clip_low=config.clip_low,
        clip_high=config.clip_high,
        token_weights=mismatch_weights(old, batch.behaviour_logprobs, cap=config.mismatch_cap),
    )


def _statistics(new: Tensor, old: Tensor, batch: TensorBatch, config: LearnerSection) -> LossStatistics:
    return loss_statistics(
        new,
        old,
        batch.behaviour_logprobs,
        batch.advantages,
        batch.mask,
        clip_low=config.clip_low,
        clip_high=config.clip_high,
    )
