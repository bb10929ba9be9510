"""What the learning benchmark makes of its Evaluations."""

from typing import Any

import pytest

from bench.checks import met
from bench.learning.plan import DOMAINS, SEEDS
from bench.learning.results import checks, learned, place


def compared(gain: float, half: float) -> dict[str, Any]:
    """A gain with its 95% interval."""
    return {"domain": "d", "gain": gain, "low": gain - half, "high": gain + half, "before": 0.5, "after": 0.5 + gain}


def judged(control: dict[str, Any], other: dict[str, Any]) -> dict[str, tuple[float | None, bool]]:
    """Value and verdict of each check where one control and one mixed run are as given, and all else is quiet."""
    quiet = compared(0.0, 0.05)
    runs = {
        place(domain, seed): {"trained": compared(0.3, 0.1), "control": quiet} for domain in DOMAINS for seed in SEEDS
    }
    runs[place(DOMAINS[0], 0)] = {"trained": compared(0.3, 0.1), "control": control}
    runs["mixed/0"] = {"others": [quiet, other]}
    return {one["name"]: (one["value"], met(one)) for one in checks(runs)}


def test_one_of_many_controls_may_lie_above_zero_by_chance() -> None:
    """A control just outside its own interval is no gain among twelve; one far outside is."""
    close, far = compared(0.06, 0.05), compared(0.08, 0.05)
    assert learned(close)
    assert not learned(close, among=12)
    assert judged(close, compared(0.0, 0.05))["controls_gained"] == (0, True)
    assert judged(far, compared(0.0, 0.05))["controls_gained"] == (1, False)


@pytest.mark.parametrize(("loss", "sure", "fine"), [(0.05, 0.0, True), (0.09, 0.04, False), (-0.1, 0.0, True)])
def test_forgetting_is_shown_as_measured_and_as_sure(loss: float, sure: float, fine: bool) -> None:
    """The estimate stands beside what its interval proves: a small loss of few Tasks proves nothing."""
    found = judged(compared(0.0, 0.05), compared(-loss, 0.05))
    assert found["forgetting_max"][0] == pytest.approx(max(loss, 0.0))
    assert found["forgetting_sure"] == (pytest.approx(sure), fine)
