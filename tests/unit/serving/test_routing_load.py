"""Which of several replicas gets a request: its Episode's, the least loaded, and never one that is closed."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.deployment import Deployment, DeploymentStatus, EngineLoad, LoadedVersion
from core.errors import EngineUnavailable
from core.policy import Base, Policy, PolicyVersion, ProbeResult, ServingStatus
from core.variant import Variant, parse_model_name
from serving.pool import InFlight, RoutingTable

BASE = Base(name="base", path="/models/base", fingerprint="f", token_bytes=9)
PASSED = ProbeResult(passed=True, error=0.0, parent_distance=1.0, base_distance=1.0, reason="")
NOW = 1_000_000.0
FAST = Variant.FAST


def holding(version: int) -> LoadedVersion:
    return LoadedVersion(
        policy="coder", version=version, engine_model=f"v{version}", checksum="c", swap_seconds=0.1, probe=PASSED
    )


def replica(id: str, *held: LoadedVersion, variant=Variant.STANDARD, status=DeploymentStatus.READY, **fields):
    return Deployment(
        id=id, base="base", variant=variant, engine="fake", url=f"http://{id}", status=status, loaded=held, **fields
    )


def busy(id: str, running: int, *, at: float = NOW, waiting: int = 0) -> Deployment:
    return replica(id, load=EngineLoad(running=running, waiting=waiting, kv_use=0.1, read_at=at))


def table(*replicas: Deployment, in_flight: InFlight | None = None, promoted: int = 0, bound: int = 4):
    policy = Policy(name="coder", base="base", promoted_version=promoted)
    version = PolicyVersion(policy="coder", version=1, kind="lora", origin="grpo", serving=ServingStatus.LIVE)
    return RoutingTable.build([BASE], [policy], [version], replicas, in_flight, sticky_bound=bound)


def asked(routes: RoutingTable, name: str = "coder", **options):
    return routes.resolve(parse_model_name(name), **options)


def begin(in_flight: InFlight, id: str, times: int) -> None:
    for _ in range(times):
        in_flight.began(id)


@given(st.lists(st.integers(0, 12), min_size=2, max_size=5), st.integers(0, 6), st.data())
def test_an_episode_stays_unless_its_replica_is_much_busier(counts, bound, data):
    """The last replica answers again exactly while it is at most ``bound`` requests above the least loaded one."""
    in_flight = InFlight()
    ids = [f"dep_{number}" for number in range(len(counts))]
    for id, count in zip(ids, counts, strict=True):
        begin(in_flight, id, count)
    last = data.draw(st.sampled_from(ids))
    chosen = asked(table(*map(replica, ids), in_flight=in_flight, bound=bound), last=last).deployment_id
    excess = counts[ids.index(last)] - min(counts)
    if excess <= bound:
        assert chosen == last
    else:
        assert counts[ids.index(chosen)] == min(counts)


@given(
    st.lists(st.sampled_from(list(DeploymentStatus)), min_size=1, max_size=5),
    st.data(),
)
def test_only_ready_replicas_get_anything(states, data):
    """Nothing new goes to a replica that swaps, drains, starts or is away, not even its own Episode's requests."""
    replicas = [replica(f"dep_{number}", status=state) for number, state in enumerate(states)]
    last = data.draw(st.sampled_from([one.id for one in replicas]))
    ready = {one.id for one in replicas if one.status is DeploymentStatus.READY}
    if not ready:
        with pytest.raises(EngineUnavailable):
            asked(table(*replicas), last=last)
    else:
        assert asked(table(*replicas), last=last).deployment_id in ready


def test_an_unknown_last_replica_changes_nothing():
    """An Episode whose replica is gone goes to the least loaded one."""
    in_flight = InFlight()
    begin(in_flight, "a", 1)
    assert asked(table(replica("a"), replica("b"), in_flight=in_flight), last="gone").deployment_id == "b"


def test_what_others_send_counts_as_load():
    """A replica that other processes keep busy, as its engine says, is not the least loaded one."""
    in_flight = InFlight()
    replicas = (busy("a", 5, waiting=1), busy("b", 1))
    in_flight.told(replicas, NOW)
    assert (in_flight.load("a"), in_flight.load("b")) == (6, 1)
    assert asked(table(*replicas, in_flight=in_flight)).deployment_id == "b"


