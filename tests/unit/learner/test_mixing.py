"""How groups are shared among Domains."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from learner.mixing import domain_shares, next_domain

NAMES = ("a", "b", "c", "d", "e", "f")
QUOTAS = st.dictionaries(st.sampled_from(NAMES), st.floats(0.01, 100), min_size=1)
USEFUL = st.dictionaries(st.sampled_from(NAMES), st.floats(0.01, 1))


@given(
    quotas=QUOTAS,
    useful=USEFUL,
    earlier=st.lists(st.sampled_from(("x", "y", "a")), max_size=3),
    floor=st.floats(0, 1),
    adapt=st.floats(0, 1),
    replay=st.floats(0, 0.9),
)
def test_shares_are_whole_and_no_domain_falls_below_its_floor(quotas, useful, earlier, floor, adapt, replay) -> None:
    """Shares add up to 1; each own Domain has its floor, or an equal part; earlier ones share the replay equally."""
    shares = domain_shares(quotas, useful, earlier=earlier, floor=floor, adapt=adapt, replay=replay)
    assert sum(shares.values()) == pytest.approx(1.0)
    kept = set(earlier) - set(quotas)
    own = 1 - (replay if kept else 0.0)
    for name in quotas:
        assert shares[name] >= min(floor, own / len(quotas)) - 1e-9
    for name in kept:
        if replay:
            assert shares[name] == pytest.approx(replay / len(kept))


def test_quotas_hold_where_no_floor_is_in_the_way() -> None:
    """Without floors and adaptation, shares are as the quotas; a quota of 0 takes a Domain out."""
    assert domain_shares({"a": 3.0, "b": 1.0, "c": 0.0}, {}) == pytest.approx({"a": 0.75, "b": 0.25})


def test_a_domain_that_teaches_nothing_falls_to_its_floor_and_no_further() -> None:
    """Full adaptation gives a Domain without useful groups its floor, and the rest to the others."""
    shares = domain_shares({"a": 1.0, "b": 1.0}, {"a": 1.0, "b": 0.0}, floor=0.2, adapt=1.0)
    assert shares == pytest.approx({"a": 0.8, "b": 0.2})


def test_without_a_domain_of_its_own_a_run_replays() -> None:
    """Earlier Domains get everything when the run's own have no Task; without any there are no shares."""
    assert domain_shares({}, {}, earlier=("x", "y"), replay=0.1) == pytest.approx({"x": 0.5, "y": 0.5})
    assert domain_shares({}, {}) == {}


@given(quotas=QUOTAS, groups=st.integers(1, 200))
def test_counts_never_leave_their_shares_far_behind(quotas: dict[str, float], groups: int) -> None:
    """After any number of groups, each Domain's count is within the number of Domains of its share."""
    shares, credits = domain_shares(quotas, {}), dict[str, float]()
    counts: Counter[str] = Counter()
    for _ in range(groups):
        chosen, credits = next_domain(credits, shares)
        counts[chosen] += 1
    for name, share in shares.items():
        assert abs(counts[name] - share * groups) <= len(shares)
