"""Alarm: what was wrong with one step of a TrainingRun."""

from core.noun import Noun


class Alarm(Noun):
    """A watched value beyond its limit."""

    name: str
    """A key of ``learner.alarms``: ``mismatch_kl``, ``ess``, ``gradient_norm``, ``entropy``, ``not_finite``."""
    value: float
    limit: float

    def __str__(self) -> str:
        return f"{self.name} {self.value:.4g} beyond {self.limit:.4g}"
