"""Full weights beside LoRA: what is trained, exported, restored and published from."""

import errno
import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from transformers import AutoModelForCausalLM

from core.errors import AdapterRejected, ConfigurationError, CorruptArtefact, StoreError, StoreFull
from core.policy import Provenance
from learner.checkpoints import PROVENANCE_FILE, ResumeStates, make_provenance, verify_folder, write_checkpoint
from learner.full_weights import folder_dtypes, load_model, score_sequences
from learner.probe import ProbeDraft, candidate_sequences, choose_probe
from learner.session import TrainingSession
from serving.weights.full_folder import check_full_folder


def test_full_training_learns_and_exports_what_an_engine_takes(
    make_trainer, make_samples, base_path, tmp_path
) -> None:
    """Loss falls, every tensor may move, and the exported folder passes the fleet's check with equal log-probs."""
    trainer, samples = make_trainer(train="full", learning_rate=1e-3), make_samples(6)
    before = trainer.trained_parameters()
    losses = [trainer.sft_update(samples).loss for _ in range(8)]
    assert losses[-1] < losses[0] - 0.1
    assert trainer.lora_rank is None
    after = trainer.trained_parameters()
    assert all(not torch.equal(before[name], after[name]) for name in before)
    trainer.export_adapter(tmp_path / "full")
    check_full_folder(tmp_path / "full", base_path=base_path)
    sequences = [sample.tokens for sample in samples]
    theirs = score_sequences(load_model(tmp_path / "full"), sequences)
    assert trainer.exports_exactly
    for ours, other in zip(trainer.logprobs(sequences), theirs, strict=True):
        assert ours == pytest.approx(other, abs=1e-5)


def test_training_goes_on_from_exported_weights(make_trainer, make_samples, tmp_path) -> None:
    """A version's folder is where the next run begins; the Base's log-probs stay the Base's."""
    trainer, samples = make_trainer(train="full", learning_rate=1e-3), make_samples(4)
    sequences = [sample.tokens for sample in samples]
    fresh = trainer.logprobs(sequences)
    trainer.sft_update(samples)
    trainer.export_adapter(tmp_path / "full")
    following = make_trainer(train="full", adapter=tmp_path / "full")
    assert following.logprobs(sequences) == trainer.logprobs(sequences) != fresh
    assert following.logprobs(sequences, base=True) == fresh
    # The Base answered only while it was asked.
    assert following.logprobs(sequences) == trainer.logprobs(sequences)
    (tmp_path / "full" / "model.safetensors").write_bytes(b"broken")
    with pytest.raises(CorruptArtefact):
        make_trainer(train="full", adapter=tmp_path / "full")


@pytest.mark.parametrize("stage", [3])
def test_a_kl_to_the_base_is_of_the_base(make_trainer, make_samples, stage) -> None:
    """Full weights with a KL term use a frozen copy of the Base: at the start the term is 0, then it is not."""
    objective = {"kl_weight": 10.0, "correction": "none"}
    samples = make_samples(5)
    runs = {}
    for name, changed in (("plain", {}), ("kl", objective)):
        trainer = make_trainer(train="full", learning_rate=1e-3, zero_stage=stage)
        trainer._config = trainer._config.model_copy(
            update={"objective": trainer._config.objective.model_copy(update={"correction": "none"} | changed)}
        )
        runs[name] = [trainer.grpo_update(samples).loss for _ in range(2)]
    assert runs["plain"][0] == pytest.approx(runs["kl"][0], rel=1e-5)
    assert runs["kl"][1] > runs["plain"][1]


@pytest.mark.parametrize("stage", [0, 3])
def test_resumed_full_training_equals_the_uninterrupted_one(make_trainer, make_samples, tmp_path, stage) -> None:
    """Weights, optimizer, learning-rate schedule and generators come back: the next losses are the very same."""
    settings = {
        "train": "full",
        "zero_stage": stage,
        "schedule": "cosine",
        "warmup_steps": 1,
        "decay_steps": 6,
        "learning_rate": 1e-3,
    }
    batches = [make_samples(5, seed=seed) for seed in range(4)]
    whole = make_trainer(**settings)
    expected = [whole.grpo_update(batch) for batch in batches]
    states = ResumeStates(tmp_path / "resume", keep=2)
    first = make_trainer(**settings)
    for batch in batches[:2]:
        first.grpo_update(batch)
    states.save(first, run_id="run_1", step=2)
    numbers = torch.rand(3)
    second = make_trainer(**settings)
    states.restore(second, states.newest(up_to_step=2))
    assert torch.equal(torch.rand(3), numbers)
    resumed = [second.grpo_update(batch) for batch in batches[2:]]
    assert [update.loss for update in resumed] == [update.loss for update in expected[2:]]
    weights = whole.trained_parameters()
    assert all(torch.equal(weights[name], value) for name, value in second.trained_parameters().items())


