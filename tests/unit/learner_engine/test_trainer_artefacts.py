"""What a Trainer leaves behind: adapters, resume states, Probes."""

import os
from pathlib import Path

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from core.errors import CorruptArtefact, LearnerError, StoreFull
from core.policy import Provenance
from learner.checkpoints import PROVENANCE_FILE, ResumeStates, make_provenance, verify_folder, write_checkpoint
from learner.probe import POSITIONS, PROMPTS, ProbeDraft, candidate_sequences, choose_probe
from learner.storage import new_folder, storage_errors
from serving.weights.adapter import check_adapter


def _draft(trainer, samples, seed=0) -> ProbeDraft:
    sequences = tuple(candidate_sequences(samples, vocabulary=128, seed=seed))
    return ProbeDraft(
        sequences=sequences,
        parent=tuple(trainer.logprobs(sequences)),
        base=tuple(trainer.logprobs(sequences, base=True)),
    )


def _mean_distance(probe, ours: str, theirs: str) -> float:
    pairs = [
        (mine, other)
        for prompt in probe.prompts
        for mine, other in zip(getattr(prompt, ours), getattr(prompt, theirs), strict=True)
    ]
    return sum(abs(mine - other) for mine, other in pairs) / len(pairs)


def test_sft_lowers_the_loss(make_trainer, make_samples) -> None:
    """Repeated SFT steps on the same demonstrations lower their loss."""
    trainer, samples = make_trainer(), make_samples(6)
    losses = [trainer.sft_update(samples).loss for _ in range(8)]
    assert losses[-1] < losses[0] - 0.1


def test_exported_adapter_loads_back_with_equal_logprobs(make_trainer, make_samples, base_path, tmp_path) -> None:
    """The fleet's check accepts the exported folder, and PEFT computes the Trainer's log-probs from it."""
    trainer, samples = make_trainer(), make_samples(4)
    trainer.sft_update(samples)
    trainer.sft_update(samples)
    trainer.export_adapter(tmp_path / "adapter")
    info = check_adapter(tmp_path / "adapter", base_path=base_path, max_rank=4)
    assert info.rank == trainer.lora_rank == 4
    names = set(load_file(tmp_path / "adapter" / "adapter_model.safetensors"))
    assert all(name.startswith("base_model.model.model.layers.") for name in names)
    base = AutoModelForCausalLM.from_pretrained(str(base_path), dtype=torch.float32)
    loaded = PeftModel.from_pretrained(base, str(tmp_path / "adapter"))
    for sample, ours in zip(samples, trainer.logprobs([sample.tokens for sample in samples]), strict=True):
        tokens = torch.tensor([sample.tokens])
        with torch.no_grad():
            theirs = loaded(input_ids=tokens).logits[0, :-1].log_softmax(-1).gather(1, tokens[0, 1:, None])[:, 0]
        assert ours[1:] == pytest.approx(theirs.tolist(), abs=1e-5)
        assert ours[0] == 0.0


def test_base_logprobs_ignore_the_adapter(make_trainer, make_samples, adapter) -> None:
    """The Base's log-probs are the same whatever adapter is in training, and a fresh adapter changes nothing."""
    sequences = [sample.tokens for sample in make_samples(3)]
    trained, fresh = make_trainer(adapter=adapter), make_trainer()
    assert trained.logprobs(sequences, base=True) == fresh.logprobs(sequences, base=True)
    assert fresh.logprobs(sequences) == fresh.logprobs(sequences, base=True)
    assert trained.logprobs(sequences) != fresh.logprobs(sequences)


