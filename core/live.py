"""LiveState: what learning from live traffic must remember from one PolicyVersion to the next.

It stands in the Checkpoint's Provenance. So it is written together with the weights that it belongs to, and a run
that starts from another version takes up what was known there.
"""

import math
from collections.abc import Sequence

from pydantic import Field

from core.noun import Noun


class RewardBaseline(Noun):
    """Exponentially weighted mean and variance of rewards, for Episodes that have no EpisodeGroup."""

    mean: float = 0.0
    variance: float = 0.0
    count: int = 0
    decay: float = Field(default=0.98, gt=0, lt=1)

    @property
    def weight(self) -> float:
        """How many rewards the mean stands for."""
        return min(float(self.count), 1.0 / (1.0 - self.decay))

    def advantages(self, rewards: Sequence[float], *, scale: bool, floor: float = 0.1) -> tuple[float, ...]:
        """How much better each reward is than this baseline together with the other rewards of the same step.

        A reward's own value never enters what it is compared with, so the estimate has no bias (leave-one-out, as
        RLOO does within a group). A first, single reward gets 0. ``scale``: over the standard deviation of all that
        is known, which is at least ``floor``. Raises ValueError for a reward that is not finite.
        """
        if not all(math.isfinite(reward) for reward in rewards):
            raise ValueError(f"a reward is not finite: {list(rewards)}")
        total, known = math.fsum(rewards), self.weight
        others = known + len(rewards) - 1
        if others <= 0:
            return (0.0,) * len(rewards)
        centred = [reward - (known * self.mean + total - reward) / others for reward in rewards]
        if not scale:
            return tuple(centred)
        after = self.taken(rewards)
        divisor = max(math.sqrt(after.variance), floor)
        return tuple(value / divisor for value in centred)

    def taken(self, rewards: Sequence[float]) -> "RewardBaseline":
        """The baseline after these rewards, in their order (West's incremental form; plain while few are known)."""
        mean, variance, count = self.mean, self.variance, self.count
        for reward in rewards:
            share = max(1.0 - self.decay, 1.0 / (count + 1))
            step = reward - mean
            mean += share * step
            variance = (1.0 - share) * (variance + share * step * step)
            count += 1
        return RewardBaseline(mean=mean, variance=variance, count=count, decay=self.decay)


class LiveState(Noun):
    """As of one PolicyVersion."""

    baselines: dict[str, RewardBaseline] = Field(default_factory=dict)
    """By Domain."""
    trained: dict[str, str] = Field(default_factory=dict)
    """Episodes that made this very version → digest of what was said about them then."""
    learned: dict[str, str] = Field(default_factory=dict)
    """What of it made this very version, by ``core.live_signals.lessons_of``: lesson → digest."""
    taken: dict[str, int] = Field(default_factory=dict)
    """Episodes that ``run_id`` has trained on so far, by tenant."""
    run_id: str | None = None
    """The TrainingRun that made this version."""
