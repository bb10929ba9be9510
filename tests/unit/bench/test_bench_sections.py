"""What all benchmarks share: checks, percentiles, and sections of one document."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.checks import check, met, percentile, ratio
from bench.report import checks_table, table, with_section


@pytest.mark.parametrize(
    ("value", "target", "expected"),
    [(1.5, "<= 1.5", True), (1.51, "<= 1.5", False), (50, ">= 50", True), (0, "== 0", True), (None, "== 0", False)],
)
def test_target_is_met_by_a_measured_value_only(value, target, expected):
    """A value is held to its bound; what was not measured meets nothing."""
    assert met(check("name", value, "x", target)) is expected


@given(st.lists(st.floats(0, 1e6), min_size=1), st.floats(0.01, 1.0))
def test_percentile_is_a_value_that_enough_do_not_exceed(values, share):
    """The percentile is one of the values, and at least the asked share is not above it."""
    found = percentile(values, share)
    assert found in values
    assert sum(value <= found for value in values) >= share * len(values) - 1e-5


def test_percentiles_and_ratios_of_nothing_are_nothing():
    """Nothing measured gives None, never a number."""
    assert percentile([], 0.99) is None
    assert ratio(1.0, None) is None
    assert ratio(1.0, 0.0) is None
    assert ratio(3.0, 2.0) == 1.5


def test_section_is_replaced_and_the_others_stay():
    """Writing a section again changes it alone; a new one is added at the end."""
    document = with_section(with_section("# Benchmarks\n", "bench-a", "first a"), "bench-b", "b")
    document = with_section(document, "bench-a", "second a")
    assert "first a" not in document
    assert document.index("second a") < document.index("\nb\n")
    assert with_section(document, "bench-a", "second a") == document
    assert document.startswith("# Benchmarks\n")


def test_tables_show_missing_values_and_missed_targets():
    """A check that was not measured says so, and a missing number is a dash."""
    text = checks_table([check("speed", None, "x", ">= 1"), check("lost", 0, "tokens", "== 0")])
    assert "| `speed` | not measured | >= 1 | **no** |" in text
    assert "| `lost` | 0 tokens | == 0 | yes |" in text
    assert table({"a": "A", "b": "B"}, [{"a": "x", "b": 1234.5}, {"a": "y"}]) == (
        "| A | B |\n|---|--:|\n| x | 1,234 |\n| y | - |\n"
    )
