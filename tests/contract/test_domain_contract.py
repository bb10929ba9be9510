"""What every Domain source promises."""

import pytest

from core.task import task_id
from sandbox.domains.registry import domain_source, domain_sources
from sandbox.tools.registry import make_tools
from sandbox.verifiers.registry import check_spec

SPLITS = ("train", "heldout", "warmup")
NAMES = [source.domain().name for source in domain_sources()] + ["reasoning_gym/chain_sum"]
COUNT = 24


@pytest.fixture(params=NAMES)
def source(request):
    """Each source in turn."""
    if request.param.startswith("reasoning_gym/"):
        pytest.importorskip("reasoning_gym")
    return domain_source(request.param)


@pytest.mark.parametrize("split", SPLITS)
def test_generate_is_deterministic_and_complete(source, split):
    """The same arguments give the same Tasks, as many as asked for, all different."""
    tasks = source.generate(split, COUNT, 7)
    assert tasks == source.generate(split, COUNT, 7)
    assert len({task.id for task in tasks}) == COUNT
    assert {(task.domain, task.split) for task in tasks} == {(source.domain().name, split)}
    assert source.generate(split, COUNT, 8) != tasks


def test_splits_share_no_question(source):
    """No opening of one split is ever asked in another, whatever the seeds."""
    asked = [
        {str(task.messages) for seed in range(4) for task in source.generate(split, COUNT, seed)} for split in SPLITS
    ]
    assert not (asked[0] & asked[1] or asked[0] & asked[2] or asked[1] & asked[2])


def test_tasks_are_ready_to_run(source):
    """Ids are content hashes, tools and verifiers exist, and only held-out Tasks lack a demonstration."""
    for split in SPLITS:
        for task in source.generate(split, 6, 1):
            assert task.id == task_id(task.model_dump(mode="json"))
            make_tools(task.tools)
            for spec in task.verifiers:
                check_spec(spec)
            assert (task.demonstration is None) == (split == "heldout")
