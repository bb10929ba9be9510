"""Group-relative advantages against reference values of verl and TRL, and their invariants."""

import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.errors import LearnerError
from learner.advantages import (
    EPS_TRL,
    RunningBaseline,
    batch_advantages,
    group_advantages,
    leave_one_out_advantages,
    overlong_penalty,
    per_reward_advantages,
    step_advantages,
    whitened_by_tokens,
)

MIXED = (0.2, 0.4, 0.9, 0.1)
BINARY = (1.0, 0.0, 0.0, 1.0)

rewards_with_gaps = st.lists(st.none() | st.floats(0, 1, width=32), min_size=1, max_size=12)


def flip(value: float) -> tuple[float, ...]:
    """The pattern + - - + of the binary group."""
    return (value, -value, -value, value)


@pytest.mark.parametrize(
    ("rewards", "scale", "eps", "expected"),
    [
        ((1, 0), "group_std", 1e-6, (0.707106, -0.707106)),
        ((1, 0.25), "group_std", 1e-6, (0.707105, -0.707105)),
        ((1, 0), "group_std", EPS_TRL, (0.707007, -0.707007)),
        ((1, 0.25), "group_std", EPS_TRL, (0.706973, -0.706973)),
        ((1, 0), "none", 1e-6, (0.5, -0.5)),
        ((1, 0.25), "none", 1e-6, (0.375, -0.375)),
        (BINARY, "group_std", 1e-6, flip(0.866024)),
        (MIXED, "group_std", 1e-6, (-0.56195, 0, 1.404875, -0.842925)),
        (BINARY, "group_std", EPS_TRL, flip(0.865875)),
        (MIXED, "group_std", EPS_TRL, (-0.561794, 0, 1.404484, -0.84269)),
        (BINARY, "none", 1e-6, flip(0.5)),
        (MIXED, "none", 1e-6, (-0.2, 0, 0.5, -0.3)),
    ],
)
def test_group_advantages_equal_the_reference(rewards, scale, eps, expected) -> None:
    """GRPO with either eps and Dr.GRPO give verl's, TRL's and prime-rl's numbers."""
    result = group_advantages(rewards, scale=scale, eps=eps)
    assert result.values == pytest.approx(expected, abs=2e-6)
    assert not result.zero_variance


@pytest.mark.parametrize(
    ("rewards", "expected"),
    [
        ((1, 0), (1, -1)),
        ((1, 0.25), (0.75, -0.75)),
        (BINARY, flip(0.666667)),
        (MIXED, (-0.266667, 0, 0.666667, -0.4)),
    ],
)
def test_leave_one_out_equals_the_reference(rewards, expected) -> None:
    """RLOO gives verl's numbers."""
    assert leave_one_out_advantages(rewards).values == pytest.approx(expected, abs=2e-6)


@pytest.mark.parametrize("scale", ["group_std", "none"])
@pytest.mark.parametrize("rewards", [(0, 0, 0, 0), (0.3, 0.1 + 0.2), (0.7,), (None, 0.7), (None,), ()])
def test_a_group_without_variance_is_flagged_and_teaches_nothing(rewards, scale) -> None:
    """Equal rewards, or fewer than two, give advantage 0 for all and the flag."""
    result = group_advantages(rewards, scale=scale)
    assert result.zero_variance
    assert result.values == (0.0,) * len(rewards)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_reward_that_is_not_finite_is_refused(value) -> None:
    """NaN and infinity raise LearnerError, they never spread over a group."""
    with pytest.raises(LearnerError):
        group_advantages([1.0, value])


@pytest.mark.parametrize("scale", ["group_std", "none"])
@given(rewards=rewards_with_gaps)
def test_advantages_sum_to_zero(scale, rewards) -> None:
    """Within a group advantages sum to zero, so no group as a whole is pushed up or down."""
    assert sum(group_advantages(rewards, scale=scale).values) == pytest.approx(0, abs=1e-6)


