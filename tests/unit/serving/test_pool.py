"""The routing table: names to replicas."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.deployment import Deployment, DeploymentStatus, LoadedVersion
from core.errors import EngineUnavailable, ModelNotFound, VersionNotServed
from core.policy import Base, Policy, PolicyVersion, ProbeResult, ServingStatus
from core.variant import Variant, parse_model_name
from serving.pool import InFlight, RoutingTable

BASE = Base(name="base", path="/models/base", fingerprint="f")
PASSED = ProbeResult(passed=True, error=0.0, parent_distance=1.0, base_distance=1.0, reason="")


def loaded(version: int, state: str = "live") -> LoadedVersion:
    return LoadedVersion(
        policy="coder",
        version=version,
        engine_model=f"coder.v{version}",
        checksum="c",
        state=state,
        swap_seconds=0.1,
        probe=PASSED,
    )


def deployment(
    id: str, *held: LoadedVersion, variant=Variant.STANDARD, status=DeploymentStatus.READY, **fields
) -> Deployment:
    return Deployment(
        id=id, base="base", variant=variant, engine="fake", url=f"http://{id}", status=status, loaded=held, **fields
    )


def table(*deployments: Deployment, promoted: int = 0, in_flight: InFlight | None = None, **serving) -> RoutingTable:
    versions = [
        PolicyVersion(policy="coder", version=number, kind="lora", origin="grpo", serving=ServingStatus.LIVE)
        for number in range(1, 6)
    ]
    versions = [one.model_copy(update=serving) for one in versions]
    policy = Policy(name="coder", base="base", promoted_version=promoted)
    return RoutingTable.build([BASE], [policy], versions, deployments, in_flight)


def resolve(routes: RoutingTable, name: str, **options):
    return routes.resolve(parse_model_name(name), **options)


def test_the_base_answers_under_its_own_name():
    """The Base's name is version 0 on the engine's base model."""
    route = resolve(table(deployment("a")), "base")
    assert (route.engine_model, route.policy, route.version) == ("base", "base", 0)


def test_version_zero_of_a_policy_is_the_base():
    """A Policy without a promoted version answers with the Base, under its own name."""
    route = resolve(table(deployment("a")), "coder")
    assert (route.engine_model, route.policy, route.version) == ("base", "coder", 0)


def test_the_promoted_version_answers():
    """A bare Policy name means the promoted version."""
    route = resolve(table(deployment("a", loaded(1), loaded(2)), promoted=2), "coder")
    assert (route.engine_model, route.version) == ("coder.v2", 2)


def test_a_version_in_the_name_wins_over_the_episodes():
    """NAME@VERSION beats what the Episode began with, which beats the promoted version."""
    routes = table(deployment("a", loaded(1), loaded(2), loaded(3)), promoted=1)
    assert resolve(routes, "coder@3", pinned_version=2).version == 3
    assert resolve(routes, "coder", pinned_version=2).version == 2


def test_a_draining_version_ends_its_episodes_only():
    """An Episode may go on with a draining version; a new request for it gets a conflict."""
    routes = table(deployment("a", loaded(1, "draining"), loaded(2)), promoted=2)
    assert resolve(routes, "coder", pinned_version=1).engine_model == "coder.v1"
    with pytest.raises(VersionNotServed):
        resolve(routes, "coder@1")


def test_fast_goes_to_the_fast_replica():
    """NAME-fast is answered by a fast replica where one is ready."""
    routes = table(deployment("a"), deployment("b", variant=Variant.FAST))
    assert resolve(routes, "coder-fast").deployment.id == "b"
    assert resolve(routes, "coder").deployment.id == "a"


@pytest.mark.parametrize(
    "fast",
    [
        deployment("b", variant=Variant.FAST, status=DeploymentStatus.UNHEALTHY),
        deployment("b", loaded(1), variant=Variant.FAST),
    ],
)
def test_fast_falls_back_to_standard(fast):
    """A fast request is answered by the standard replica, and says so, when no fast one can."""
    route = resolve(table(deployment("a", loaded(2)), fast, promoted=2), "coder-fast")
    assert (route.deployment.id, route.variant) == ("a", Variant.STANDARD)


def test_unknown_names_and_versions_are_not_found():
    """A name, or a number that was never minted, is a 404; so is a version of a Base."""
    routes = table(deployment("a"))
    for name in ("nobody", "coder@99", "base@1"):
        with pytest.raises(ModelNotFound):
            resolve(routes, name)


def test_a_refused_version_says_why():
    """Asking for a refused version gives a conflict with the reason."""
    routes = table(deployment("a"), serving=ServingStatus.REFUSED, serving_reason="rank 64 is above 16")
    with pytest.raises(VersionNotServed, match="rank 64"):
        resolve(routes, "coder@1")


def test_a_promoted_version_that_nobody_holds_is_a_passing_state():
    """A bare name whose version is being loaded is a 503, not a 409."""
    with pytest.raises(EngineUnavailable, match="coder@1"):
        resolve(table(deployment("a"), promoted=1, serving=ServingStatus.WANTED), "coder")


def test_without_a_ready_replica_nothing_answers():
    """The error names the state of every replica."""
    routes = table(deployment("a", status=DeploymentStatus.UNHEALTHY, status_reason="no answer"))
    with pytest.raises(EngineUnavailable) as raised:
        resolve(routes, "base")
    assert "no answer" in (raised.value.hint or "")


def test_an_excluded_replica_is_not_used_again():
    """A retry goes elsewhere, and fails when there is no elsewhere."""
    routes = table(deployment("a"), deployment("b"))
    assert resolve(routes, "base", exclude={"a"}).deployment.id == "b"
    with pytest.raises(EngineUnavailable):
        resolve(routes, "base", exclude={"a", "b"})


@settings(deadline=None, max_examples=50)
@given(st.lists(st.booleans(), min_size=1, max_size=60))
def test_load_stays_even(ends):
    """Whatever order requests begin and end in, replicas never differ by more than the ended ones."""
    in_flight = InFlight()
    routes = table(deployment("a"), deployment("b"), deployment("c"), in_flight=in_flight)
    running = []
    for end in ends:
        route = resolve(routes, "base")
        counts = [in_flight.running(one) for one in "abc"]
        assert in_flight.running(route.deployment.id) == min(counts)
        tracked = in_flight.track(route.deployment.id)
        tracked.__enter__()
        running.append(tracked)
        if end:
            running.pop(0).__exit__(None, None, None)
    for tracked in running:
        tracked.__exit__(None, None, None)
    assert [in_flight.running(one) for one in "abc"] == [0, 0, 0]


@settings(deadline=None, max_examples=50)
@given(
    held=st.lists(
        st.tuples(st.integers(1, 5), st.sampled_from(["live", "draining"])), max_size=5, unique_by=lambda t: t[0]
    ),
    promoted=st.integers(0, 5),
    pin=st.none() | st.integers(0, 5),
    name=st.sampled_from(["coder", "coder-fast", "coder@1", "coder-fast@3", "base"]),
)
def test_a_route_never_lies(held, promoted, pin, name):
    """A route's engine name is the Base for version 0, else one that the chosen replica really holds."""
    routes = table(
        deployment("a", *(loaded(number, state) for number, state in held)),
        deployment("b", variant=Variant.FAST),
        promoted=promoted,
    )
    try:
        route = resolve(routes, name, pinned_version=pin)
    except (EngineUnavailable, VersionNotServed):
        return
    assert route.variant is route.deployment.variant
    if route.version == 0:
        assert route.engine_model == "base"
    else:
        assert route.engine_model in {one.engine_model for one in route.deployment.loaded}
        assert route.engine_model == f"coder.v{route.version}"
