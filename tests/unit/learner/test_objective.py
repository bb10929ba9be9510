"""Objective: presets resolve to consistent parts, and what it reports is what its loss does."""

import pytest
import torch

from core.config.learner import ObjectiveSection
from learner.batch import TensorBatch
from learner.objective import PRESETS, Objective


def batch(advantages: list[list[float]], behaviour: list[list[float]]) -> TensorBatch:
    gain = torch.tensor(advantages)
    rows = torch.arange(gain.shape[0]).unsqueeze(1).expand(gain.shape)
    return TensorBatch(
        tokens=torch.zeros(gain.shape, dtype=torch.long),
        positions=torch.zeros(gain.shape, dtype=torch.long),
        mask=torch.ones(gain.shape),
        behaviour_logprobs=torch.tensor(behaviour),
        advantages=gain,
        sequences=rows,
        owners=rows,
        sequence_tokens=torch.full(gain.shape, float(gain.shape[1])),
        episodes=float(gain.shape[0]),
        predecessors=None,
        segments=None,
    )


@pytest.mark.parametrize("preset", sorted(PRESETS))
def test_a_preset_is_what_is_not_set(preset) -> None:
    """Empty keys take the preset's parts, a key that is set replaces its own part alone."""
    objective = Objective(ObjectiveSection(preset=preset))
    expected = PRESETS[preset]
    assert (objective.loss, objective.advantage, objective.correction) == (
        expected.loss,
        expected.advantage,
        expected.correction,
    )
    changed = Objective(ObjectiveSection(preset=preset, correction="icepop"))
    assert (changed.loss, changed.correction) == (expected.loss, "icepop")


@pytest.mark.parametrize("section", [{"preset": "clip"}, {"preset": "gspo"}, {"preset": "dppo"}, {"loss": "cispo"}])
def test_clipped_tokens_are_those_without_gradient(section) -> None:
    """What is reported as clipped is exactly what the loss gives no gradient."""
    new = torch.tensor([[-0.5, -3.0], [-0.2, -0.3], [-1.0, -1.0]], requires_grad=True)
    old = torch.tensor([[-1.0, -2.5], [-2.0, -2.0], [-1.0, -1.0]])
    given = batch([[1.0, 1.0], [1.0, 1.0], [-1.0, -1.0]], old.tolist())
    objective = Objective(ObjectiveSection(correction="none", **section))
    objective.terms(new, old, given).sum().backward()
    assert torch.equal(objective.clipped(new.detach(), old, given), new.grad == 0)
