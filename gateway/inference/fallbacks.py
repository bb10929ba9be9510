"""In which order models are asked when one cannot answer, and how long to wait in between. Pure, no I/O.

Only for requests of which no byte has been answered: what a client has begun to read is never asked again.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from core.errors import EngineError, EngineTimeout, ProviderRefused, RateLimited
from gateway.upstream.base import Unreachable

FIRST_DELAY_SECONDS = 0.25
LONGEST_DELAY_SECONDS = 8.0
"""Longest wait before another attempt. Whoever asks for a longer one is not asked again."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One try of one model."""

    model: str
    number: int
    """0 for the first try of this model."""
    fallback_from: str | None = None
    """The model that was asked for, where this is another one."""


def plan_attempts(model: str, fallbacks: Mapping[str, Sequence[str]], retries: int) -> tuple[Attempt, ...]:
    """Every attempt that may be made for ``model``, in order: each model ``1 + retries`` times.

    A name that comes twice is tried once. The fallbacks of a fallback are not asked.
    """
    models = dict.fromkeys((model, *fallbacks.get(model, ())))
    return tuple(
        Attempt(model=name, number=number, fallback_from=None if name == model else model)
        for name in models
        for number in range(1 + max(0, retries))
    )


def next_attempt(plan: Sequence[Attempt], failed: Attempt, error: Exception) -> Attempt | None:
    """The attempt to make after ``failed`` ended in ``error``; None: the error is the answer."""
    after = plan[plan.index(failed) + 1 :]
    if should_retry(error, failed.number) and after and after[0].model == failed.model:
        return after[0]
    if not should_fall_back(error):
        return None
    return next((attempt for attempt in after if attempt.model != failed.model), None)


def should_retry(error: Exception, attempt: int) -> bool:
    """Whether the same model may answer if it is asked again; ``attempt`` counts the tries so far from 0."""
    if isinstance(error, ProviderRefused | EngineTimeout):
        return False
    if isinstance(error, RateLimited):
        wait = retry_after_of(error)
        return wait is None or wait <= LONGEST_DELAY_SECONDS
    return isinstance(error, Unreachable | EngineError) and attempt >= 0


def should_fall_back(error: Exception) -> bool:
    """Whether another model may answer: this one is away, wrong, or its provider wants no more for now."""
    return isinstance(error, Unreachable | EngineError | RateLimited)


def delay(attempt: int, retry_after: float | None, random: Callable[[], float]) -> float:
    """Seconds to wait after the failed try number ``attempt``: exponential with full jitter.

    Never less than ``retry_after``. ``random`` gives numbers in [0, 1). Source: "Exponential Backoff and Jitter",
    AWS Architecture Blog, 2015.
    """
    jitter: float = random() * min(LONGEST_DELAY_SECONDS, FIRST_DELAY_SECONDS * 2.0 ** min(attempt, 16))
    return jitter if retry_after is None else max(0.0, retry_after) + min(jitter, FIRST_DELAY_SECONDS)


def retry_after_of(error: Exception) -> float | None:
    """The seconds that whoever failed asks to wait."""
    seconds = getattr(error, "retry_after_seconds", None)
    return float(seconds) if isinstance(seconds, int | float) else None
