"""Which version each replica of a full-weight Policy carries, and which replicas answer for a name."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.deployment import Deployment, DeploymentStatus, LoadedVersion, SwapRecord
from core.errors import EngineUnavailable, VersionNotServed
from core.policy import Base, Policy, PolicyVersion, ProbeResult, ServingStatus
from core.variant import Variant, parse_model_name
from serving.full_plan import full_plan
from serving.full_routing import carried_version, weights_key
from serving.pool import RoutingTable

PASSED = ProbeResult(passed=True, error=0.0, parent_distance=1.0, base_distance=1.0, reason="test")


def _version(number: int, serving: ServingStatus = ServingStatus.WANTED, *, pinned: bool = False) -> PolicyVersion:
    pins = ("job",) if pinned else ()
    return PolicyVersion(policy="coder", version=number, kind="full", origin="sft", serving=serving, pins=pins)


def _policy(promoted: int, previous: int | None = None) -> Policy:
    return Policy(name="coder", base="base", promoted_version=promoted, previous_version=previous)


def test_single_replica_carries_only_the_promoted_version() -> None:
    """A candidate, and even a pinned version, never takes the only replica from the promoted version's traffic."""
    versions = [_version(1), _version(2), _version(3, pinned=True)]
    assert full_plan(_policy(1), versions, [1]) == (1,)
    assert full_plan(_policy(0), versions, [0]) == (0,)


def test_the_newest_candidate_has_a_seat_where_there_are_several() -> None:
    """One of several replicas tries the newest candidate; pinned versions come before it."""
    versions = [_version(1), _version(2), _version(3)]
    assert full_plan(_policy(1), versions, [1, 1, 1]) == (1, 1, 3)
    versions[1] = _version(2, pinned=True)
    assert full_plan(_policy(1), versions, [1, 1, 1]) == (1, 1, 2)


def test_a_seat_that_carries_the_candidate_keeps_it() -> None:
    """No second replica is swapped for a version that one carries already, nor one swapped back and forth."""
    assert full_plan(_policy(1), [_version(1), _version(2)], [2, 1]) == (2, 1)


def test_replicas_that_are_lost_or_closed_are_no_seats() -> None:
    """The only replica that can be given anything has the promoted version's traffic, whatever the others carried."""
    versions = [_version(17), _version(18)]
    assert full_plan(_policy(17), versions, [None, 17], seats=[False, True]) == (17, 17)
    assert full_plan(_policy(17), versions, [18, 17], seats=[False, True]) == (17, 17)
    assert full_plan(_policy(17), versions, [17, None, 17], seats=[True, False, True]) == (17, 17, 18)


def test_older_versions_and_other_kinds_are_no_candidates() -> None:
    """What was left behind by a promotion is not tried again, and LoRA versions are never carried as weights."""
    lora = PolicyVersion(policy="coder", version=9, kind="lora", origin="sft")
    assert full_plan(_policy(3), [_version(2), _version(3), lora], [3, 3]) == (3, 3)


def test_refused_promotion_gives_way() -> None:
    """Where the promoted version was refused replicas carry the one before, or the Base."""
    refused = _version(2, ServingStatus.REFUSED)
    assert full_plan(_policy(2, previous=1), [_version(1), refused], [1, 1]) == (1, 1)
    assert full_plan(_policy(2), [refused], [0]) == (0,)


@given(
    promoted=st.integers(0, 5),
    previous=st.none() | st.integers(0, 5),
    versions=st.lists(
        st.builds(_version, st.integers(1, 6), st.sampled_from(ServingStatus), pinned=st.booleans()),
        unique_by=lambda one: one.version,
    ),
    carried=st.lists(st.none() | st.integers(0, 6), min_size=1, max_size=4),
)
def test_plan_is_stable_and_never_wants_what_was_refused(
    promoted: int, previous: int | None, versions: list[PolicyVersion], carried: list[int | None]
) -> None:
    """A plan that was carried out is planned again; refused versions are in none; at most one seat is for trying."""
    policy = _policy(promoted, previous)
    plan = full_plan(policy, versions, carried)
    assert full_plan(policy, versions, list(plan)) == plan
    refused = {one.version for one in versions if one.serving is ServingStatus.REFUSED}
    assert not refused & set(plan)
    assert len(plan) == len(carried)
    assert sum(number != max(plan, key=plan.count) for number in plan) <= 1


