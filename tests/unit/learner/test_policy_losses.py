"""GSPO, CISPO, DPPO-TV, the anchored loss, corrections, critic and DPO against reference values; their invariants."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from learner import corrections, critic, loss, policy_losses
from learner.preference_loss import dpo_loss
from tests.loss_vectors import MASK, NEW, OLD, REF, ROLL, N, rows

GROUP_STD = rows([[0.707106], [-0.707106], [0.707105], [-0.707105]]).expand(4, 5)
CENTRED = rows([[0.5], [-0.5], [0.375], [-0.375]]).expand(4, 5)
SEQUENCES = corrections.row_sequences(MASK)


def sequence_mean(per_token: Tensor) -> float:
    return loss.seq_mean_token_mean(
        per_token, MASK, sequence_tokens=MASK.sum(-1, keepdim=True).expand_as(MASK), global_sequences=4
    ).item()


@pytest.mark.parametrize(("low", "high"), [(0.2, 0.2), (0.2, 0.28)])
def test_gspo_equals_the_reference(low, high) -> None:
    """GSPO gives verl's number, alone and with a k3 term of 0.04."""
    per_token = policy_losses.gspo_loss(NEW, OLD, GROUP_STD, MASK, SEQUENCES, clip_low=low, clip_high=high)
    assert sequence_mean(per_token) == pytest.approx(-0.083339, abs=2e-6)
    with_kl = per_token + 0.04 * loss.kl_k3(NEW, REF, MASK)
    assert sequence_mean(with_kl) == pytest.approx(-0.081859, abs=2e-6)


def test_gspo_of_a_split_sequence_is_that_of_the_whole() -> None:
    """With the sequence's mean handed in, its parts give the terms of the whole."""
    arguments = {"clip_low": 0.2, "clip_high": 0.2}
    whole = policy_losses.gspo_loss(NEW, OLD, GROUP_STD, MASK, SEQUENCES, **arguments)
    means = corrections.mean_by_sequence(loss.token_log_ratio(NEW, OLD, MASK), MASK, SEQUENCES)
    parts = [
        policy_losses.gspo_loss(
            *(tensor[:, part] for tensor in (NEW, OLD, GROUP_STD, MASK, SEQUENCES)), **arguments, sequence_means=means
        )
        for part in (slice(0, 2), slice(2, None))
    ]
    assert torch.allclose(torch.cat(parts, dim=1), whole, atol=1e-12)


@pytest.mark.parametrize(("floor", "expected"), [(0.0, 0.184214), (0.8, 0.169756)])
def test_cispo_equals_the_reference(floor, expected) -> None:
    """CISPO with cap 1.28, with and without a lower bound, gives the reference's token mean."""
    per_token = policy_losses.cispo_loss(NEW, OLD, GROUP_STD, MASK, cap=1.28, floor=floor)
    assert loss.token_mean(per_token, MASK, N).item() == pytest.approx(expected, abs=2e-6)


def test_cispo_gradient_equals_the_reference() -> None:
    """Every sampled token keeps a gradient, those beyond the cap too."""
    new = NEW.clone().requires_grad_()
    per_token = policy_losses.cispo_loss(new, OLD, GROUP_STD, MASK, cap=1.28)
    loss.token_mean(per_token, MASK, N).backward()
    expected = rows(
        [
            [-0.060113, -0.044533, 0, -0.069623, -0.060113],
            [0.040295, 0.057182, 0.040295, 0, 0],
            [-0.057182, -0.049217, -0.069623, -0.049217, 0],
            [0.036461, 0.057182, 0, 0, 0],
        ]
    )
    assert torch.allclose(new.grad, expected, atol=2e-6)


@pytest.mark.parametrize(("threshold", "expected"), [(0.2, -0.196066), (0.1, -0.195472)])
def test_the_anchored_loss_equals_the_reference(threshold, expected) -> None:
    """prime-rl's default loss against the engine's log-probs gives its sum over 13 tokens."""
    per_token = policy_losses.anchored_loss(
        NEW, ROLL, CENTRED, MASK, threshold_low=threshold, threshold_high=threshold
    )
    assert loss.token_mean(per_token, MASK, N).item() == pytest.approx(expected, abs=2e-6)


def test_dppo_follows_its_formula() -> None:
    """Token by token the loss is -keep A min(p / p_behaviour, C) log p, computed here without tensors."""
    threshold, cap = 0.05, 1.1
    expected = 0.0
    for row in range(4):
        for column in range(5):
            if not MASK[row, column]:
                continue
            new, old, gain = (float(values[row, column]) for values in (NEW, ROLL, CENTRED))
            moved = math.exp(new) - math.exp(old)
            if (gain > 0 and moved > threshold) or (gain <= 0 and moved < -threshold):
                continue
            expected -= gain * min(math.exp(new - old), cap) * new
    per_token = policy_losses.dppo_loss(
        NEW, ROLL, CENTRED, MASK, threshold_low=threshold, threshold_high=threshold, cap=cap
    )
    assert per_token.sum().item() == pytest.approx(expected, abs=1e-12)


