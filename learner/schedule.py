"""Learning rate over optimizer steps, as a factor of the configured one."""

import math

from core.config.learner import LearnerSection


def rate_factor(config: LearnerSection, step: int) -> float:
    """What the learning rate of optimizer step ``step`` (0, 1, …) is multiplied by, in [0, 1].

    It rises linearly over ``warmup_steps``, then stays or falls over ``decay_steps`` to 0.
    """
    if step < config.warmup_steps:
        return (step + 1) / (config.warmup_steps + 1)
    if config.schedule == "constant":
        return 1.0
    done = min((step - config.warmup_steps) / config.decay_steps, 1.0)
    return 1.0 - done if config.schedule == "linear" else (1 + math.cos(math.pi * done)) / 2
