"""Keys of what GRPO trains on: Domains, Tasks, replay, length."""

from pydantic import Field, model_validator

from core.config.section import Section


class DataSection(Section):
    """Which Tasks a GRPO step attempts (docs/training.md)."""

    shares: dict[str, float] = Field(default_factory=dict)
    """Relative share of rollouts by Domain, where it is not the Domain's own quota."""
    floor: float = Field(default=0.05, ge=0, le=1)
    """Smallest share of each Domain, whatever quotas and curriculum say; more Domains than fit: equal shares."""
    adapt: float = Field(default=0.5, ge=0, le=1)
    """How far a Domain's share follows the share of its groups that could teach something; 0: not at all."""
    replay: float = Field(default=0.1, ge=0, lt=1)
    """Share of groups from Domains that earlier runs of the Policy trained on and this one does not."""
    curriculum: bool = True
    """Prefer Tasks that are solved sometimes; off: every Task once a pass."""
    pass_rate_low: float = Field(default=0.2, ge=0, le=1)
    """Tasks that are solved less often than this are mostly passed over."""
    pass_rate_high: float = Field(default=0.8, ge=0, le=1)
    """Tasks that are solved more often than this are mostly passed over."""
    explore: float = Field(default=0.1, gt=0, le=1)
    """Share of choices made without regard to pass rates: no Task is ever given up."""
    memory: float = Field(default=0.7, ge=0, le=1)
    """What the earlier attempts at a Task still weigh when new ones come in."""
    rest_steps: int = Field(default=5, ge=0)
    """Steps before a Task may be chosen again out of turn."""
    length_start: int = Field(default=0, ge=0)
    """Longest Task at the run's first step, in estimated tokens of its whole conversation; 0: no limit."""
    length_steps: int = Field(default=100, ge=1)
    """Steps after which the longest Task of all is allowed; until then the limit grows by the same factor a step."""

    @model_validator(mode="after")
    def _sensible(self) -> "DataSection":
        if self.pass_rate_low >= self.pass_rate_high:
            raise ValueError("learner.data.pass_rate_low must be below learner.data.pass_rate_high")
        negative = sorted(name for name, share in self.shares.items() if share < 0)
        if negative:
            raise ValueError(f"learner.data.shares must not be negative: {', '.join(negative)}")
        return self
