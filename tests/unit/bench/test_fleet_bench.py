"""The fleet benchmark's judgement: what failed, what was merely cut, and how load and cache hits spread."""

import pytest

from bench.fleet import report, results
from bench.fleet.fault import Fault
from bench.fleet.results import Arm, Findings
from bench.hotswap.swaps import Swap
from bench.streams import Answer


def answer(started: float, *, error: str | None = None, begun: bool = True) -> Answer:
    """One answer of a second."""
    found = Answer(0, 0, 1, started, error=error, begun=begun, ended=started + 1.0)
    found.arrivals = [started + 0.5] if begun else []
    return found


def fault() -> Fault:
    """A kill at second 10, with one answer cut, one failed, and one whole."""
    swap = Swap(version=2, published=9.9, live=12.0, first_token=13.0)
    found = Fault("dep", killed=10.0, out=10.8, back=80.0, swap=swap)
    found.answers = [answer(9.5, error="broken"), answer(9.8, error="HTTP 503", begun=False), answer(9.9)]
    return found


def findings() -> Findings:
    """One arm of each sort, and the fault."""
    found = Findings(replicas=3, fault=fault())
    found.arms = [
        Arm(
            sticky=True, seconds=10, answers=[answer(1)], queries=100, hits=80, spread={"fast 0": 9, "standard 0": 6}
        ),
        Arm(sticky=False, seconds=10, answers=[answer(2)], queries=100, hits=40, spread={"standard 0": 4}),
    ]
    found.arms[0].spread["standard 1"] = 4
    return found


def test_stream_that_had_begun_on_the_killed_engine_is_cut_and_not_failed():
    """Only streams of which tokens had arrived before the kill are excused."""
    killed = fault()
    assert [one.started for one in killed.cut] == [9.5]
    assert [one.started for one in killed.failed] == [9.8]
    killed.answers.append(answer(11.0, error="broken"))
    assert len(killed.failed) == 2


def test_checks_say_what_was_measured():
    """Hit rates are of tokens, imbalance is between standard replicas, and times count from the kill."""
    found = {one["name"]: one["value"] for one in results.checks(findings())}
    assert found["fleet_prefix_hit_rate_sticky"] == 0.8
    assert found["fleet_prefix_hit_rate_gain"] == 2.0
    assert found["fleet_load_imbalance_sticky"] == 1.5
    assert found["fleet_out_seconds"] == pytest.approx(0.8)
    assert found["fleet_back_seconds"] == pytest.approx(70.0)
    assert found["fleet_failed_requests"] == 1
    assert found["fleet_swaps_during_fault"] == 1


def test_replica_without_a_turn_shows():
    """A standard replica that answered nothing makes the imbalance nothing that could be met."""
    assert results.imbalance({"standard 0": 5, "standard 1": 0}) is None
    assert results.total([{"a": 1}, {"a": 2, "b": 3}]) == {"a": 3, "b": 3}


def test_nothing_measured_meets_nothing():
    """Without arms and fault every check has no value or none that would hide it."""
    found = {one["name"]: one["value"] for one in results.checks(Findings())}
    assert found["fleet_failed_requests"] is None
    assert found["fleet_back_seconds"] is None
    assert found["fleet_swaps_during_fault"] == 0


def test_section_shows_both_ways_of_routing():
    """The document's section has every check, a row for each way of routing, and the fault."""
    measured = findings()
    found = {
        "checks": results.checks(measured),
        "tables": results.tables(measured),
        "settings": {
            "standard": 8,
            "fast": 4,
            "whole": 4,
            "turns": 4,
            "rounds": 2,
            "seconds": 45.0,
            "base": "base",
        },
        "machine": {"cpu": "x"},
        "versions": {"vllm": "1"},
    }
    text = report.section(found)
    assert all(f"`{one['name']}`" in text for one in found["checks"])
    assert "| sticky | fast 0: 9, standard 0: 6, standard 1: 4 |" in text