def _deployment(
    name: str,
    version: int = 0,
    *,
    status: DeploymentStatus = DeploymentStatus.READY,
    candidate: bool = False,
    policy: str | None = "coder",
) -> Deployment:
    weights = None
    if version:
        weights = LoadedVersion(
            policy="coder",
            version=version,
            engine_model="base",
            checksum="c",
            candidate=candidate,
            swap_seconds=0.1,
            probe=PASSED,
        )
    return Deployment(
        id=name,
        base="base",
        variant=Variant.STANDARD,
        engine="fake",
        url=f"http://{name}",
        status=status,
        policy=policy,
        weights=weights,
    )


def _table(policy: Policy, *deployments: Deployment) -> RoutingTable:
    versions = [_version(number, ServingStatus.LIVE) for number in range(1, 5)]
    base = Base(name="base", path="/b", fingerprint="f")
    other = Policy(name="other", base="base")
    return RoutingTable.build([base], [policy, other], versions, deployments)


def _resolve(table: RoutingTable, name: str) -> tuple[str, str, int]:
    route = table.resolve(parse_model_name(name))
    return route.deployment.id, route.engine_model, route.version


def test_promoted_version_answers_under_the_bases_engine_name() -> None:
    """The Policy's name goes to a replica that carries its promoted version, and the Route says which."""
    table = _table(_policy(2, 1), _deployment("a", 1), _deployment("b", 2))
    assert _resolve(table, "coder") == ("b", "base", 2)
    assert _resolve(table, "coder@1") == ("a", "base", 1)
    assert table.resolve(parse_model_name("coder")).public_model == "coder@2"


def test_the_version_before_stands_in_until_the_promoted_one_is_carried() -> None:
    """After a promotion or a rollback what is carried goes on answering, under its own number."""
    assert _resolve(_table(_policy(3, 2), _deployment("a", 2)), "coder") == ("a", "base", 2)
    assert _resolve(_table(_policy(1), _deployment("a", 2)), "coder") == ("a", "base", 2)


def test_a_version_that_is_tried_answers_only_by_number() -> None:
    """A candidate never stands in for the promoted version: nothing reaches traffic except by its release."""
    table = _table(_policy(1), _deployment("a", 2, candidate=True))
    assert _resolve(table, "coder@2") == ("a", "base", 2)
    with pytest.raises(VersionNotServed, match="one version of full weights at a time, now @2"):
        table.resolve(parse_model_name("coder"))


def test_nothing_else_is_served() -> None:
    """The Base's own name and other Policies get a 409 that says whose weights the replicas carry."""
    table = _table(_policy(1), _deployment("a", 1))
    for name in ("base", "other"):
        with pytest.raises(VersionNotServed, match="carry the full weights of 'coder' and serve nothing else"):
            table.resolve(parse_model_name(name))


def test_a_version_that_no_replica_carries_is_a_conflict() -> None:
    """A pin on another version is a 409 with the reason, not a wait and not another version's answer."""
    with pytest.raises(VersionNotServed, match="now @1; a second replica"):
        _table(_policy(1), _deployment("a", 1)).resolve(parse_model_name("coder@3"))


def test_a_closed_replica_is_waited_for() -> None:
    """While the only replica is swapped nothing can answer, and the table says that waiting helps."""
    table = _table(_policy(1), _deployment("a", 1, status=DeploymentStatus.SWAPPING))
    with pytest.raises(EngineUnavailable):
        table.resolve(parse_model_name("coder"))
    assert table.swapping(parse_model_name("coder"))
    assert not table.swapping(parse_model_name("other"))
    assert not table.swapping(parse_model_name("base"))


def test_weights_key_changes_with_every_swap_and_rollback() -> None:
    """A rollback to the same version is told apart from no swap at all."""
    before = _deployment("a", 1)
    swap = SwapRecord(kind="full", policy="coder", version=2, outcome="rolled_back", seconds=1.0)
    after = before.model_copy(update={"swaps": (swap,)})
    assert carried_version(before) == carried_version(after) == 1
    assert weights_key(before) != weights_key(after)
    assert weights_key(_deployment("b")) == (0, 0.0, 0.0)
