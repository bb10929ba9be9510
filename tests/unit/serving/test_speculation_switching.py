"""How speed is read, and when speculation is switched."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.engines.base import EngineMetrics
from serving.speculation.speed import LEAST_TOKENS, Speed, SpeedTable, band, speed, speedup
from serving.speculation.switching import MISMATCH, Reading, SwitchRule, SwitchState, decide, mismatched

RULE = SwitchRule(readings=3, trial_seconds=100.0, longest_seconds=1000.0)


def metrics(tokens: float, seconds: float, running: int = 0) -> EngineMetrics:
    return EngineMetrics(decoded_tokens=tokens, decode_seconds=seconds, running=running)


def readings(state: SwitchState, *values: float | None, now: float = 0.0) -> SwitchState:
    for value in values:
        reading = None if value is None else Reading(speedup=value, tokens_per_step=2.0, running=4)
        state = decide(state, reading, now=now, rule=RULE)
    return state


def test_speed_is_that_of_one_request():
    """Four requests of 20 tokens/s each, together for ten seconds, are read as such."""
    found = speed(metrics(100, 5.0), metrics(900, 45.0), seconds=10.0)
    assert found is not None
    assert (found.tokens_per_second, found.running, found.tokens) == (20.0, 4.0, 800)


def test_a_long_request_is_not_taken_for_many():
    """A request that ends after a minute counts as the one that ran at the ends of the span, not as six."""
    found = speed(metrics(0, 0.0, running=1), metrics(600, 60.0, running=1), seconds=10.0)
    assert found is not None and (found.running, found.tokens_per_second) == (1.0, 10.0)


def test_a_span_with_little_in_it_says_nothing():
    """Too few tokens, or an engine that does not count, give no speed."""
    assert speed(metrics(0, 0), metrics(LEAST_TOKENS - 1, 1.0), seconds=1.0) is None
    assert speed(EngineMetrics(), EngineMetrics(output_tokens=500), seconds=1.0) is None


def test_a_restarted_engine_counts_from_zero():
    """A fall of the counters takes the new reading alone."""
    found = speed(metrics(1000, 100.0), metrics(50, 5.0), seconds=5.0)
    assert found is not None and found.tokens_per_second == 10.0


@given(st.floats(0.1, 2000))
def test_bands_hold_their_load(running):
    """A band's upper end is a power of two, and not below the load by more than its rounding."""
    upper = band(running)
    assert upper & (upper - 1) == 0
    assert upper >= min(running - 0.5, 1024)
    assert upper == 1 or running - 0.5 > upper / 2


def test_speeds_are_compared_at_one_load_only():
    """A speed-up is known where both sides were seen in the same band."""
    fast = SpeedTable().with_reading(Speed(1.0, 20.0, 100)).with_reading(Speed(16.0, 4.0, 100))
    standard = SpeedTable().with_reading(Speed(1.0, 10.0, 100)).with_reading(Speed(4.0, 8.0, 100))
    assert speedup(fast, standard, 1.0) == 2.0
    assert speedup(fast, standard, 4.0) is None
    assert speedup(fast, standard, 16.0) is None


def test_old_speeds_are_forgotten():
    """After a change of conditions the moving average follows."""
    table = SpeedTable().with_reading(Speed(1.0, 100.0, 100))
    for _ in range(12):
        table = table.with_reading(Speed(1.0, 10.0, 100))
    assert table.by_band[1] == pytest.approx(10.0, rel=0.1)


def test_it_takes_several_slow_readings_in_a_row():
    """Two slow readings, or slow ones with a good one between, switch nothing; three in a row do."""
    assert readings(SwitchState(), 0.8, 0.8).on
    assert readings(SwitchState(), 0.8, 0.8, 1.2, 0.8, 0.8).on
    off = readings(SwitchState(), 0.8, 0.8, 0.8)
    assert not off.on and "0.80 times" in (off.reason or "")


def test_idle_time_changes_nothing():
    """Without a reading the count of slow ones stays as it is."""
    assert not readings(SwitchState(), 0.8, None, 0.8, None, 0.8).on


def test_between_the_thresholds_both_positions_hold():
    """A speed-up between them switches neither off nor on."""
    assert readings(SwitchState(), *[1.0] * 10).on
    assert not readings(SwitchState(on=False, reason="slow"), *[1.0] * 10, now=50.0).on


def test_it_comes_back_when_the_load_makes_it_pay():
    """Known to be faster at the present load, it is switched on without waiting for a trial."""
    assert readings(SwitchState(on=False, reason="slow"), 1.4, 1.4, 1.4, now=5.0).on


def test_trials_become_rarer_while_they_fail():
    """After each failed trial it waits twice as long, up to the bound; a success resets that."""
    state, waits, now = SwitchState(), [], 0.0
    for _ in range(6):
        state = readings(state, 0.8, 0.8, 0.8, now=now)
        began = now
        while not state.on:
            now += 10.0
            state = decide(state, None, now=now, rule=RULE)
        waits.append(now - began)
    assert waits == [100, 200, 400, 800, 1000, 1000]
    assert readings(state, 1.2).failures == 0


def test_without_a_standard_to_compare_wasted_drafts_count():
    """Where no standard speed is known, drafts that are hardly ever accepted switch it off, good ones do not."""
    waste, good = Reading(None, 1.01, 4), Reading(None, 1.8, 4)
    state = SwitchState()
    for _ in range(RULE.readings):
        state = decide(state, waste, now=0.0, rule=RULE)
    assert not state.on
    assert decide(SwitchState(against=2), good, now=0.0, rule=RULE).on


@given(st.lists(st.one_of(st.none(), st.floats(0.1, 3.0)), max_size=30), st.floats(0, 1e6))
def test_a_mismatch_is_not_outwaited(values, now):
    """No reading and no time switches a replica on again that answers otherwise than standard."""
    state = mismatched(0.0)
    for value in values:
        reading = None if value is None else Reading(value, 3.0, 1)
        state = decide(state, reading, now=now, rule=RULE)
    assert not state.on and state.reason == MISMATCH
