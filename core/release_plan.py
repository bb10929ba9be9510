"""ReleasePlan: what a policy file asks of a candidate on its way to traffic (``hone release --plan FILE``)."""

from typing import Literal

from pydantic import Field, model_validator

from core.guardrails import Guardrails
from core.noun import Noun
from core.release import ReleaseStep
from core.release_rule import ReleaseRule


class RampStage(Noun):
    """One step of a ramp."""

    share: float = Field(gt=0.0, le=1.0)
    """Of the keys that get the candidate."""
    min_seconds: float = Field(default=3600.0, ge=0)
    min_episodes: int = Field(default=200, ge=0)
    """Of the candidate's arm, with an outcome."""


class ShadowPlan(Noun):
    """How much is mirrored, and how long."""

    sample_share: float = Field(default=0.1, gt=0.0, le=1.0)
    """Of live requests."""
    max_requests: int = Field(default=5_000, ge=1)
    max_tokens: int = Field(default=2_000_000, ge=1)
    """Sampled by the candidate, over the whole shadow."""
    max_seconds: float = Field(default=86_400.0, gt=0)
    min_pairs: int = Field(default=200, ge=1)
    """Judged pairs before the shadow may pass."""
    max_error_share: float = Field(default=0.01, gt=0, lt=1)


class ReleasePlan(Noun):
    """Everything that decides about one candidate. Unset parts have defaults that need no thought to be safe."""

    policy: str
    steps: tuple[ReleaseStep, ...] = tuple(ReleaseStep)
    """Required, in this order."""
    rule: ReleaseRule
    suites: tuple[str, ...] = Field(min_length=1)
    """Evaluated against the promoted version and the Base."""
    shadow: ShadowPlan = ShadowPlan()
    ramp: tuple[RampStage, ...] = Field(
        default=tuple(RampStage(share=share) for share in (0.01, 0.05, 0.2, 0.5, 1.0)), min_length=1
    )
    key: Literal["user", "episode", "api_key"] = "episode"
    """What sticks to an arm: ``user``, ``episode`` or ``api_key``."""
    guardrails: Guardrails = Guardrails()
    """What ends the ramp at once; ``rule.guardrails`` are limits beside it."""
    ramp_primary: Literal["no_harm", "not_worse", "better"] = "no_harm"
    """What live rewards must show before all traffic moves: that no loss is proven; that the candidate is no worse
    than by its margins; that it gains in a target Domain as well."""
    approvals: tuple[ReleaseStep, ...] = ()
    """Steps after which somebody with ``admin:write`` must approve; each is one of ``steps``."""
    notify_url: str | None = Field(default=None, max_length=2000, pattern=r"^https?://")
    """Webhook that gets each decision as JSON."""
    max_seconds: float = Field(default=7 * 86_400.0, gt=0)
    """From start to decision; then the candidate is rejected."""

    @model_validator(mode="after")
    def _ramp_grows(self) -> "ReleasePlan":
        shares = [stage.share for stage in self.ramp]
        if shares != sorted(set(shares)):
            raise ValueError("the shares of a ramp grow from stage to stage")
        return self

    @model_validator(mode="after")
    def _approvals_are_reached(self) -> "ReleasePlan":
        absent = [step.value for step in self.approvals if step not in self.steps]
        if absent:
            raise ValueError(f"approvals name steps that the plan does not have: {', '.join(absent)}")
        return self

    def guardrails_with_limits(self) -> Guardrails:
        """The guardrails with the rule's limits among theirs."""
        limits = {**self.rule.guardrails, **self.guardrails.limits}
        return self.guardrails.model_copy(update={"limits": limits})
