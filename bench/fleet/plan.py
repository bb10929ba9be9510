"""How much is measured."""

from dataclasses import dataclass

POLICY = "coder"
REPLICAS = {"standard": 2, "fast": 1}
STANDARD_CLIENTS = 8
FAST_CLIENTS = 4
WHOLE_CLIENTS = 4
"""Ask for answers in one piece while a replica dies: those can be asked again of another one."""
TURNS = 4
"""Answers per conversation."""
MAX_TOKENS = 16
SETTLE_SECONDS = 5.0


@dataclass(frozen=True)
class Plan:
    """A run."""

    rounds: int = 2
    """Of sticky routing and of routing without, in turn."""
    seconds: float = 45.0
    """Of each."""
    before_seconds: float = 12.0
    """Load before the kill."""
    after_seconds: float = 10.0
    """Load after the replica is back."""
    back_seconds: float = 300.0
    """Longest wait for that."""
    quick: bool = False


FULL = Plan()
QUICK = Plan(rounds=1, seconds=20.0, before_seconds=6.0, after_seconds=5.0, quick=True)