def test_a_state_of_another_layout_is_refused(make_trainer, tmp_path) -> None:
    """What was saved under one ZeRO stage, or of an adapter, is not loaded into another; both are named."""
    states = ResumeStates(tmp_path / "resume", keep=2)
    states.save(make_trainer(train="full", zero_stage=2), run_id="run_1", step=1)
    state = states.newest(up_to_step=1)
    for settings, names in (({"train": "full", "zero_stage": 3}, "stage 3"), ({"zero_stage": 2}, "an adapter")):
        with pytest.raises(ConfigurationError, match=names) as refusal:
            states.restore(make_trainer(**settings), state)
        assert "full weights in float32 on 1 rank, ZeRO stage 2" in refusal.value.message


def test_the_schedule_moves_the_step(make_trainer, make_samples) -> None:
    """The first step of a long warm-up moves weights by its share of the learning rate."""
    samples = make_samples(4)
    moved = []
    for warmup in (0, 9):
        trainer = make_trainer(train="full", learning_rate=1e-3, warmup_steps=warmup)
        before = trainer.trained_parameters()
        trainer.sft_update(samples)
        after = trainer.trained_parameters()
        moved.append(max(float((after[name] - before[name]).abs().max()) for name in before))
    assert moved[1] == pytest.approx(moved[0] / 10, rel=1e-2)


@pytest.mark.parametrize("stage", [0, 3])
def test_bfloat16_trains_with_a_float32_head(make_trainer, make_samples, stage) -> None:
    """Weights are bfloat16, log-probs float32 with the precision of float32, and the loss falls."""
    trainer = make_trainer(train="full", precision="bfloat16", zero_stage=stage, learning_rate=1e-3)
    samples = make_samples(6)
    losses = [trainer.sft_update(samples).loss for _ in range(10)]
    assert losses[-1] < losses[0] - 0.1
    assert not trainer.exports_exactly
    assert {parameter.dtype for parameter in trainer.trained_parameters().values()} == {torch.bfloat16}
    values = [value for row in trainer.logprobs([sample.tokens for sample in samples]) for value in row[1:]]
    # bfloat16 has 8 bits: values of size 4 and above would be multiples of 1/32.
    assert any(abs(value * 32 - round(value * 32)) > 1e-3 for value in values if value < -4)


def test_a_checkpoint_of_full_weights_has_kind_probe_and_rounding(
    make_trainer, make_samples, base_path, tmp_path
) -> None:
    """It says that it is full, verifies, and a Base of another dtype gets its own dtype back."""
    half = tmp_path / "half"
    AutoModelForCausalLM.from_pretrained(str(base_path), dtype=torch.bfloat16).save_pretrained(half)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (half / name).write_bytes((base_path / name).read_bytes())
    trainer, samples = make_trainer(train="full", learning_rate=1e-3), make_samples(10)
    trainer._base_path = half
    assert not trainer.exports_exactly
    sequences = tuple(candidate_sequences(samples, vocabulary=128, seed=0))
    draft = ProbeDraft(
        sequences=sequences,
        parent=tuple(trainer.logprobs(sequences)),
        base=tuple(trainer.logprobs(sequences, base=True)),
    )
    trainer.sft_update(samples)
    probe = choose_probe(draft, trainer.logprobs(sequences), dtype="float32")
    provenance = make_provenance(parent_version=0, config={}, seed=1, step=1, episode_ids=(), metrics={"loss": 1.0})
    written = write_checkpoint(trainer, tmp_path / "checkpoints", provenance=provenance, probe=probe)
    assert (written.kind, written.lora_rank) == ("full", None)
    verify_folder(written.path, written.checksum)
    assert Provenance.model_validate_json((written.path / PROVENANCE_FILE).read_bytes()) == provenance
    assert folder_dtypes(written.path) == {torch.bfloat16}
    check_full_folder(written.path, base_path=half)


def half_of(base_path: Path, folder: Path) -> Path:
    """The Base in bfloat16."""
    AutoModelForCausalLM.from_pretrained(str(base_path), dtype=torch.bfloat16).save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(base_path / name, folder / name)
    return folder


def test_engines_in_float32_get_what_was_trained(make_trainer, make_samples, base_path, tmp_path) -> None:
    """A 16-bit Base's version is a float32 folder then: the next run begins where this one ended, to the bit."""
    half, samples = half_of(base_path, tmp_path / "half"), make_samples(6)
    sequences = [sample.tokens for sample in samples]
    trainer = make_trainer(train="full", base=half, engine_dtype="float32", learning_rate=1e-5)
    assert trainer.exports_exactly
    trainer.sft_update(samples)
    trainer.export_adapter(tmp_path / "full")
    assert folder_dtypes(tmp_path / "full") == {torch.float32}
    assert json.loads((tmp_path / "full" / "config.json").read_text())["dtype"] == "float32"
    check_full_folder(tmp_path / "full", base_path=half, engine_dtype="float32")
    with pytest.raises(AdapterRejected, match="dtype"):
        check_full_folder(tmp_path / "full", base_path=half, engine_dtype="bfloat16")
    following = make_trainer(train="full", base=half, engine_dtype="float32", adapter=tmp_path / "full")
    assert following.logprobs(sequences) == trainer.logprobs(sequences)
    assert not make_trainer(train="full", base=half, engine_dtype="bfloat16").exports_exactly


