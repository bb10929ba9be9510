"""What ``hone train --dry-run`` says, and which layouts it refuses."""

import io
import json
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from core.config.learner import LearnerSection
from core.errors import LearnerError
from core.policy import Base, Policy
from core.run import StepMetrics, TrainingRun
from core.task import Domain
from hone.dry_run import Device, Forecast, check_layout, forecast, forecast_table
from learner.estimate.memory import estimate_memory
from learner.estimate.model_shape import ModelShape, read_model_shape
from learner.estimate.speed import gpu_flops, step_work
from tests import nouns

HIDDEN, INNER, LAYERS, VOCABULARY = 64, 128, 3, 500
GPU = Device(kind="cuda", name="NVIDIA H100 80GB HBM3", total=80 << 30, count=2)
CPU = Device(kind="cpu", name="main memory, 2 cores", total=8 << 30)


def write_base(folder, **changes):
    """A base model's folder with headers and configuration, and no numbers at all."""
    names = {"q_proj": (HIDDEN, HIDDEN), "k_proj": (32, HIDDEN), "v_proj": (32, HIDDEN), "o_proj": (HIDDEN, HIDDEN)}
    names |= {"gate_proj": (INNER, HIDDEN), "up_proj": (INNER, HIDDEN), "down_proj": (HIDDEN, INNER)}
    shapes = {
        f"model.layers.{layer}.x.{name}.weight": shape for layer in range(LAYERS) for name, shape in names.items()
    }
    shapes["model.embed_tokens.weight"] = (VOCABULARY, HIDDEN)
    shapes["model.norm.weight"] = (HIDDEN,)
    header = {name: {"dtype": "F32", "shape": shape, "data_offsets": [0, 0]} for name, shape in shapes.items()}
    raw = json.dumps({"__metadata__": {"format": "pt"}, **header}).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(raw)) + raw)
    config = {
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "hidden_size": HIDDEN,
        "intermediate_size": INNER,
        "num_hidden_layers": LAYERS,
        "vocab_size": VOCABULARY,
        "max_position_embeddings": 2048,
    }
    (folder / "config.json").write_text(json.dumps(config | changes))
    return folder


@pytest.fixture(scope="module")
def shape(tmp_path_factory) -> ModelShape:
    """The shape of a small model."""
    return read_model_shape(write_base(tmp_path_factory.mktemp("base")))


def found(shape: ModelShape, config: LearnerSection, device: Device = CPU, longest: int = 100) -> Forecast:
    """A forecast without a store."""
    return Forecast(
        shape=shape,
        device=device,
        memory=estimate_memory(shape, config, ranks=config.ranks, device=device.kind, longest_sample=longest),
        work=step_work(shape, config, prompt=50, response=50),
        train_seconds=1.0,
        wait_seconds=None,
        basis="made up",
        longest=longest,
    )


def test_parameters_are_counted_from_headers(shape) -> None:
    """All weights, and an adapter's two factors on every named layer."""
    per_layer = 2 * HIDDEN * HIDDEN + 2 * 32 * HIDDEN + 3 * HIDDEN * INNER
    assert shape.parameters == LAYERS * per_layer + VOCABULARY * HIDDEN + HIDDEN
    assert shape.embedding_parameters == VOCABULARY * HIDDEN
    assert shape.lora_parameters(4, ("q_proj", "down_proj")) == LAYERS * 4 * (2 * HIDDEN + HIDDEN + INNER)
    assert shape.missing_modules(("q_proj", "c_attn")) == ["c_attn"]


