"""One optimizer step equals plain PyTorch, in every ZeRO stage, on one rank and on two."""

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from pydantic import ValidationError

from core.config.learner import LearnerSection, ObjectiveSection
from core.sample import TrainingSample
from learner.distributed import World
from learner.trainer import Trainer, TrainerSpec

PROJECT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def reference() -> ModuleType:
    """The plain PyTorch computation."""
    spec = importlib.util.spec_from_file_location("reference_step", Path(__file__).with_name("reference_step.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _spec(base_path, adapter, config, stage: int) -> TrainerSpec:
    return TrainerSpec(
        config=config.model_copy(update={"zero_stage": stage}),
        base_path=base_path,
        adapter=adapter,
        learning_rate=1.0,
        seed=0,
    )


def _assert_equal(expected, loss: float, norm: float, difference: dict[str, torch.Tensor]) -> None:
    expected_loss, gradients = expected
    assert loss == pytest.approx(expected_loss, rel=1e-5)
    expected_norm = torch.cat([gradient.flatten() for gradient in gradients.values()]).norm()
    assert norm == pytest.approx(float(expected_norm), rel=1e-5)
    assert set(difference) == set(gradients)
    for name, gradient in gradients.items():
        # What SGD moved, read off float32 weights of size 0.1 to 1: their rounding is the absolute tolerance.
        torch.testing.assert_close(difference[name], gradient, rtol=1e-5, atol=2e-7)


def _one_step(
    spec: TrainerSpec, world: World, samples: list[TrainingSample], algorithm: str
) -> tuple[float, float, dict[str, torch.Tensor]]:
    """Loss, gradient norm, and what one step of SGD with rate 1 moved: the gradients."""
    trainer = Trainer(spec, world=world, optimizer=lambda parameters: torch.optim.SGD(parameters, lr=1.0))
    before = trainer.trained_parameters()
    update = trainer.grpo_update(samples) if algorithm == "grpo" else trainer.sft_update(samples)
    after = trainer.trained_parameters()
    trainer.close()
    return update.loss, update.gradient_norm, {name: before[name] - after[name] for name in before}


@pytest.mark.parametrize("algorithm", ["grpo", "sft"])
@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_one_rank_equals_plain_pytorch(
    reference, base_path, adapter, config, world, make_samples, algorithm, stage
) -> None:
    """Loss, gradient norm and every gradient agree with a plain loop over unpadded samples."""
    samples = make_samples(9)
    cap = config.objective.correction_high
    expected = reference.plain_gradients(base_path, adapter, samples, algorithm=algorithm, cap=cap)
    _assert_equal(expected, *_one_step(_spec(base_path, adapter, config, stage), world, samples, algorithm))


@pytest.mark.parametrize(
    "objective",
    [
        {"preset": "gspo", "clip_low": 0.2, "clip_high": 0.2, "correction": "none"},
        {"preset": "dppo", "stale_negatives": 0.1},
        {"loss": "cispo", "aggregation": "sequence_mean", "correction": "icepop"},
        {"loss": "anchored", "aggregation": "constant", "kl_weight": 0.1, "kl": "k3"},
        {"kl_weight": 0.1, "correction": "sequence_mask", "correction_high": 50.0},
    ],
)
def test_the_split_into_micro_batches_changes_no_objective(
    base_path, adapter, config, world, make_samples, objective
) -> None:
    """Two updates on a batch give the same loss and weights in one micro-batch and in many."""
    samples = make_samples(9)
    section = ObjectiveSection.model_validate(objective)
    results = []
    for tokens in (64, 100_000):
        changed = {"objective": section, "micro_batch_tokens": tokens, "updates_per_batch": 2}
        trainer = Trainer(
            _spec(base_path, adapter, config.model_copy(update=changed), 0),
            world=world,
            optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        )
        update = trainer.grpo_update(samples)
        results.append((update, trainer.trained_parameters()))
        trainer.close()
    (small, one), (large, other) = results
    assert small.loss == pytest.approx(large.loss, rel=1e-4, abs=1e-6)
    assert small.values["clip_share"] == pytest.approx(large.values["clip_share"])
    assert small.gradient_norm > 0
    for name, parameter in one.items():
        torch.testing.assert_close(parameter, other[name], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(("layout", "share"), [("flat", True), ("flat", False), ("padded", False)])
def test_layouts_equal_plain_pytorch_on_shared_prompts(
    reference, base_path, adapter, config, world, make_groups, layout, share
) -> None:
    """Groups with common prompts, and Branches with a common past, train as if each sample stood alone."""
    samples = make_groups(3, 4)
    cap = config.objective.correction_high
    expected = reference.plain_gradients(base_path, adapter, samples, algorithm="grpo", cap=cap)
    changed = config.model_copy(update={"layout": layout, "share_prefixes": share, "micro_batch_tokens": 128})
    _assert_equal(expected, *_one_step(_spec(base_path, adapter, changed, 0), world, samples, "grpo"))


@pytest.mark.parametrize(
    ("stage", "changes"),
    [
        (0, {"gradient_checkpointing": True}),
        (3, {"gradient_checkpointing": True}),
        (2, {"offload_optimizer": True}),
        (3, {"offload_optimizer": True, "offload_parameters": True}),
        (1, {"deepspeed": {"zero_optimization": {"reduce_bucket_size": 1000}}}),
    ],
)
def test_saving_memory_changes_no_gradient(
    reference, base_path, adapter, config, world, make_samples, stage, changes
) -> None:
    """Checkpointed activations, offloading and DeepSpeed's own keys give the plain loop's loss and gradients."""
    samples = make_samples(9)
    cap = config.objective.correction_high
    expected = reference.plain_gradients(base_path, adapter, samples, algorithm="grpo", cap=cap)
    _assert_equal(
        expected,
        *_one_step(_spec(base_path, adapter, config.model_copy(update=changes), stage), world, samples, "grpo"),
    )


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({"offload_optimizer": True}, "offload_optimizer"),
        ({"zero_stage": 2, "offload_parameters": True}, "offload_parameters"),
        ({"deepspeed": {"gradient_clipping": 1.0}}, "gradient_clipping"),
    ],
)
def test_impossible_layouts_are_refused(changes, names) -> None:
    """A setting that DeepSpeed would ignore or contradict is an error that names the key."""
    with pytest.raises(ValidationError, match=names):
        LearnerSection.model_validate(changes)


@pytest.mark.timeout(600)
def test_two_ranks_equal_plain_pytorch(reference, base_path, adapter, config, make_samples, tmp_path) -> None:
    """Two ranks with unequal shares give one rank's loss and gradients, and their saved state loads back exactly."""
    samples = make_samples(9)
    cases = [("grpo", 0), ("sft", 1), ("grpo", 2), ("sft", 3), ("grpo", 3)]
    specs = [(_spec(base_path, adapter, config, stage), samples, algorithm) for algorithm, stage in cases]
    torch.save(specs, tmp_path / "input.pt")
    _run_ranks(tmp_path, 2)
    results = torch.load(tmp_path / "output.pt", weights_only=False)
    for (algorithm, _), (loss, norm, values, difference, same) in zip(cases, results, strict=True):
        expected = reference.plain_gradients(
            base_path, adapter, samples, algorithm=algorithm, cap=config.objective.correction_high
        )
        _assert_equal(expected, loss, norm, difference)
        assert values["tokens"] == sum(sum(sample.loss_mask) for sample in samples)
        assert same
    for index in range(len(cases)):
        assert (tmp_path / str(index) / "exported" / "adapter_model.safetensors").stat().st_size > 0


def _run_ranks(folder: Path, size: int) -> None:
    script = Path(__file__).with_name("two_ranks_script.py")
    processes = [
        subprocess.Popen(
            [sys.executable, str(script), str(rank), str(size), str(folder)],
            env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(PROJECT), "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        for rank in range(size)
    ]
    try:
        outputs = [process.communicate(timeout=560)[0].decode() for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0] * size, "\n".join(outputs)
