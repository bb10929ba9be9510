"""A FleetPlan replaces the configured replicas, and nothing else."""

import pytest
from pydantic import ValidationError

from core.config.schema import HoneConfig
from core.fleet_plan import FleetPlan, plan_of, planned
from core.variant import Variant
from serving.slots import wanted_slots

BASE = "smollm2-135m"


def test_without_a_plan_the_configuration_holds():
    """Nobody asked for anything: the very same configuration."""
    config = HoneConfig()
    assert planned(config, None) is config


def test_the_configurations_own_plan_changes_nothing():
    """What the plan begins from asks for the same replicas as the configuration."""
    fleet = {
        "variants": ["standard", "fast"],
        "replicas": {"fast": 2},
        "attach": {"standard": "http://a:1, http://b:2/"},
    }
    config = HoneConfig.model_validate({"fleet": fleet})
    there = planned(config, plan_of(BASE, config))
    assert wanted_slots(there.fleet) == wanted_slots(config.fleet)


def test_a_plan_says_all_replicas():
    """Variants that it leaves out have none, numbers and URLs are the plan's, the rest stays."""
    config = HoneConfig.model_validate({"fleet": {"fast_tokens": 7, "attach": {"fast": "http://a:1"}}})
    plan = FleetPlan(base=BASE, launch={Variant.FAST: 3})
    there = planned(config, plan)
    assert [(slot.variant, slot.url) for slot in wanted_slots(there.fleet)] == [(Variant.FAST, None)] * 3
    assert there.fleet.fast_tokens == 7


@pytest.mark.parametrize(
    ("launch", "attach", "why"),
    [
        ({}, {}, "one replica"),
        ({"standard": 0}, {}, "once at least"),
        ({"standard": 1}, {"standard": ("http://a:1",)}, "not both"),
        ({}, {"standard": ("ftp://a",)}, "http"),
        ({}, {"standard": ()}, "http"),
    ],
)
def test_a_plan_that_cannot_be_is_refused(launch, attach, why):
    """An empty fleet, no engines of a Variant, two ways at once, or something that is no URL."""
    with pytest.raises(ValidationError, match=why):
        FleetPlan(base=BASE, launch=launch, attach=attach)
