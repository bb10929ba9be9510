"""Sequence parallel and full weights give the gradient of plain PyTorch, and impossible layouts are refused.

`make bench-parity` compares all layouts; here are a few.
"""

import multiprocessing
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from pydantic import ValidationError
from transformers import LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM

from bench.parity.plan import MAIN, Layout
from bench.parity.results import LAYOUTS, LIMIT
from bench.parity.run import Parity
from core.config.learner import LearnerSection, LoraSection
from core.errors import ConfigurationError, LearnerError
from learner.distributed import World
from learner.policy_model import build_policy_model
from learner.schedule import rate_factor
from learner.sequence_parallel import SequenceGroup, pad_segments
from learner.token_tree import Segment


@pytest.fixture(scope="module")
def parity(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Parity]:
    """The benchmark's model and right gradients."""
    yield Parity(tmp_path_factory.mktemp("parity"))
    # What forks the ranks would outlive the test run's temporary folders.
    multiprocessing.forkserver._forkserver._stop()  # type: ignore[attr-defined]


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "layout",
    [
        Layout(zero_stage=1, sequence_parallel=2, train="lora", layout="padded"),
        Layout(zero_stage=2, sequence_parallel=2, train="full", layout="flat", ranks=4),
        Layout(zero_stage=3, sequence_parallel=2, train="full", layout="flat", objective="gspo"),
    ],
    ids=lambda layout: layout.name,
)
def test_layouts_have_the_right_gradient(parity, layout) -> None:
    """What SGD moved is the gradient of a single float32 process, without a factor, in processes of its own."""
    row = parity.measure(layout, main=True)
    assert row["error"] <= LIMIT
    assert row["length"] == pytest.approx(1.0, abs=1e-5)
    assert row["loss_error"] < 1e-5


def test_the_gate_has_28_layouts_and_four_refusals(parity) -> None:
    """All that the configuration takes is measured; sequence parallel without ZeRO says what it needs."""
    refused = [layout for layout in MAIN if layout.sequence_parallel > 1 and layout.zero_stage == 0]
    assert len(MAIN) - len(refused) == LAYOUTS
    for layout in refused:
        assert "zero_stage 1, 2 or 3" in parity.measure(layout, main=True)["refused"]


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({"sequence_parallel": 2}, "zero_stage"),
        ({"sequence_parallel": 2, "zero_stage": 1, "ranks": 3}, "learner.ranks"),
        ({"deepspeed": {"sequence_parallel_size": 2}}, "sequence_parallel_size"),
        ({"schedule": "cosine"}, "decay_steps"),
    ],
)
def test_impossible_settings_are_refused(changes, names) -> None:
    """The error names the key to change."""
    with pytest.raises(ValidationError, match=names):
        LearnerSection.model_validate(changes)


def test_ranks_that_do_not_divide_are_refused(world) -> None:
    """A launcher's number of ranks is known only once they have met."""
    with pytest.raises(ConfigurationError, match="do not divide"):
        world.in_sequence_groups(2)
    assert world.in_sequence_groups(1) is world


def _group(size: int) -> SequenceGroup:
    return SequenceGroup(rank=0, size=size, group=None)


def _build(path: Path, size: int) -> None:
    build_policy_model(
        path,
        lora=LoraSection(),
        adapter=None,
        device=torch.device("cpu"),
        seed=0,
        trees=False,
        sequence=_group(size),
    )


def test_heads_and_attention_that_cannot_be_shared_are_refused(base_path, tmp_path) -> None:
    """Three ranks cannot share four heads, and sliding windows are not cut at all; both errors say what to set."""
    with pytest.raises(ConfigurationError, match="4 attention heads") as refusal:
        _build(base_path, 3)
    assert "sequence_parallel" in (refusal.value.hint or "")
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 2, "num_key_value_heads": 2}
    config = MistralConfig(vocab_size=32, num_hidden_layers=1, sliding_window=4, **sizes)
    MistralForCausalLM(config).save_pretrained(tmp_path / "windowed")
    with pytest.raises(LearnerError, match="plain causal attention") as refusal:
        _build(tmp_path / "windowed", 2)
    assert "sequence_parallel" in (refusal.value.hint or "")
    LlamaForCausalLM(LlamaConfig(vocab_size=32, num_hidden_layers=1, **sizes)).save_pretrained(tmp_path / "plain")
    _build(tmp_path / "plain", 2)


def test_shards_cover_padded_rows_once() -> None:
    """Every rank has as many tokens, and what is added to a tree is seen by nothing."""
    ranks = [SequenceGroup(rank=rank, size=4, group=None) for rank in range(4)]
    padding = ranks[0].padding(13)
    assert [rank.shard(13 + padding) for rank in ranks] == [slice(at, at + 4) for at in (0, 4, 8, 12)]
    tree = (Segment(start=0, end=9, context=()), Segment(start=9, end=13, context=((0, 9),)))
    *same, added = pad_segments(tree, 13, padding)
    assert tuple(same) == tree
    assert (added.start, added.end, added.context) == (13, 16, ())
    assert pad_segments(tree, 13, 0) is tree


def test_ranks_that_share_rows_count_once() -> None:
    """Replicas, not ranks, are what samples are dealt to."""
    group = SequenceGroup(rank=1, size=2, group=None)
    world = World(rank=3, size=4, device=torch.device("cpu"), sequence=group)
    assert (world.replicas, world.replica) == (2, 1)


def test_learning_rate_rises_then_stays_or_falls_to_nothing() -> None:
    """Warm-up is linear and never 0; falling schedules end at 0 and stay there."""
    constant = LearnerSection(warmup_steps=3)
    assert [rate_factor(constant, step) for step in range(5)] == [0.25, 0.5, 0.75, 1.0, 1.0]
    linear = LearnerSection(schedule="linear", warmup_steps=1, decay_steps=4)
    assert [rate_factor(linear, step) for step in range(7)] == [0.5, 1.0, 0.75, 0.5, 0.25, 0.0, 0.0]
    cosine = LearnerSection(schedule="cosine", decay_steps=2)
    assert [rate_factor(cosine, step) for step in range(4)] == pytest.approx([1.0, 0.5, 0.0, 0.0])