def test_dppo_leaves_a_token_that_has_moved_far_enough() -> None:
    """Beyond the threshold in the advantage's direction there is no gradient, in the other direction there is."""
    old, gain, mask = rows([[-2.0, -2.0]]), rows([[1.0, -1.0]]), rows([[1, 1]])
    new = rows([[-0.1, -0.1]]).requires_grad_()
    policy_losses.dppo_loss(new, old, gain, mask, threshold_low=0.2, threshold_high=0.2).sum().backward()
    assert new.grad[0, 0] == 0 and new.grad[0, 1] > 0


def test_sequence_rejection_equals_the_reference() -> None:
    """By the sum of log-ratios in [0.5, 2], and by a mean k3 of 0.01, the rows keep 0, 3, 4 and 2 tokens."""
    for weights in (
        corrections.sequence_weights(OLD, ROLL, MASK, SEQUENCES, low=0.5, high=2.0),
        corrections.sequence_kl_weights(OLD, ROLL, MASK, SEQUENCES, limit=0.01),
    ):
        assert (weights * MASK).sum(-1).tolist() == [0, 3, 4, 2]


def test_stale_negatives_are_masked() -> None:
    """A sequence leaves the loss when its advantage is negative and it has become improbable, and only then."""
    new, old = rows([[-3.0, -3.0]] * 4), rows([[-1.0, -1.0], [-1.0, -1.0], [-2.9, -2.9], [-2.9, -2.9]])
    gain, mask = rows([[1, 1], [-1, -1], [1, 1], [-1, -1]]), torch.ones(4, 2, dtype=torch.float64)
    weights = corrections.stale_negative_weights(new, old, gain, mask, corrections.row_sequences(mask), limit=0.5)
    assert weights[:, 0].tolist() == [1, 0, 1, 1]


def test_gae_equals_the_reference() -> None:
    """Returns and whitened advantages are verl's, a token outside the mask being passed over."""
    values = rows([[0.1, 0.2, 0.3, 0.4, 0.5], [0.2, 0.1, 0, 0, 0], [0.3, 0.3, 0.2, 0.1, 0], [0, 0.4, 0, 0, 0]])
    rewards = rows([[0, 0, 0, 0, 1], [0, 0, 0, 0, 0], [0, 0, 0, 1, 0], [0, 0.25, 0, 0, 0]])
    targets = critic.generalised_advantages(rewards, values, MASK)
    reference = [0.908937, 0.946250, 0.975, 1.0]
    assert targets.returns[0, [0, 1, 3, 4]].tolist() == pytest.approx(reference, abs=2e-6)
    assert targets.returns[1, :2].tolist() == pytest.approx([0.005, 0], abs=2e-6)
    white = critic.whitened(targets.advantages, MASK)
    reference = [1.015702, 0.856976, 0.423368, 0.233467]
    assert white[0, [0, 1, 3, 4]].tolist() == pytest.approx(reference, abs=2e-6)
    mean = loss.token_mean(critic.value_loss(values + 0.05, values, targets.returns, MASK, clip=0.5), MASK, N)
    assert mean.item() == pytest.approx(0.135999, abs=2e-6)


def test_dpo_follows_its_formula() -> None:
    """Equal margins lose log 2; a wider margin loses less, as -log sigmoid(beta * margin) says."""
    zero = torch.zeros(1, dtype=torch.float64)
    assert dpo_loss(zero, zero, zero, zero).item() == pytest.approx(math.log(2))
    wide = dpo_loss(zero + 3, zero - 1, zero, zero, beta=0.5).item()
    assert wide == pytest.approx(math.log1p(math.exp(-2.0)))
    smoothed = dpo_loss(zero + 3, zero - 1, zero, zero, beta=0.5, label_smoothing=0.25).item()
    assert smoothed == pytest.approx(0.75 * math.log1p(math.exp(-2.0)) + 0.25 * math.log1p(math.exp(2.0)))


def test_the_k3_loss_has_the_gradient_of_the_kl() -> None:
    """Its value is k3, its gradient new - reference."""
    new = NEW.clone().requires_grad_()
    value = loss.kl_k3_as_loss(new, REF, MASK)
    assert torch.allclose(value, loss.kl_k3(NEW, REF, MASK))
    value.sum().backward()
    assert torch.allclose(new.grad, (NEW - REF) * MASK, atol=1e-12)


