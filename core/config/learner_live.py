"""Keys of learning from live traffic, and of mixing losses in one optimizer step."""

from typing import Literal

from pydantic import Field, model_validator

from core.config.section import Section


class LossWeightsSection(Section):
    """Weights of the losses that one optimizer step adds up; each is a mean over what it speaks of."""

    policy: float = Field(default=1.0, ge=0)
    """The policy-gradient loss of ``learner.objective``."""
    sft: float = Field(default=0.0, ge=0)
    """Negative log-likelihood of demonstrations, per token."""
    dpo: float = Field(default=0.0, ge=0)
    """Preferences (DPO), per pair."""
    rejection: float = Field(default=0.0, ge=0)
    """Negative log-likelihood of the best own attempts (rejection sampling), per token."""
    rejection_above: float = Field(default=1.0, ge=0)
    """Reward from which on an attempt may be one of the best."""
    dpo_beta: float = Field(default=0.1, gt=0)
    """How close DPO keeps the policy to the Base: larger is closer."""
    dpo_label_smoothing: float = Field(default=0.0, ge=0, lt=0.5)
    """Share of preferences that are expected to be the wrong way round."""


class FeedbackRewardSection(Section):
    """How the values of one kind of Feedback become a reward from 0 to 1."""

    weight: float = Field(default=1.0, gt=0)
    """Weight beside other Feedback about the same answer."""
    low: float = 0.0
    """The value that is worth 0; above ``high``, small values are good. ``true`` counts as 1, ``false`` as 0."""
    high: float = 1.0
    """The value that is worth 1."""

    @model_validator(mode="after")
    def _a_range(self) -> "FeedbackRewardSection":
        if self.low == self.high:
            raise ValueError("low and high of a Feedback's reward must differ")
        return self


class LiveSection(Section):
    """Learning from consented traffic of clients (docs/live-learning.md)."""

    rewards: dict[str, FeedbackRewardSection] = Field(
        default_factory=lambda: {"thumbs_up": FeedbackRewardSection(), "score": FeedbackRewardSection()}
    )
    """Feedback name → what its values are worth; other names make no reward."""
    closing_weight: float = Field(default=1.0, ge=0)
    """Weight of the reward that an Episode was closed with or judged by, beside Feedback; 0: it is not used."""
    preferred: str = "preferred"
    """``true`` under this name prefers an answer to the others to the same request."""
    preferred_over: str = "preferred_over"
    """Under this name the value is the id of a Turn that answered the same request worse."""
    pair_margin: float = Field(default=0.5, gt=0)
    """Answers to one request whose rewards differ by this much are a preference as well."""
    rejected_below: float = Field(default=0.5, ge=0, le=1)
    """An answer with less reward than this and a demonstration makes a preference for the demonstration."""
    losses: LossWeightsSection = LossWeightsSection(sft=0.5, dpo=0.5)
    """Weights of the losses."""
    episodes_per_step: int = Field(default=64, ge=1)
    """Most Episodes of one optimizer step."""
    min_episodes: int = Field(default=8, ge=1)
    """With fewer Episodes there is no step; they wait for the next run."""
    tenant_share: float = Field(default=0.5, gt=0, le=1)
    """Most of a run's Episodes that one tenant may have where others have something waiting too; the rest waits,
    unless the step would have fewer than ``min_episodes``: then the tenant's advantages are scaled down instead."""
    max_staleness: int = Field(default=8, ge=0)
    """How many versions behind an answer may be: further ones train no policy gradient, but demonstrations and
    preferences, which do not depend on who sampled, still count."""
    max_age_days: float = Field(default=30.0, gt=0)
    """Episodes and Feedback older than this are not looked at."""
    settle_seconds: float = Field(default=300.0, ge=0)
    """An Episode that is not closed waits this long after its latest Feedback, in case more is said."""
    baseline_decay: float = Field(default=0.98, gt=0, lt=1)
    """Of a Domain's running mean and variance of rewards: 0.98 stands for the last 50."""
    scale: bool = True
    """Divide advantages by the running standard deviation."""
    advantage_limit: float = Field(default=3.0, gt=0)
    """Advantages are cut to this size: a single user's word weighs so much at most."""
    domain: str = "live"
    """Domain of Episodes that belong to none, for baselines and mined Tasks."""
    sft_prompt_tokens: int = Field(default=4096, ge=1)
    """Demonstrations behind longer prompts are left out."""


class MiningSection(Section):
    """``hone tasks mine``: Tasks from recorded Episodes (docs/live-learning.md)."""

    accept: Literal["review", "verified", "all"] = "review"
    """``review``: people decide; ``verified``: Tasks with a verifier are accepted unseen, those that only a judge
    model can judge are reviewed; ``all``: none is."""
    min_reward: float = Field(default=0.5, ge=0, le=1)
    """The recorded answer is what a fresh attempt is held against only with at least this reward."""
    prompt_characters: int = Field(default=16_000, ge=1)
    """Longer openings are not mined."""
    file_characters: int = Field(default=200_000, ge=0)
    """All files of one Task together; more is not mined."""
    max_tokens: int = Field(default=512, ge=1)
    """Most sampled tokens a Turn of a mined Task has; at least what the recorded answer took."""
    max_turns: int = Field(default=8, ge=1)
    """Most Turns that a mined Task with tools has."""
    rubric_model: str = ""
    """Model that judges by rubric, as the gateway knows it, such as ``openai/…``; empty: such Episodes are not
    mined."""
