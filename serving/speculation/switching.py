"""When a fast replica speculates: off when that makes it slower at the present load, on again when it pays. Pure.

Two thresholds and several readings in a row keep it from going back and forth. While it is off its speed with
speculation cannot be seen, so it is tried again after a while, and each time that it fails after twice as long.
"""

from dataclasses import dataclass, replace

MISMATCH = "mismatch"
"""Reason that no trial and no load takes away: the replica's answers were not those of the standard one."""


@dataclass(frozen=True)
class SwitchRule:
    """What the decision goes by."""

    off_below: float = 0.97
    """Speed-up under which speculation is switched off."""
    on_above: float = 1.03
    """Speed-up above which it is switched on again."""
    readings: int = 3
    """Readings in a row that must say so."""
    least_tokens_per_step: float = 1.05
    """Where the standard speed is not known: tokens per step under which drafting is waste."""
    trial_seconds: float = 300.0
    """Off for so long before the first trial."""
    longest_seconds: float = 7200.0
    """Longest time between trials."""


@dataclass(frozen=True)
class SwitchState:
    """Where a replica stands."""

    on: bool = True
    reason: str | None = None
    """Why it is off."""
    since: float = 0.0
    against: int = 0
    """Readings in a row that spoke for the other position."""
    failures: int = 0
    """Times that it was switched off without having paid in between."""


@dataclass(frozen=True)
class Reading:
    """What was seen lately."""

    speedup: float | None
    """At the present load, against standard; None: not known."""
    tokens_per_step: float | None
    """None: nothing was drafted."""
    running: float


def decide(state: SwitchState, reading: Reading | None, *, now: float, rule: SwitchRule) -> SwitchState:
    """The next state. ``reading`` None: nothing was decoded since the last one. ``now`` in seconds, of any clock."""
    if state.reason == MISMATCH:
        return state
    if state.on:
        return state if reading is None else _while_on(state, reading, now, rule)
    if reading is not None and reading.speedup is not None and reading.speedup > rule.on_above:
        against = state.against + 1
        if against >= rule.readings:
            return SwitchState(on=True, since=now, failures=state.failures)
        return replace(state, against=against)
    if now - state.since >= min(rule.trial_seconds * 2.0**state.failures, rule.longest_seconds):
        return SwitchState(on=True, since=now, failures=state.failures + 1)
    return replace(state, against=0)


def mismatched(now: float) -> SwitchState:
    """Off until somebody clears it or the engine is started anew."""
    return SwitchState(on=False, reason=MISMATCH, since=now)


def _while_on(state: SwitchState, reading: Reading, now: float, rule: SwitchRule) -> SwitchState:
    slower = _slower(reading, rule)
    if slower is None:
        paid = reading.speedup is not None and reading.speedup > rule.on_above
        return replace(state, against=0, failures=0 if paid else state.failures)
    if state.against + 1 < rule.readings:
        return replace(state, against=state.against + 1)
    return SwitchState(on=False, reason=slower, since=now, failures=state.failures)


def _slower(reading: Reading, rule: SwitchRule) -> str | None:
    if reading.speedup is not None:
        if reading.speedup >= rule.off_below:
            return None
        return f"{reading.speedup:.2f} times the standard speed at {reading.running:.0f} running requests"
    if reading.tokens_per_step is not None and reading.tokens_per_step < rule.least_tokens_per_step:
        return f"only {reading.tokens_per_step:.2f} tokens per step"
    return None