@given(rewards=rewards_with_gaps)
def test_missing_rewards_equal_absent_attempts(rewards) -> None:
    """An attempt without reward gets 0 and leaves the others' advantages as if it were not there."""
    present = [reward for reward in rewards if reward is not None]
    result, without = group_advantages(rewards), group_advantages(present)
    pairs = zip(rewards, result.values, strict=True)
    assert tuple(value for reward, value in pairs if reward is not None) == without.values
    assert all(v == 0 for r, v in zip(rewards, result.values, strict=True) if r is None)
    assert result.counted == len(present)


@given(rewards=st.lists(st.floats(0, 1, width=32), min_size=2, max_size=10), data=st.data())
def test_advantages_follow_their_attempts_in_any_order(rewards, data) -> None:
    """Reordering the attempts reorders the advantages and changes nothing else."""
    order = data.draw(st.permutations(range(len(rewards))))
    plain = group_advantages(rewards).values
    moved = group_advantages([rewards[i] for i in order]).values
    assert moved == pytest.approx([plain[i] for i in order], abs=1e-6)


def test_whitening_over_tokens_equals_the_reference() -> None:
    """REINFORCE++ with a group baseline gives verl's numbers, for pairs and for groups of four."""
    pairs = [group_advantages((1, 0), scale="none"), group_advantages((1, 0.25), scale="none")]
    first, second = whitened_by_tokens(pairs, [(4, 3), (4, 2)])
    assert (*first, *second) == pytest.approx((0.889499, -1.313070, 0.614178, -1.037749), abs=2e-6)


def test_the_batch_scale_is_one_for_all_groups() -> None:
    """Groups are centred by themselves and divided by the standard deviation of all rewards (TRL's ``batch``)."""
    first, second = batch_advantages([(1, 0, None), (0.5, 0.5)])
    divisor = statistics.stdev((1, 0, 0.5, 0.5)) + EPS_TRL
    assert first.values == pytest.approx((0.5 / divisor, -0.5 / divisor, 0))
    assert second.values == (0, 0) and second.zero_variance


def test_every_kind_of_reward_is_normalised_by_itself() -> None:
    """A reward with a range of 100 weighs no more than one with a range of 1, unless its weight says so."""
    wide = {"tests": (0.0, 1.0), "style": (100.0, 0.0)}
    assert per_reward_advantages(wide, {}).values == pytest.approx((0, 0), abs=1e-4)
    assert per_reward_advantages(wide, {"style": 3.0}).values[0] == pytest.approx(2 * 0.707106, abs=1e-4)


def test_steps_from_one_state_are_compared_with_one_another() -> None:
    """GiGPO compares returns of steps that began in the same state; a state seen once teaches nothing."""
    values = step_advantages([("start", "a"), ("start", "b"), ("start", "a")], [(1, 1), (0, 0), (0.5, 0.5)])
    assert values == [(0.5, 0.25), (-0.5, 0.0), (0.0, -0.25)]


def test_an_episode_without_a_group_stands_against_the_ones_before_it() -> None:
    """The first reward has no advantage, each later one that over the average before it."""
    baseline, gains = RunningBaseline(), []
    for reward in (1.0, 0.0, 0.5):
        gain, baseline = baseline.taken(reward)
        gains.append(gain)
    assert gains == [0.0, -1.0, 0.0]
    with pytest.raises(LearnerError):
        baseline.taken(float("nan"))


@given(st.lists(st.floats(-1, 1), min_size=1, max_size=200))
def test_the_running_average_stays_within_what_it_saw(rewards) -> None:
    """The average never leaves the range of the rewards."""
    baseline = RunningBaseline()
    for reward in rewards:
        _, baseline = baseline.taken(reward)
    assert min(rewards) - 1e-9 <= baseline.mean <= max(rewards) + 1e-9


@pytest.mark.parametrize(("tokens", "expected"), [(3000, 0.0), (3500, -0.417969), (4096, -1.0), (9999, -1.0)])
def test_the_overlong_penalty_equals_the_reference(tokens, expected) -> None:
    """DAPO's soft penalty: none up to the buffer, then linear to its full size."""
    assert overlong_penalty(tokens, longest=4096, buffer=1024) == pytest.approx(expected, abs=1e-6)
