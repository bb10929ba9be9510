"""The port of metric trackers, and what of a step they are told."""

from typing import Protocol

from core.run import StepMetrics


class Tracker(Protocol):
    """Is told every step of one run. A tracker never ends a run: what fails in it is logged."""

    def step(self, step: StepMetrics) -> None:
        """Note a step."""

    def close(self) -> None:
        """Write out what is left."""


def scalars(step: StepMetrics) -> dict[str, float]:
    """All numbers of a step by name: ``train/…`` for the whole, ``domain/<name>/…`` for each Domain."""
    named: dict[str, float | None] = {
        "train/loss": step.loss,
        "train/gradient_norm": step.gradient_norm,
        "train/reward_mean": step.reward_mean,
        "train/success_rate": step.success_rate,
        "train/version": step.version,
        "train/alarms": len(step.alarms),
        **{f"train/{name}": value for name, value in step.values.items()},
    }
    for domain, metrics in step.domains.items():
        named |= {f"domain/{domain}/{name}": value for name, value in metrics.model_dump().items()}
    return {name: float(value) for name, value in named.items() if value is not None}
