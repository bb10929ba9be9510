"""Does an engine really serve the version that its name says? Compares its log-probs with the learner's."""

import asyncio
import math
from collections.abc import Sequence
from statistics import fmean

from core.errors import EngineError
from core.policy import Probe, ProbeResult
from serving.engines.base import Engine

_QUARTER = 0.25
_HALF = 0.5
_NO_NUMBER = 9999.0
"""Stands for an error that is not finite, which JSON cannot carry."""


async def check_probe(engine: Engine, engine_model: str, probe: Probe, max_error: float) -> ProbeResult:
    """Score the Probe's prompts on ``engine_model`` at once, and compare.

    Raises what the engine raises; EngineError when it leaves out a log-prob that is compared.
    """
    measured = await asyncio.gather(
        *(engine.prompt_logprobs(engine_model, prompt.token_ids) for prompt in probe.prompts)
    )
    return compare(probe, select(probe, measured), max_error=max_error)


def select(probe: Probe, measured: Sequence[Sequence[float | None]]) -> list[float]:
    """The measured log-probs at the Probe's positions, prompt after prompt. EngineError: one is missing."""
    chosen = []
    for prompt, logprobs in zip(probe.prompts, measured, strict=True):
        for position in prompt.positions:
            value = logprobs[position] if position < len(logprobs) else None
            if value is None:
                raise EngineError(f"the engine gave no log-prob for position {position} of a probe prompt")
            chosen.append(value)
    return chosen


def compare(probe: Probe, measured: Sequence[float], *, max_error: float) -> ProbeResult:
    """Judge ``measured`` (from ``select``) against the version, its parent and the Base; distances in nats.

    It passes when the mean error is at most ``max_error`` and at most a quarter of the distance to parent and
    Base. Where a distance is too small for that quarter to be met (under 4 × ``max_error``), the result is
    ``indistinguishable`` and identity rests on the folder's checksum, unless the engine's answers are the
    other model's by the same quarter rule: then the wrong weights answer.
    """
    version = [value for prompt in probe.prompts for value in prompt.version_logprobs]
    others = {
        "parent": [value for prompt in probe.prompts for value in prompt.parent_logprobs],
        "Base": [value for prompt in probe.prompts for value in prompt.base_logprobs],
    }
    error = _distance(measured, version)
    distances = {name: _distance(version, logprobs) for name, logprobs in others.items()}
    passed, unclear, reason = error <= max_error, False, f"mean error {error:.2g} nats"
    if not passed:
        reason = f"mean error {error:.2g} nats is above {max_error:.2g}"
    for name, logprobs in others.items():
        distance = distances[name]
        if distance > 0 and error <= _QUARTER * distance:
            continue
        if error >= _HALF * distance > 0 and _distance(measured, logprobs) <= _QUARTER * distance:
            passed, reason = False, f"{reason}; the answers are those of the {name}"
        elif distance < max_error / _QUARTER:
            unclear = True
    if passed and unclear:
        reason += "; too close to parent or Base to tell apart: identity rests on the checksum"
    return ProbeResult(
        passed=passed,
        error=error if math.isfinite(error) else _NO_NUMBER,
        parent_distance=distances["parent"],
        base_distance=distances["Base"],
        indistinguishable=unclear,
        reason=reason,
    )


def _distance(one: Sequence[float], other: Sequence[float]) -> float:
    return fmean(abs(a - b) for a, b in zip(one, other, strict=True))