def test_ones_own_burst_is_not_the_load_of_others():
    """Requests of this process that the engine still reported, though they have ended, are not counted again."""
    in_flight = InFlight()
    in_flight.told([], NOW)
    begin(in_flight, "a", 16)
    for _ in range(16):
        in_flight.ended("a")
    in_flight.told([busy("a", 16)], NOW + 1.0)
    assert in_flight.load("a") == 0
    in_flight.told([busy("a", 16, at=NOW + 20)], NOW + 20.0)
    in_flight.told([busy("a", 16, at=NOW + 30)], NOW + 30.0)
    assert in_flight.load("a") == 16


def test_an_old_reading_says_nothing():
    """A load that was read long ago is left out."""
    in_flight = InFlight()
    in_flight.told([busy("a", 9, at=NOW - 60)], NOW)
    assert in_flight.load("a") == 0


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2), st.booleans(), st.integers(0, 40), st.integers(0, 9)), max_size=40))
def test_load_is_never_negative_and_at_least_ones_own(steps):
    """Whatever engines report and whenever, a replica's load is at least what runs there for this process."""
    in_flight, running, now = InFlight(), [0, 0, 0], NOW
    for place, begins, reported, seconds in steps:
        id = f"dep_{place}"
        if begins:
            in_flight.began(id)
            running[place] += 1
        elif running[place]:
            in_flight.ended(id)
            running[place] -= 1
        now += seconds
        in_flight.told([busy(id, reported, at=now)], now)
        assert all(in_flight.load(f"dep_{number}") >= count for number, count in enumerate(running))


@pytest.mark.parametrize(
    ("replicas", "name", "chosen", "reason"),
    [
        ((replica("s"),), "coder-fast", "s", "no_fast_replica"),
        ((replica("s"), replica("f", variant=FAST)), "coder-fast", "f", None),
        ((replica("s"), replica("f", variant=FAST, speculating=False)), "coder-fast", "s", "speculation_off"),
        ((replica("f", variant=FAST, speculating=False),), "coder-fast", "f", "speculation_off"),
        ((replica("f", variant=FAST),), "coder", "f", "no_standard_replica"),
        ((replica("s"), replica("f", variant=FAST)), "coder", "s", None),
        (
            (replica("s"), replica("f", variant=FAST, status=DeploymentStatus.SWAPPING)),
            "coder-fast", "s", "no_fast_replica",
        ),
        (
            (replica("f", variant=FAST, speculating=False), replica("g", variant=FAST)),
            "coder-fast", "g", None,
        ),
    ],
)  # fmt: skip
def test_another_variant_answers_with_its_reason(replicas, name, chosen, reason):
    """Where the Variant that was asked for cannot answer, or would not speculate, the Route says why."""
    route = asked(table(*replicas), name)
    assert (route.deployment_id, route.reason) == (chosen, reason)


def test_a_fast_replica_without_the_version_is_named_as_the_reason():
    """Of a version that only standard holds, standard answers and says so."""
    routes = table(replica("s", holding(1)), replica("f", variant=FAST), promoted=1)
    route = asked(routes, "coder-fast")
    assert (route.deployment_id, route.reason, route.version) == ("s", "fast_lacks_version", 1)


def test_a_route_with_a_reason_is_the_same_route():
    """A reason changes nothing else, and the same reason is the same object."""
    route = asked(table(replica("a", max_model_len=64)))
    because = route.because("fast_busy")
    assert because is route.because("fast_busy")
    assert (because.reason, because.deployment_id, because.max_model_len, because.token_bytes) == (
        "fast_busy", "a", 64, 9,
    )  # fmt: skip
    assert because.memo is not route.memo


def test_variant_wins_over_the_name():
    """The rule behind NAME-auto asks for a Variant whatever the name says."""
    routes = table(replica("s"), replica("f", variant=FAST))
    assert asked(routes, "coder-auto").deployment_id == "s"
    assert asked(routes, "coder-auto", variant=FAST).deployment_id == "f"
