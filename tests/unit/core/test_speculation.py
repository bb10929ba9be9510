"""The rows of the speculation report."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.speculation import TurnFigures, speculation_rows
from core.variant import Variant

FAST = TurnFigures(
    policy="coder",
    version=3,
    domain="code",
    variant=Variant.FAST,
    tokens=30,
    seconds=1.0,
    drafted=16,
    accepted=8,
    steps=4,
    accepted_at=(4, 3, 1),
)
STANDARD = replace(FAST, variant=Variant.STANDARD, seconds=2.0, drafted=0, accepted=0, steps=0, accepted_at=())


def test_a_row_holds_acceptance_and_both_speeds():
    """Fast and standard Turns of one version and Domain make one row, with the ratio of their speeds."""
    [row] = speculation_rows([FAST, STANDARD, FAST])
    assert (row.fast_turns, row.standard_turns, row.drafted, row.accepted) == (2, 1, 32, 16)
    assert (row.acceptance, row.tokens_per_step, row.by_position) == (0.5, 3.0, (1.0, 0.75, 0.25))
    assert (row.fast_tokens_per_second, row.standard_tokens_per_second, row.speedup) == (30.0, 15.0, 2.0)


def test_one_variant_alone_has_no_speedup():
    """Without the other Variant in the same span nothing is compared, and without drafts nothing was accepted."""
    [row] = speculation_rows([STANDARD])
    assert row.speedup is None and row.acceptance is None and row.tokens_per_step is None and row.by_position == ()


def test_versions_and_domains_are_kept_apart_and_in_order():
    """One row for each, the Domain-less first."""
    turns = [FAST, replace(FAST, version=2), replace(FAST, domain=None), replace(FAST, policy="base")]
    rows = speculation_rows(turns)
    assert [(row.policy, row.version, row.domain) for row in rows] == [
        ("base", 3, "code"),
        ("coder", 2, "code"),
        ("coder", 3, None),
        ("coder", 3, "code"),
    ]
    assert speculation_rows([]) == []


@given(st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=6), min_size=1, max_size=5))
def test_accepted_tokens_are_the_sum_over_positions(histories):
    """Positions of Turns with drafts of different lengths add up to what was accepted, and never grow."""
    turns = []
    for accepted in histories:
        counts = tuple(sum(1 for one in accepted if one > position) for position in range(max(accepted, default=0)))
        turns.append(
            replace(FAST, drafted=3 * len(accepted), accepted=sum(accepted), steps=len(accepted), accepted_at=counts)
        )
    [row] = speculation_rows(turns)
    steps = sum(map(len, histories))
    assert sum(row.by_position) == pytest.approx(row.accepted / steps)
    assert list(row.by_position) == sorted(row.by_position, reverse=True)
