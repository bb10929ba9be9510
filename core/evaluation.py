"""Evaluation: one PolicyVersion against a baseline on the same held-out Tasks."""

from pydantic import Field

from core.noun import Noun, now
from core.statistics.intervals import Interval


class Evaluation(Noun):
    """A paired comparison; the unit is the Task, both sides saw the same prompts."""

    id: str
    policy: str
    version: int
    baseline_version: int
    domain: str
    temperature: float
    tasks: int
    success: float
    """Share of Tasks that ``version`` solved (mean over attempts)."""
    baseline_success: float
    gain: Interval
    """Of the paired difference in success."""
    reward: float
    baseline_reward: float
    invalid: int = 0
    """Tasks left out because an attempt was invalid on either side."""
    created_at: float = Field(default_factory=now)

    @property
    def proven_better(self) -> bool:
        """Whether the interval of the gain lies wholly above zero."""
        return self.gain.low > 0.0
