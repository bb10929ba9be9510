"""Group-relative advantages against reference values of verl and TRL, and their invariants."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.errors import LearnerError
from learner.advantages import EPS_TRL, group_advantages, leave_one_out_advantages

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