@pytest.mark.parametrize("stage", [0, 2])
def test_resumed_run_equals_the_uninterrupted_one(make_trainer, make_samples, tmp_path, stage) -> None:
    """Saving after two steps and going on in a new Trainer gives the very numbers of four steps in one."""
    batches = [make_samples(5, seed=seed) for seed in range(4)]
    whole = make_trainer(zero_stage=stage)
    expected = [whole.grpo_update(batch) for batch in batches]
    weights = whole.trained_parameters()

    states = ResumeStates(tmp_path / "resume", keep=2)
    first = make_trainer(zero_stage=stage)
    for batch in batches[:2]:
        first.grpo_update(batch)
    states.save(first, run_id="run_1", step=2)
    random_numbers = torch.rand(3)
    second = make_trainer(zero_stage=stage)
    state = states.newest(up_to_step=2)
    assert state is not None
    assert state.step == 2
    states.restore(second, state)
    assert torch.equal(torch.rand(3), random_numbers)
    resumed = [second.grpo_update(batch) for batch in batches[2:]]
    assert [update.loss for update in resumed] == [update.loss for update in expected[2:]]
    assert all(torch.equal(weights[name], value) for name, value in second.trained_parameters().items())


def test_states_of_unrecorded_steps_are_passed_over_and_old_ones_removed(make_trainer, tmp_path) -> None:
    """The newest state at or before the recorded step counts; pruning keeps the newest few."""
    trainer, states = make_trainer(), ResumeStates(tmp_path / "resume", keep=2)
    assert states.newest(up_to_step=5) is None
    for step in (1, 2, 3):
        states.save(trainer, run_id="run_1", step=step)
    assert states.newest(up_to_step=2).step == 2
    states.prune()
    assert states.newest(up_to_step=1) is None
    assert states.newest(up_to_step=9).step == 3


def test_corrupt_state_is_refused(make_trainer, tmp_path) -> None:
    """A flipped byte in DeepSpeed's files, or an unreadable record, is CorruptArtefact before anything is loaded."""
    trainer, states = make_trainer(), ResumeStates(tmp_path / "resume", keep=2)
    folder = states.save(trainer, run_id="run_1", step=1)
    state = states.newest(up_to_step=1)
    file = max((path for path in folder.rglob("*.pt")), key=lambda path: path.stat().st_size)
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    with pytest.raises(CorruptArtefact, match="checksum"):
        states.restore(trainer, state)
    (folder / "resume.json").write_text("{")
    with pytest.raises(CorruptArtefact):
        states.newest(up_to_step=1)


def test_checkpoint_folder_carries_provenance_and_a_checksum(make_trainer, make_samples, tmp_path) -> None:
    """A written checkpoint verifies, names its commit and packages, and is refused once a byte has changed."""
    trainer, samples = make_trainer(), make_samples(10)
    draft = _draft(trainer, samples)
    trainer.sft_update(samples)
    provenance = make_provenance(
        parent_version=0, config={"rank": 4}, seed=1, step=1, episode_ids=("ep_1",), metrics={"loss": 1.0}
    )
    probe = choose_probe(draft, trainer.logprobs(draft.sequences), dtype="float32")
    written = write_checkpoint(trainer, tmp_path / "checkpoints", provenance=provenance, probe=probe)
    verify_folder(written.path, written.checksum)
    stored = Provenance.model_validate_json((written.path / PROVENANCE_FILE).read_bytes())
    assert stored == provenance
    assert stored.packages["deepspeed"] == "0.19.8"
    assert stored.code_commit
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == [written.id]
    (written.path / "adapter_config.json").write_text("{}")
    with pytest.raises(CorruptArtefact, match="checksum"):
        verify_folder(written.path, written.checksum)


def test_probe_tells_versions_apart(make_trainer, make_samples, adapter) -> None:
    """The chosen tokens show a distance to parent and Base that the version itself does not have."""
    trainer, samples = make_trainer(adapter=adapter, learning_rate=0.05), make_samples(12)
    draft = _draft(trainer, samples)
    for _ in range(3):
        trainer.sft_update(samples)
    probe = choose_probe(draft, trainer.logprobs(draft.sequences), dtype="float32")
    assert len(probe.prompts) == PROMPTS
    assert all(len(prompt.positions) == POSITIONS for prompt in probe.prompts)
    assert all(0 not in prompt.positions and len(prompt.token_ids) <= 24 for prompt in probe.prompts)
    assert _mean_distance(probe, "version_logprobs", "parent_logprobs") > 0.2
    assert _mean_distance(probe, "version_logprobs", "base_logprobs") > 0.2
    again = trainer.logprobs([prompt.token_ids for prompt in probe.prompts])
    for prompt, values in zip(probe.prompts, again, strict=True):
        assert [values[index] for index in prompt.positions] == pytest.approx(prompt.version_logprobs, abs=1e-5)


