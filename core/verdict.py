"""Verdict and Reward: many judgements, one number."""

from collections.abc import Sequence
from enum import StrEnum
from typing import Any

from pydantic import Field

from core.noun import Noun, now


class VerdictStatus(StrEnum):
    """What a verifier could say."""

    SCORED = "scored"
    AGENT_FAILED = "agent_failed"
    """The attempt failed by its own fault (crash, limit, malformed answer): a real zero, used as a negative."""
    INVALID = "invalid"
    """Infrastructure failed: the attempt says nothing about the policy and enters no statistics."""


class Verdict(Noun):
    """One verifier's judgement of one Episode, with its evidence."""

    id: str
    episode_id: str
    verifier: str
    verifier_version: str
    status: VerdictStatus
    score: float = Field(ge=0.0, le=1.0)
    success: bool
    weight: float = 1.0
    evidence: dict[str, Any] = Field(default_factory=dict)
    created_at: float = Field(default_factory=now)


class Reward(Noun):
    """The number made from Verdicts, with the weights used."""

    episode_id: str
    value: float
    success: bool
    final: float
    process: float = 0.0
    weights: dict[str, float]


def combine_verdicts(episode_id: str, verdicts: Sequence[Verdict]) -> Reward | None:
    """The weighted mean of the Verdicts' scores; None if any is invalid or there is none.

    One invalid Verdict voids the whole Reward: a mean over what happened to work would be another reward.
    """
    if not verdicts or any(verdict.status is VerdictStatus.INVALID for verdict in verdicts):
        return None
    total = sum(verdict.weight for verdict in verdicts)
    if total <= 0:
        return None
    value = sum(verdict.weight * verdict.score for verdict in verdicts) / total
    return Reward(
        episode_id=episode_id,
        value=value,
        success=all(verdict.success for verdict in verdicts),
        final=value,
        weights={verdict.verifier: verdict.weight for verdict in verdicts},
    )
