"""Aliases of a Policy, model names with an alias, and which folders may go."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from core.alias import Alias, alias_versions
from core.errors import InvalidRequest
from core.policy import Policy, PolicyVersion, ServingStatus
from core.release import Release, ReleaseStatus
from core.retention import prunable
from core.variant import parse_model_name

POLICY = Policy(name="coder", base="smol", promoted_version=3, previous_version=2)


def version(number: int, **fields: object) -> PolicyVersion:
    values = {
        "policy": "coder",
        "version": number,
        "kind": "lora",
        "origin": "grpo",
        "checkpoint_id": f"ckpt_{number}",
        "serving": ServingStatus.UNLOADED,
        "created_at": float(number),
    }
    return PolicyVersion(**(values | fields))


def release(number: int, status: ReleaseStatus) -> Release:
    return Release(id=f"rel_{number}", policy="coder", version=number, status=status)


def test_what_is_set_wins_for_candidate_alone() -> None:
    """``promoted`` and ``previous`` are the Policy's; ``candidate`` is what was set, else the newest on its way."""
    releases = [release(4, ReleaseStatus.CANDIDATE), release(5, ReleaseStatus.SHADOWING)]
    releases.append(release(6, ReleaseStatus.REJECTED))
    assert alias_versions(POLICY, [], releases) == {"candidate": 5, "promoted": 3, "previous": 2}
    chosen = [Alias(policy="coder", name="candidate", version=4), Alias(policy="other", name="x", version=1)]
    assert alias_versions(POLICY, chosen, releases)["candidate"] == 4
    assert "x" not in alias_versions(POLICY, chosen, releases)


@pytest.mark.parametrize("name", ["promoted", "previous", "17", "A", "", "-a", "a b", "x" * 33])
def test_a_name_that_cannot_be_an_alias(name: str) -> None:
    """Numbers, capitals, and the names that follow promotions are refused."""
    with pytest.raises(ValidationError):
        Alias(policy="coder", name=name, version=1)


@given(st.sampled_from(["", "-fast", "-auto"]), st.from_regex(r"[a-z][a-z0-9._-]{0,31}", fullmatch=True))
def test_a_model_name_with_an_alias_reads_back(suffix: str, alias: str) -> None:
    """What is parsed is written the same."""
    name = parse_model_name(f"coder{suffix}@{alias}")
    assert (name.name, name.alias, name.version) == ("coder", alias, None)
    assert str(name) == f"coder{suffix}@{alias}"


def test_a_model_name_with_neither_is_refused() -> None:
    """Behind the @ stands a number or an alias."""
    for text in ("coder@", "coder@A", "coder@1a", "coder@a@b"):
        with pytest.raises(InvalidRequest):
            parse_model_name(text)


def test_only_what_nothing_needs_may_go() -> None:
    """Promoted, previous, named, pinned, held, young, newest, under way and already gone: none of them."""
    versions = [
        version(1),
        version(2),
        version(3),
        version(4, pins=("eval_1",)),
        version(5, serving=ServingStatus.LIVE),
        version(6),
        version(7),
        version(8, files_removed_at=1.0),
        version(9),
        version(10),
    ]
    going = prunable(POLICY, versions, [release(7, ReleaseStatus.RAMPING)], keep=1, older_than=9.5, needed={6})
    assert [one.version for one in going] == [1, 9]


@given(
    st.lists(st.sampled_from(ServingStatus), min_size=1, max_size=12),
    st.sets(st.integers(1, 12)),
    st.integers(0, 12),
)
def test_pruning_never_touches_what_stays(held: list[ServingStatus], needed: set[int], keep: int) -> None:
    """Whatever the rule, at least ``keep`` versions and all that is promoted, named or held stay."""
    versions = [version(number, serving=status) for number, status in enumerate(held, start=1)]
    going = {one.version for one in prunable(POLICY, versions, [], keep=keep, older_than=1e9, needed=needed)}
    assert not going & (needed | {2, 3})
    assert len(versions) - len(going) >= min(keep, len(versions))
    assert all(
        one.serving in (ServingStatus.UNLOADED, ServingStatus.REFUSED) for one in versions if one.version in going
    )
