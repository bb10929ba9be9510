"""FleetPlan: which replicas of a Base an operator wants, in place of what the configuration says."""

from pydantic import Field, field_validator, model_validator

from core.config.schema import HoneConfig
from core.noun import Noun, now
from core.variant import Variant


class FleetPlan(Noun):
    """Wanted replicas; the leading fleet follows within moments.

    Engines that stay are taken over as they are. Where they share one machine's processors and memory, another number
    of engines changes each one's part: those are restarted one after another, while others answer.
    """

    base: str
    launch: dict[Variant, int] = Field(default_factory=dict)
    """Variant → engines that the fleet runs itself."""
    attach: dict[Variant, tuple[str, ...]] = Field(default_factory=dict)
    """Variant → URLs of engines that somebody else runs."""
    changed_by: str = ""
    """Name of the key that asked for it."""
    changed_at: float = Field(default_factory=now)

    @field_validator("launch")
    @classmethod
    def _numbers(cls, launch: dict[Variant, int]) -> dict[Variant, int]:
        if any(count < 1 for count in launch.values()):
            raise ValueError("a Variant is launched once at least; leave it out for none")
        return launch

    @field_validator("attach")
    @classmethod
    def _urls(cls, attach: dict[Variant, tuple[str, ...]]) -> dict[Variant, tuple[str, ...]]:
        for urls in attach.values():
            if not urls or not all(url.startswith(("http://", "https://")) and "," not in url for url in urls):
                raise ValueError("an attached engine is an http:// or https:// URL")
        return attach

    @model_validator(mode="after")
    def _something(self) -> "FleetPlan":
        if not self.launch and not self.attach:
            raise ValueError("a fleet has one replica at least")
        both = sorted(set(self.launch) & set(self.attach))
        if both:
            raise ValueError(f"engines of a Variant are launched or attached, not both: {', '.join(both)}")
        return self


def planned(config: HoneConfig, plan: FleetPlan | None) -> HoneConfig:
    """The configuration with the plan's replicas; as it is without a plan."""
    if plan is None:
        return config
    fields = {
        "variants": tuple(str(variant) for variant in Variant if variant in plan.launch or variant in plan.attach),
        "replicas": {str(variant): count for variant, count in plan.launch.items()},
        "attach": {str(variant): ",".join(urls) for variant, urls in plan.attach.items()},
    }
    return config.model_copy(update={"fleet": config.fleet.model_copy(update=fields)})


def plan_of(base: str, config: HoneConfig) -> FleetPlan:
    """What the configuration asks for, as a plan: what an operator's changes begin from."""
    fleet = config.fleet
    attached = {
        Variant(name): tuple(dict.fromkeys(url.strip().rstrip("/") for url in urls.split(",") if url.strip()))
        for name, urls in fleet.attach.items()
        if name in fleet.variants
    }
    launched = [Variant(name) for name in fleet.variants if Variant(name) not in attached]
    return FleetPlan(
        base=base, launch={variant: fleet.replicas.get(variant, 1) for variant in launched}, attach=attached
    )