def test_a_rounded_version_is_told_from_its_parent_as_that_is_served(
    make_trainer, make_samples, base_path, tmp_path
) -> None:
    """Where folders are rounded, the Probe's parent is the parent's folder, not what that was rounded from."""
    half, samples = half_of(base_path, tmp_path / "half"), make_samples(10)
    trainer = make_trainer(train="full", base=half, learning_rate=1e-4)
    trainer.sft_update(samples)
    trainer.export_adapter(tmp_path / "parent")
    sequences = tuple(candidate_sequences(samples, vocabulary=128, seed=0))
    trained = tuple(trainer.logprobs(sequences))
    draft = ProbeDraft(sequences=sequences, parent=trained, base=tuple(trainer.base_logprobs(sequences)))
    session = SimpleNamespace(base=SimpleNamespace(path=str(half)), version=1, _folder=tmp_path / "parent")
    found = TrainingSession._rounded(session, draft)
    assert found.parent == score_sequences(load_model(tmp_path / "parent"), sequences) != draft.parent
    session.version = 0
    assert TrainingSession._rounded(session, draft).parent == score_sequences(load_model(half), sequences)


def test_the_probe_asks_a_base_in_main_memory(make_trainer, make_samples) -> None:
    """Without a loss that needs the Base no rank loads it into its model; its log-probs are the Base's."""
    trainer, samples = make_trainer(train="full", learning_rate=1e-3), make_samples(4)
    sequences = [sample.tokens for sample in samples]
    fresh = trainer.logprobs(sequences)
    trainer.sft_update(samples)
    for ours, theirs in zip(trainer.base_logprobs(sequences), fresh, strict=True):
        assert ours == pytest.approx(theirs, abs=1e-5)
    assert trainer.model._base == []
    objective = trainer._config.objective.model_copy(update={"kl_weight": 0.1})
    trainer._config = trainer._config.model_copy(update={"objective": objective})
    assert trainer.base_logprobs(sequences) == fresh
    assert len(trainer.model._base) == 1


def test_a_rank_that_cannot_write_leaves_no_barrier_early(make_trainer, tmp_path, monkeypatch) -> None:
    """A full disk is told once DeepSpeed is through with its barriers, and to the other ranks too."""
    trainer = make_trainer(train="full", zero_stage=1)
    engine, told = trainer._engine, []

    def write(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    def with_others(failed: float) -> SimpleNamespace:
        def total(values: list[float]) -> list[float]:
            told.extend(values)
            return [values[0] + failed]

        return SimpleNamespace(rank=0, device=torch.device("cpu"), sum=total)

    monkeypatch.setattr(engine, "_world", with_others(0.0))
    with monkeypatch.context() as patched:
        patched.setattr(engine._engine.checkpoint_engine, "save", write)
        with pytest.raises(StoreFull):
            engine.save(tmp_path / "full", "state")
    assert (tmp_path / "full" / "latest").exists()
    assert told == [1.0]
    monkeypatch.setattr(engine, "_world", with_others(1.0))
    with pytest.raises(StoreError, match="another rank"):
        engine.save(tmp_path / "other", "state")
    assert told == [1.0, 0.0]


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_bfloat16_gradients_of_many_micro_batches_are_added_in_float32(make_trainer, stage) -> None:
    """Added in bfloat16, what the later of hundreds of micro-batches bring would be rounded away."""
    optimizer = make_trainer(train="full", precision="bfloat16", zero_stage=stage)._engine._engine.optimizer
    name = "grad_acc_dtype" if stage == 1 else "gradient_accumulation_dtype"
    assert getattr(optimizer, name) is torch.float32


@pytest.mark.parametrize("stage", [1, 2])
def test_resumed_bfloat16_training_equals_the_uninterrupted_one(make_trainer, make_samples, tmp_path, stage) -> None:
    """The float32 copies come back from a saved state."""
    settings = {"train": "full", "precision": "bfloat16", "zero_stage": stage, "learning_rate": 1e-3}
    batches = [make_samples(5, seed=seed) for seed in range(3)]
    whole = make_trainer(**settings)
    expected = [whole.sft_update(batch).loss for batch in batches]
    states = ResumeStates(tmp_path / "resume", keep=2)
    first = make_trainer(**settings)
    first.sft_update(batches[0])
    states.save(first, run_id="run_1", step=1)
    second = make_trainer(**settings)
    states.restore(second, states.newest(up_to_step=1))
    assert [second.sft_update(batch).loss for batch in batches[1:]] == expected[1:]