def test_a_folder_that_is_no_model_is_an_error(tmp_path) -> None:
    """Without a configuration, without weights, and with a broken header: LearnerError, no traceback."""
    with pytest.raises(LearnerError, match="cannot be measured"):
        read_model_shape(tmp_path)
    write_base(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"\xff" * 16)
    with pytest.raises(LearnerError, match="cannot be measured"):
        read_model_shape(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(LearnerError, match="no safetensors"):
        read_model_shape(tmp_path)


@given(
    train=st.sampled_from(["lora", "full"]),
    stage=st.integers(0, 3),
    ranks=st.integers(1, 8),
    tokens=st.integers(64, 100_000),
)
def test_memory_falls_with_sharding_checkpointing_and_offload(shape, train, stage, ranks, tokens) -> None:
    """More ZeRO never needs more of what it shards; checkpointing, offload and smaller batches never need more."""

    def of(**changes):
        values = {"train": train, "zero_stage": stage, "micro_batch_tokens": tokens} | changes
        return estimate_memory(shape, LearnerSection.model_validate(values), ranks=ranks, device="cuda")

    plain = of()
    assert of(gradient_checkpointing=True).activations <= plain.activations
    assert of(micro_batch_tokens=64).total <= plain.total
    if stage >= 1:
        assert plain.optimizer <= of(zero_stage=0).optimizer or ranks == 1
        away = of(offload_optimizer=True)
        assert away.total <= plain.total
        assert away.host == plain.host + plain.optimizer
    if stage == 3 and ranks > 1:
        assert plain.weights < of(zero_stage=2).weights
    assert min(vars(plain).values()) >= 0
    # The Probe of full weights asks a Base beside them; a loss that asks it needs it on the device.
    assert plain.base_copy == 0
    assert (plain.host > 0) is (train == "full")
    assert (of(objective={"kl_weight": 0.1}).base_copy > 0) is (train == "full")


@pytest.mark.parametrize(
    ("changes", "device", "longest", "message"),
    [
        ({"lora": {"target_modules": ["c_attn"]}}, CPU, 100, "no linear layer called c_attn"),
        ({"sequence_parallel": 3, "ranks": 3, "zero_stage": 1}, CPU, 100, "does not divide the 4 attention heads"),
        ({"ranks": 64, "groups_per_step": 4}, CPU, 100, "fewer attempts"),
        ({"ranks": 4}, GPU, 100, "this machine has 2 GPU"),
        ({}, CPU, 4000, "the model's context is 2048"),
        ({"micro_batch_tokens": 9_000_000}, CPU, 100, "there are 8.00 GiB"),
    ],
)
def test_impossible_layouts_are_refused_with_what_to_change(shape, changes, device, longest, message) -> None:
    """Each has its own words and a hint."""
    config = LearnerSection.model_validate(changes)
    with pytest.raises(LearnerError, match=message) as caught:
        check_layout(found(shape, config, device, longest), config)
    assert caught.value.hint


def test_what_does_not_fit_says_every_way_out(shape) -> None:
    """Keys that would need less memory are named, with values."""
    config = LearnerSection(micro_batch_tokens=900_000, train="full", zero_stage=1, ranks=2)
    with pytest.raises(LearnerError) as caught:
        check_layout(found(shape, config, GPU), config, size=1 << 30)
    for key in ("gradient_checkpointing", "micro_batch_tokens down to 100", "zero_stage = 3", "offload", "lora"):
        assert key in (caught.value.hint or "")


def test_work_counts_shared_prompts_once_and_recomputation(shape) -> None:
    """A shared prompt goes through the model once a group; full weights and checkpointing cost a pass each."""
    shared = step_work(shape, LearnerSection(), prompt=100, response=10)
    alone = step_work(shape, LearnerSection(share_prefixes=False), prompt=100, response=10)
    assert (shared.tokens, alone.tokens) == (4 * 100 + 32 * 10, 32 * 110)
    full = step_work(shape, LearnerSection(train="full"), prompt=100, response=10)
    again = step_work(shape, LearnerSection(gradient_checkpointing=True), prompt=100, response=10)
    assert full.flops == pytest.approx(1.5 * shared.flops)
    assert again.flops == pytest.approx(1.5 * shared.flops)


def test_known_gpus_have_a_speed_and_others_none() -> None:
    """An unknown device gives no time rather than a wrong one."""
    assert (gpu_flops("NVIDIA H200") or 0) > 1e14
    assert gpu_flops("Strange Device 3000") is None


async def test_forecast_takes_times_from_a_run_before(fresh_sqlite_url, open_store, tmp_path) -> None:
    """The newest run with the same settings says how long steps take; Tasks say how long conversations get."""
    store = await open_store(fresh_sqlite_url)
    write_base(tmp_path)
    values = {"train_seconds": 4.0, "generate_seconds": 6.0}
    config = LearnerSection()
    async with store.transaction() as work:
        await work.bases.put(Base(name="tiny", path=str(tmp_path), fingerprint="f"))
        await work.policies.add(Policy(name="coder", base="tiny"))
        await work.domains.put(Domain(name="sums", kind="text", description="sums"))
        await work.tasks.add_many([nouns.task("one two", domain="sums", split="train")])
        await work.runs.put(
            TrainingRun(
                id="run_1",
                policy="coder",
                algorithm="grpo",
                start_version=0,
                domains=("sums",),
                planned_steps=1,
                seed=0,
                config=config.model_dump(mode="json"),
                steps=(StepMetrics(step=1, version=1, loss=0.0, gradient_norm=0.0, values=values),),
            )
        )
    device = Device(kind="cuda", name="Strange Device 3000", total=8 << 30)
    known = await forecast(store, config, policy="coder", domains=("sums",), device=device)
    assert (known.train_seconds, known.wait_seconds) == (4.0, 6.0)
    other = LearnerSection(group_size=2)
    unknown = await forecast(store, other, policy="coder", domains=("sums",), device=device)
    assert (unknown.train_seconds, unknown.wait_seconds) == (None, None)
    screen = Console(width=120, record=True, file=io.StringIO())
    screen.print(forecast_table(known, config, steps=30))
    text = screen.export_text()
    assert "Strange Device 3000" in text
    assert "5 min" in text
    with pytest.raises(LearnerError, match="no Task"):
        await forecast(store, config, policy="coder", domains=("none",), device=device)
