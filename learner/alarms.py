"""Alarms of a step, and whether they end the run: pure functions of the run's record, so a resumed run agrees.

Why these limits: docs/training.md. KL and effective sample size say that the data no longer fit the policy, before
rewards fall; VCPO (arXiv 2602.17616) finds the collapse of the latter ahead of failures.
"""

import math
from collections.abc import Sequence
from statistics import fmean, median

from core.alarm import Alarm
from core.config.learner_watch import AlarmsSection
from core.run import StepMetrics

_NORM_WINDOW = 20
_FEWEST_NORMS = 5
"""Steps that a median of gradient norms needs before it says anything."""
_FIRST_STEPS = 3
"""Steps whose mean entropy is what later ones are held against."""


def alarms_of(step: StepMetrics, before: Sequence[StepMetrics], config: AlarmsSection) -> tuple[Alarm, ...]:
    """What is wrong with ``step``, given the steps ``before`` it that trained."""
    values = step.values
    found = []
    watched = (step.loss, step.gradient_norm, *values.values())
    if not all(math.isfinite(value) for value in watched):
        found.append(Alarm(name="not_finite", value=0.0, limit=0.0))
    if config.mismatch_kl and values.get("mismatch_kl", 0.0) > config.mismatch_kl:
        found.append(Alarm(name="mismatch_kl", value=values["mismatch_kl"], limit=config.mismatch_kl))
    if config.ess and values.get("ess", 1.0) < config.ess:
        found.append(Alarm(name="ess", value=values["ess"], limit=config.ess))
    trained = _trained(before)
    found += _norm_alarms(step, trained, config) + _entropy_alarms(step, trained, config)
    return tuple(found)


def stopping(steps: Sequence[StepMetrics], config: AlarmsSection) -> Alarm | None:
    """The alarm that ends the run after ``steps``, those that trained; None: it goes on."""
    trained = _trained(steps)
    if not trained:
        return None
    for alarm in trained[-1].alarms:
        if alarm.name not in config.stop:
            continue
        patience = 1 if alarm.name == "not_finite" else config.patience
        recent = trained[-patience:]
        if len(recent) == patience and all(alarm.name in {one.name for one in step.alarms} for step in recent):
            return alarm
    return None


def _trained(steps: Sequence[StepMetrics]) -> list[StepMetrics]:
    return [step for step in steps if "train_seconds" in step.values]


def _norm_alarms(step: StepMetrics, trained: Sequence[StepMetrics], config: AlarmsSection) -> list[Alarm]:
    norms = [earlier.gradient_norm for earlier in trained[-_NORM_WINDOW:]]
    if not config.gradient_norm or len(norms) < _FEWEST_NORMS:
        return []
    limit = config.gradient_norm * median(norms)
    if step.gradient_norm <= limit:
        return []
    return [Alarm(name="gradient_norm", value=step.gradient_norm, limit=limit)]


def _entropy_alarms(step: StepMetrics, trained: Sequence[StepMetrics], config: AlarmsSection) -> list[Alarm]:
    entropy = step.values.get("entropy")
    known = [earlier.values["entropy"] for earlier in trained if "entropy" in earlier.values]
    if not config.entropy or entropy is None or len(known) < _FIRST_STEPS:
        return []
    limit = config.entropy * fmean(known[:_FIRST_STEPS])
    return [Alarm(name="entropy", value=entropy, limit=limit)] if entropy < limit else []