@st.composite
def batches(draw: st.DrawFn) -> tuple[Tensor, ...]:
    """new, old, behaviour, advantages and a mask with at least one 1, of any small shape."""
    shape = (draw(st.integers(1, 5)), draw(st.integers(1, 6)))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    new, old, behaviour, gain = torch.randn((4, *shape), dtype=torch.float64, generator=generator)
    mask = (torch.rand(shape, generator=generator) < draw(st.floats(0.1, 1))).double()
    mask[0, 0] = 1
    return -new.abs(), -old.abs(), -behaviour.abs(), gain, mask


def every_loss(
    new: Tensor, old: Tensor, behaviour: Tensor, gain: Tensor, mask: Tensor, sequences: Tensor
) -> list[Tensor]:
    weights = [
        corrections.sequence_weights(old, behaviour, mask, sequences, low=0.5, high=2.0),
        corrections.sequence_kl_weights(old, behaviour, mask, sequences, limit=0.1),
        corrections.stale_negative_weights(new, behaviour, gain, mask, sequences, limit=0.5),
    ]
    return [
        policy_losses.gspo_loss(new, old, gain, mask, sequences, clip_low=0.2, clip_high=0.28),
        policy_losses.cispo_loss(new, old, gain, mask, cap=5.0),
        policy_losses.dppo_loss(new, behaviour, gain, mask, threshold_low=0.2, threshold_high=0.2),
        policy_losses.anchored_loss(new, behaviour, gain, mask),
        *(
            loss.clip_loss(new, old, gain, mask, clip_low=0.2, clip_high=0.28, token_weights=weight)
            for weight in weights
        ),
    ]


def gradients(batch: tuple[Tensor, ...], sequences: Tensor) -> tuple[Tensor, Tensor]:
    """All losses summed over the batch, and the gradient of their sum with respect to new."""
    new = batch[0].clone().requires_grad_()
    total = torch.stack([value.sum() for value in every_loss(new, *batch[1:], sequences)])
    total.sum().backward()
    return total.detach(), new.grad


@settings(max_examples=40, deadline=None)
@given(batch=batches(), padding=st.integers(1, 4))
def test_padding_changes_nothing(batch, padding) -> None:
    """Wider rows, whatever stands in the padding, give the same losses and gradients."""
    sequences = corrections.row_sequences(batch[-1])
    total, gradient = gradients(batch, sequences)
    wide = [torch.nn.functional.pad(tensor, (0, padding), value=float("nan")) for tensor in batch[:-1]]
    wide.append(torch.nn.functional.pad(batch[-1], (0, padding)))
    wide_total, wide_gradient = gradients(tuple(wide), corrections.row_sequences(wide[-1]))
    assert torch.allclose(total, wide_total, atol=1e-12)
    assert torch.allclose(gradient, wide_gradient[:, : gradient.shape[1]], atol=1e-12)
    assert not wide_gradient[:, gradient.shape[1] :].any()


@settings(max_examples=40, deadline=None)
@given(batch=batches())
def test_the_layout_changes_nothing(batch) -> None:
    """Sequences as rows, or one after another in a single row, give the same losses and gradients."""
    sequences = corrections.row_sequences(batch[-1])
    total, gradient = gradients(batch, sequences)
    flat = tuple(tensor.reshape(1, -1) for tensor in batch)
    flat_total, flat_gradient = gradients(flat, sequences.reshape(1, -1))
    assert torch.allclose(total, flat_total, atol=1e-12)
    assert torch.allclose(gradient.reshape(1, -1), flat_gradient, atol=1e-12)


@settings(max_examples=40, deadline=None)
@given(batch=batches())
def test_equal_logprobs_give_the_plain_reinforce_gradient(batch) -> None:
    """With new = old = behaviour every loss has the gradient of -A log p."""
    new, _, _, gain, mask = batch
    sequences = corrections.row_sequences(mask)
    for index in range(7):
        leaf = new.clone().requires_grad_()
        every_loss(leaf, new, new, gain, mask, sequences)[index].sum().backward()
        assert torch.allclose(leaf.grad, -gain * mask, atol=1e-12)


@settings(max_examples=40, deadline=None)
@given(batch=batches())
def test_zero_advantage_gives_zero_gradient(batch) -> None:
    """Where the advantage is 0 nothing is learned, but for the anchored loss's pull to the engine's policy."""
    new, old, behaviour, gain, mask = batch
    for index, name in enumerate(("gspo", "cispo", "dppo")):
        leaf = new.clone().requires_grad_()
        losses = every_loss(leaf, old, behaviour, torch.zeros_like(gain), mask, corrections.row_sequences(mask))
        losses[index].sum().backward()
        assert not leaf.grad.any(), name
