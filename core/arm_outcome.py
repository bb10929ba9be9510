"""ArmOutcome: what came of one key's Episode under the arm of an A/B Experiment that it got."""

from pydantic import Field

from core.noun import Noun, now


class ArmOutcome(Noun):
    """One Episode of an Experiment. Late feedback replaces ``reward``; the rest is final."""

    experiment_id: str
    episode_id: str
    key: str
    """What was hashed: a user, a session or an API key (as a digest)."""
    arm: str
    stage: int = 0
    """Stage of the ramp at first exposure."""
    domain: str | None = None
    mixed: bool = False
    """Retries or fallbacks led to an answer of another arm: reported, and left out of the comparison."""
    requests: int = 0
    events: dict[str, int] = Field(default_factory=dict)
    """Guardrail name → requests with that bad event: ``error``, ``slow``, ``refusal``, ``invalid_tool_call``, …"""
    reward: float | None = None
    """In [0, 1]; None until a verifier, a judge or feedback said something."""
    covariate: float | None = None
    """The key's mean reward before the Experiment, for CUPED."""
    first_token_seconds: float | None = None
    output_tokens: int = 0
    recent: tuple[str, ...] = ()
    """Requests that were counted last: one that is recorded again counts once."""
    created_at: float = Field(default_factory=now)
    updated_at: float = Field(default_factory=now)