def test_probe_has_enough_sequences_when_samples_repeat(make_samples) -> None:
    """One distinct sample is filled up with random sequences to the full number."""
    (sample,) = make_samples(1)
    sequences = candidate_sequences([sample] * 20, vocabulary=128, seed=0)
    assert len(set(sequences)) == len(sequences) == PROMPTS


def test_broken_adapter_is_corrupt(make_trainer, adapter) -> None:
    """A truncated weights file is CorruptArtefact, not a crash of the loader."""
    weights = adapter / "adapter_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:100])
    with pytest.raises(CorruptArtefact):
        make_trainer(adapter=adapter)


def test_missing_base_is_a_learner_error(config, world, tmp_path) -> None:
    """A folder without a model is LearnerError with the folder's name."""
    from learner.policy_model import build_policy_model

    with pytest.raises(LearnerError, match="nowhere"):
        build_policy_model(tmp_path / "nowhere", lora=config.lora, adapter=None, device=torch.device("cpu"), seed=0)


def test_batch_without_loss_tokens_is_refused(make_trainer, make_samples) -> None:
    """Nothing to learn from is an error, never a division by zero."""
    (sample,) = make_samples(1)
    masked = sample.model_copy(update={"loss_mask": (0,) * len(sample.tokens)})
    with pytest.raises(LearnerError):
        make_trainer().grpo_update([masked])


def test_gradient_that_is_not_finite_stops_training_and_keeps_the_weights(make_trainer, make_samples) -> None:
    """An infinite advantage raises LearnerError before the optimizer moves a weight."""
    (sample,) = make_samples(1)
    broken = sample.model_copy(
        update={"advantages": tuple(float("inf") * inside if inside else 0.0 for inside in sample.loss_mask)}
    )
    trainer = make_trainer()
    before = trainer.trained_parameters()
    with pytest.raises(LearnerError, match="gradient"):
        trainer.grpo_update([broken])
    assert all(torch.equal(before[name], value) for name, value in trainer.trained_parameters().items())


def test_several_updates_per_batch_clip_against_the_policy_before_the_first(make_trainer, make_samples) -> None:
    """With three updates the last one sees a moved policy: its KL to the old one is not zero, some tokens clip."""
    samples = make_samples(8)
    once = make_trainer(learning_rate=0.05).grpo_update(samples)
    thrice = make_trainer(learning_rate=0.05, updates_per_batch=3).grpo_update(samples)
    assert once.values["approx_kl"] == 0.0
    assert once.values["clip_share"] == 0.0
    assert thrice.values["approx_kl"] != 0.0
    assert thrice.values["clip_share"] > 0.0


def test_full_disk_is_said_and_leaves_nothing(tmp_path: Path) -> None:
    """ENOSPC while a folder is written becomes StoreFull, and neither target nor draft is left."""
    with pytest.raises(StoreFull), new_folder(tmp_path / "target") as draft:
        (draft / "part").write_text("x")
        raise OSError(28, os.strerror(28))
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(StoreFull), storage_errors("writing", tmp_path):
        raise RuntimeError("Error while serializing: I/O error: No space left on device (os error 28)")


def test_resume_state_holds_the_adapter_and_no_base_weights(make_trainer, tmp_path) -> None:
    """The saved module state has LoRA tensors only, not even the tied head."""
    trainer = make_trainer()
    trainer.save_state(tmp_path / "state")
    (file,) = (tmp_path / "state").rglob("*model_states.pt")
    names = set(torch.load(file, weights_only=False)["module"])
    assert names
    assert all("lora_" in name for name in names)
