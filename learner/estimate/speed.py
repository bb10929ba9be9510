"""How long a step's training will take: floating-point operations over what the machine does a second. Pure, but for
one short probe."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from core.config.learner import LearnerSection
from core.run import TrainingRun
from learner.estimate.model_shape import ModelShape

_PROBE_SIZE = 1536
_PROBE_REPEATS = 4
CPU_USE = 0.35
"""Share of a matrix product's speed that training reaches on CPUs: a rough figure, which a run before replaces."""
GPU_USE = 0.3
GPU_FLOPS = {"H200": 989e12, "H100": 989e12, "B200": 2250e12, "A100": 312e12, "L40S": 362e12, "4090": 165e12}
"""Dense bfloat16 operations a second, from the makers' data sheets, by a part of the device's name."""
_DECIDES_SPEED = (
    "train",
    "group_size",
    "groups_per_step",
    "sft_batch",
    "gradient_checkpointing",
    "ranks",
    "zero_stage",
    "updates_per_batch",
)


@dataclass(frozen=True)
class StepWork:
    """What one step has to compute."""

    tokens: int
    """That go through the model, shared prompts once."""
    response_tokens: int
    flops: float


def step_work(shape: ModelShape, config: LearnerSection, *, prompt: int, response: int) -> StepWork:
    """Of a GRPO step whose Episodes have so many prompt and sampled tokens.

    Two operations a parameter and token forward, as many for the inputs' gradients, as many for the weights' where
    all are trained, and the forward pass again with gradient checkpointing.
    """
    groups, size = config.groups_per_step, config.group_size
    shared = config.share_prefixes and config.layout == "flat"
    sampled = groups * size * response
    tokens = groups * prompt * (1 if shared else size) + sampled
    passes = 2 + (config.train == "full") + config.gradient_checkpointing
    body = shape.parameters - shape.embedding_parameters
    attention = shape.layers * shape.query_width * 2 * (prompt + response)
    per_step = passes * (2.0 * tokens * (body + attention) + 2.0 * sampled * shape.hidden * shape.vocabulary)
    return StepWork(tokens=tokens, response_tokens=sampled, flops=per_step * config.updates_per_batch)


def matrix_flops() -> float:
    """Floating-point operations a second of float32 matrix products on this machine; takes about a second."""
    generator = np.random.default_rng(0)
    left = generator.standard_normal((_PROBE_SIZE, _PROBE_SIZE), dtype=np.float32)
    best = float("inf")
    for _ in range(_PROBE_REPEATS):
        started = time.perf_counter()
        left @ left
        best = min(best, time.perf_counter() - started)
    return 2.0 * _PROBE_SIZE**3 / best


def gpu_flops(name: str) -> float | None:
    """What training reaches on a GPU of this name; None for one that is not known."""
    return next((GPU_USE * flops for part, flops in GPU_FLOPS.items() if part in name), None)


def measured_rates(
    runs: Sequence[TrainingRun], config: LearnerSection, *, algorithm: str = "grpo"
) -> tuple[float, float] | None:
    """Seconds a step trained and waited, from the newest run that trained as ``config`` says; None: there is none.

    ``runs``: newest first.
    """
    given = config.model_dump(mode="json")
    wanted = {key: given[key] for key in _DECIDES_SPEED}
    for run in runs:
        if run.algorithm != algorithm or any(run.config.get(key, wanted[key]) != wanted[key] for key in wanted):
            continue
        steps = [step.values for step in run.steps if "train_seconds" in step.values]
        if steps:
            trained = sum(values["train_seconds"] for values in steps) / len(steps)
            waited = sum(values.get("generate_seconds", 0.0) for values in steps) / len(steps)
            return trained, waited
    return None
