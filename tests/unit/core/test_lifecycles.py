"""Transition tables: every lifecycle is closed, reachable, and refuses what it does not list."""

from enum import StrEnum

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.deployment import DEPLOYMENT_TRANSITIONS, DeploymentStatus
from core.episode import EPISODE_TRANSITIONS, EpisodeStatus
from core.errors import InvalidTransition
from core.job import JOB_TRANSITIONS, JobStatus
from core.policy import SERVING_TRANSITIONS, ServingStatus
from core.release import RELEASE_TRANSITIONS, ReleaseStatus

LIFECYCLES = [
    (EPISODE_TRANSITIONS, EpisodeStatus, EpisodeStatus.RUNNING),
    (JOB_TRANSITIONS, JobStatus, JobStatus.QUEUED),
    (SERVING_TRANSITIONS, ServingStatus, ServingStatus.WANTED),
    (RELEASE_TRANSITIONS, ReleaseStatus, ReleaseStatus.CANDIDATE),
    (DEPLOYMENT_TRANSITIONS, DeploymentStatus, DeploymentStatus.STARTING),
]


@pytest.mark.parametrize(("table", "statuses", "first"), LIFECYCLES)
def test_every_status_is_listed_and_reachable(table, statuses, first):
    """Each status has its row, and a path leads to it from the first one."""
    reached, frontier = {first}, [first]
    while frontier:
        for following in table.successors(frontier.pop()):
            if following not in reached:
                reached.add(following)
                frontier.append(following)
    assert reached == set(statuses)


@pytest.mark.parametrize(("table", "statuses", "first"), LIFECYCLES)
def test_what_is_not_listed_is_refused(table, statuses: type[StrEnum], first):
    """Every pair is either allowed by the table or raises InvalidTransition."""
    for current in statuses:
        for following in statuses:
            if following in table.successors(current):
                assert table.check(current, following) is following
            else:
                with pytest.raises(InvalidTransition, match=str(following)):
                    table.check(current, following)


@given(st.lists(st.sampled_from(list(ReleaseStatus)), max_size=12))
def test_a_rejected_release_never_comes_back(path):
    """Whatever is tried, a rejected Release stays rejected."""
    status, rejected = ReleaseStatus.CANDIDATE, False
    for following in path:
        if following in RELEASE_TRANSITIONS.successors(status):
            status = following
        rejected = rejected or status is ReleaseStatus.REJECTED
        assert not rejected or status is ReleaseStatus.REJECTED
