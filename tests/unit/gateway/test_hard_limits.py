"""Hard limits of a ramp: what counts as a breakdown of the candidate, and what does not."""

from typing import Any

import pytest

from core.deployment import Deployment, DeploymentStatus, LoadedVersion, Restart, SwapRecord
from core.policy import PolicyVersion, ProbeResult, ServingStatus
from gateway.experiments.hard_limits import Held, broken_limits, still_held
from tests import nouns

PASSED = ProbeResult(passed=True, error=0.0, parent_distance=1.0, base_distance=1.0, reason="ok")
LOADED = LoadedVersion(policy="coder", version=2, engine_model="c.v2", checksum="c", swap_seconds=0.1, probe=PASSED)
HELD = {"dep_a": Held(pid=7, machine="m")}


def version(**fields: Any) -> PolicyVersion:
    """The candidate, live."""
    values = {"policy": "coder", "version": 2, "kind": "lora", "origin": "grpo", "serving": ServingStatus.LIVE}
    return PolicyVersion(**(values | fields))


def replica(**fields: Any) -> Deployment:
    """A ready replica that holds the candidate."""
    values = {"id": "dep_a", "status": DeploymentStatus.READY, "loaded": (LOADED,), "pid": 7, "machine": "m"}
    return nouns.deployment(**(values | fields))


@pytest.mark.parametrize(
    ("fields", "broken"),
    [
        ({}, False),
        ({"status": DeploymentStatus.UNHEALTHY, "loaded": ()}, True),
        ({"status": DeploymentStatus.STARTING, "loaded": (), "pid": 8}, True),
        ({"pid": 8, "machine": "another"}, False),
        ({"status": DeploymentStatus.STOPPED, "loaded": ()}, False),
        ({"status": DeploymentStatus.DRAINING}, False),
        ({"status": DeploymentStatus.STARTING, "pid": 8, "restart": Restart(reason="asked")}, False),
    ],
)
def test_a_breakdown_is_told_from_a_wish(fields: dict[str, Any], broken: bool) -> None:
    """Unhealthy, or another process in its place: broken down; stopped, drained or restarted by wish: not."""
    assert bool(broken_limits(version(), [replica(**fields)], since=0.0, held=HELD)) == broken


def test_a_replica_that_never_held_it_may_break_down() -> None:
    """The candidate is not to blame for others."""
    other = replica(id="dep_b", status=DeploymentStatus.UNHEALTHY, loaded=())
    assert broken_limits(version(), [other], since=0.0, held=HELD) == ()


@pytest.mark.parametrize("outcome", ["refused", "failed", "rolled_back"])
def test_a_load_that_ends_badly_counts_from_the_beginning_of_the_ramp(outcome: str) -> None:
    """Later ones end it; one from before, or of another version, does not."""
    bad = SwapRecord(kind="lora", policy="coder", version=2, outcome=outcome, reason="probe", seconds=0.1, at=10.0)
    seen = broken_limits(version(), [replica(swaps=(bad,))], since=5.0, held={})
    assert len(seen) == 1 and "probe" in seen[0]
    assert broken_limits(version(), [replica(swaps=(bad,))], since=11.0, held={}) == ()
    other = bad.model_copy(update={"version": 3})
    assert broken_limits(version(), [replica(swaps=(other,))], since=5.0, held={}) == ()


def test_a_refused_version_is_broken() -> None:
    """Whatever its replicas say."""
    refused = version(serving=ServingStatus.REFUSED, serving_reason="the probe failed")
    assert broken_limits(refused, [], since=0.0, held={}) == ("coder@2 was refused: the probe failed",)


def test_what_was_restarted_by_wish_is_forgotten_until_it_holds_it_again() -> None:
    """So the new process is no breakdown of the old one."""
    restarting = replica(status=DeploymentStatus.STARTING, loaded=(), restart=Restart(reason="asked"))
    assert still_held(HELD, [restarting], "coder", 2) == {}
    assert still_held({}, [replica(pid=9)], "coder", 2) == {"dep_a": Held(pid=9, machine="m")}
    assert still_held(HELD, [replica(status=DeploymentStatus.STARTING, loaded=())], "coder", 2) == HELD
