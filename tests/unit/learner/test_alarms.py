"""Alarms of a step, and what ends a run."""

import math

import pytest

from core.alarm import Alarm
from core.config.learner_watch import AlarmsSection
from core.run import StepMetrics
from learner.alarms import alarms_of, stopping


def step(number: int = 1, *, norm: float = 1.0, alarms: tuple[Alarm, ...] = (), **values: float) -> StepMetrics:
    """A step that trained."""
    values = {"entropy": 1.0, "ess": 0.9, "mismatch_kl": 0.001, "train_seconds": 2.0} | values
    return StepMetrics(step=number, version=number, loss=0.1, gradient_norm=norm, values=values, alarms=alarms)


def names(alarms: tuple[Alarm, ...]) -> list[str]:
    """Which they are."""
    return [alarm.name for alarm in alarms]


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({}, []),
        ({"mismatch_kl": 0.02}, ["mismatch_kl"]),
        ({"ess": 0.2}, ["ess"]),
        ({"norm": 11.0}, ["gradient_norm"]),
        ({"entropy": 0.1}, ["entropy"]),
        ({"entropy": math.nan}, ["not_finite"]),
        ({"ess": 0.2, "mismatch_kl": 0.5}, ["mismatch_kl", "ess"]),
    ],
)
def test_each_limit_has_its_alarm(changed: dict[str, float], expected: list[str]) -> None:
    """A value beyond its limit is an alarm by its name, and no other is."""
    before = [step(number) for number in range(1, 7)]
    assert names(alarms_of(step(7, **changed), before, AlarmsSection())) == expected


def test_a_limit_of_zero_watches_nothing() -> None:
    """Every limit can be switched off."""
    off = AlarmsSection(mismatch_kl=0, ess=0, gradient_norm=0, entropy=0)
    bad = step(7, mismatch_kl=9, ess=0.01, norm=1e6, entropy=0.0)
    assert alarms_of(bad, [step(number) for number in range(1, 7)], off) == ()


def test_relative_limits_wait_for_something_to_compare_with() -> None:
    """Norm and entropy are not judged by the first steps, nor by steps that trained nothing."""
    idle = StepMetrics(step=1, version=0, loss=0.0, gradient_norm=0.0)
    assert alarms_of(step(2, norm=50.0, entropy=0.01), [idle] * 9, AlarmsSection()) == ()


def test_an_alarm_ends_the_run_when_it_stands_for_long_enough() -> None:
    """Three steps in a row end the run where the alarm is named; steps that trained nothing do not count."""
    config = AlarmsSection(stop=("ess",), patience=3)
    bad = step(alarms=(Alarm(name="ess", value=0.1, limit=0.3),))
    idle = StepMetrics(step=1, version=0, loss=0.0, gradient_norm=0.0)
    assert stopping([bad, bad], config) is None
    assert stopping([bad, step(), bad, bad], config) is None
    found = stopping([bad, bad, idle, bad, idle], config)
    assert found is not None
    assert str(found) == "ess 0.1 beyond 0.3"
    assert stopping([bad, bad, bad], AlarmsSection()) is None
    assert stopping([], config) is None


def test_what_is_not_finite_ends_the_run_at_once() -> None:
    """No patience with NaN."""
    alarm = Alarm(name="not_finite", value=0.0, limit=0.0)
    assert stopping([step(), step(alarms=(alarm,))], AlarmsSection()) == alarm


def test_steps_without_a_policy_gradient_are_watched_too() -> None:
    """Demonstrations alone have no entropy: their norms count, and what is not finite still ends the run."""
    imitated = StepMetrics(step=1, version=1, loss=0.1, gradient_norm=1.0, values={"train_seconds": 2.0})
    wild = imitated.model_copy(update={"gradient_norm": 50.0})
    assert names(alarms_of(wild, [imitated] * 6, AlarmsSection())) == ["gradient_norm"]
    assert alarms_of(step(7, entropy=0.1), [imitated] * 6, AlarmsSection()) == ()
    assert names(alarms_of(step(9, entropy=0.1), [*[imitated] * 6, *[step()] * 3], AlarmsSection())) == ["entropy"]
    alarm = Alarm(name="not_finite", value=0.0, limit=0.0)
    assert stopping([step(), imitated.model_copy(update={"alarms": (alarm,)})], AlarmsSection()) == alarm
