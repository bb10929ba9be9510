"""Which versions replicas shall hold."""

from hypothesis import given, settings
from hypothesis import strategies as st

from core.policy import Policy, PolicyVersion, ServingStatus
from serving.wanted import wanted_versions


def version(number: int, serving=ServingStatus.LIVE, policy: str = "coder", pinned: bool = False, **fields):
    return PolicyVersion(
        policy=policy,
        version=number,
        kind="lora",
        origin="grpo",
        serving=serving,
        pins=("operator",) if pinned else (),
        created_at=float(number),
        **fields,
    )


def numbers(found):
    return [one.version for one in found]


def test_promoted_previous_pinned_and_the_newest_two():
    """They come in order of importance, each once."""
    policy = Policy(name="coder", base="base", promoted_version=3, previous_version=2)
    versions = [version(n, pinned=n == 1) for n in range(1, 9)]
    wanted = wanted_versions([policy], versions, max_loaded=6)
    assert numbers(wanted.load) == [3, 2, 1, 8, 7]
    assert wanted.left_out == ()


def test_the_bound_leaves_out_the_least_important():
    """Promoted, previous and pinned versions beat candidates when there is no room for all."""
    policy = Policy(name="coder", base="base", promoted_version=3, previous_version=2)
    versions = [version(n, pinned=n == 1) for n in range(1, 9)]
    wanted = wanted_versions([policy], versions, max_loaded=4)
    assert numbers(wanted.load) == [3, 2, 1, 8]
    assert numbers(wanted.left_out) == [7]


def test_a_promoted_version_is_brought_back():
    """An unloaded version that is promoted again is wanted; other unloaded ones are not candidates."""
    policy = Policy(name="coder", base="base", promoted_version=1)
    versions = [version(1, ServingStatus.UNLOADED), version(2, ServingStatus.UNLOADED)]
    assert numbers(wanted_versions([policy], versions, max_loaded=6).load) == [1]


def test_a_refused_version_is_never_wanted():
    """Promotion or a pin does not bring a refused version back."""
    policy = Policy(name="coder", base="base", promoted_version=1)
    versions = [version(1, ServingStatus.REFUSED, pinned=True)]
    assert wanted_versions([policy], versions, max_loaded=6).load == ()


def test_each_policy_gets_its_newest_before_any_gets_a_second():
    """Two Policies share the room evenly."""
    policies = [Policy(name="a", base="base"), Policy(name="b", base="base")]
    versions = [version(n, ServingStatus.WANTED, policy=name) for name in "ab" for n in (1, 2, 3)]
    wanted = wanted_versions(policies, versions, max_loaded=3)
    assert [one.label for one in wanted.load] == ["a@3", "b@3", "a@2"]


@settings(deadline=None, max_examples=50)
@given(
    promoted=st.integers(0, 9),
    previous=st.none() | st.integers(0, 9),
    statuses=st.lists(st.tuples(st.sampled_from(ServingStatus), st.booleans()), max_size=9),
    bound=st.integers(2, 8),
)
def test_nothing_is_lost_or_doubled(promoted, previous, statuses, bound):
    """The answer has no doubles, obeys the bound, and loads the promoted version whenever it can be served."""
    policy = Policy(name="coder", base="base", promoted_version=promoted, previous_version=previous)
    versions = [version(n, status, pinned=pinned) for n, (status, pinned) in enumerate(statuses, start=1)]
    wanted = wanted_versions([policy], versions, max_loaded=bound)
    both = numbers(wanted.load + wanted.left_out)
    assert len(both) == len(set(both)) and len(wanted.load) <= bound
    assert not wanted.left_out or len(wanted.load) == bound
    assert all(one.serving is not ServingStatus.REFUSED for one in wanted.load)
    servable = {one.version for one in versions if one.serving is not ServingStatus.REFUSED}
    assert promoted not in servable or wanted.load[0].version == promoted
