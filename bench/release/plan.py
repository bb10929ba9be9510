"""How much is simulated and measured."""

from dataclasses import dataclass

ADAPTERS = ("better", "equal", "bad")
"""Candidates of the live run."""
MANIFEST = "versions.json"
"""Beside the adapters' folders."""


@dataclass(frozen=True)
class Plan:
    """A run."""

    not_better: int = 1_000
    """Candidates of each kind that must not be promoted."""
    better: int = 500
    sequences: int = 4_000
    """Simulated sequences of observations for coverage, each of ``length``."""
    null_experiments: int = 2_000
    length: int = 5_000
    processes: int = 2
    quick: bool = False


FULL = Plan()
QUICK = Plan(not_better=20, better=20, sequences=200, null_experiments=200, length=2_000, quick=True)
