"""Losses, gradients, corrections and statistics against values of verl and TRL; and their invariants."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from core.errors import LearnerError
from learner import corrections, loss
from tests.loss_vectors import MASK, NEW, OLD, REF, ROLL, N, rows

ADVANTAGES = rows([[0.707106], [-0.707106], [0.707105], [-0.707105]]).expand(4, 5)
SYMMETRIC = {"clip_low": 0.2, "clip_high": 0.2}
HIGHER = {"clip_low": 0.2, "clip_high": 0.28}
CLIPS = {"symmetric": SYMMETRIC, "higher": HIGHER}

AGGREGATIONS = {
    "token-mean": lambda x: loss.token_mean(x, MASK, N),
    "seq-mean-token-mean": lambda x: loss.seq_mean_token_mean(
        x, MASK, sequence_tokens=MASK.sum(-1, keepdim=True).expand_as(MASK), global_sequences=4
    ),
    "seq-mean-token-sum": lambda x: loss.seq_mean_token_sum(x, MASK, global_sequences=4),
    "sum-norm": lambda x: loss.seq_mean_token_sum_norm(x, MASK, constant_tokens=5, global_sequences=4),
}


@pytest.mark.parametrize(
    ("clip", "aggregation", "expected"),
    [
        ("symmetric", "token-mean", -0.206011),
        ("symmetric", "seq-mean-token-mean", -0.046512),
        ("symmetric", "seq-mean-token-sum", -0.669536),
        ("symmetric", "sum-norm", -0.133907),
        ("higher", "token-mean", -0.214714),
        ("higher", "seq-mean-token-mean", -0.053583),
        ("higher", "sum-norm", -0.139564),
    ],
)
def test_clip_loss_equals_the_reference(clip, aggregation, expected) -> None:
    """The clip loss with dual clip 3 gives verl's number in each aggregation."""
    per_token = loss.clip_loss(NEW, OLD, ADVANTAGES, MASK, **CLIPS[clip], dual_clip=3.0)
    assert AGGREGATIONS[aggregation](per_token).item() == pytest.approx(expected, abs=2e-6)


def test_clip_loss_gradient_equals_the_reference() -> None:
    """The gradient of the token mean with clip-higher is verl's, and 0 on clipped and masked tokens."""
    new = NEW.clone().requires_grad_()
    loss.token_mean(loss.clip_loss(new, OLD, ADVANTAGES, MASK, **HIGHER), MASK, N).backward()
    expected = rows(
        [
            [-0.060113, -0.044533, 0, 0, -0.060113],
            [0, 0.057182, 0, 0, 0],
            [-0.057182, -0.049217, 0, -0.049217, 0],
            [0, 0.057182, 0, 0, 0],
        ]
    )
    assert torch.allclose(new.grad, expected, atol=2e-6)


def test_dual_clip_bounds_a_negative_token() -> None:
    """Ratios 2, 2, 0.5 with advantages 2, -2, 2, clip 0.2 and dual clip 1.5 lose -2.4, 3 and -1 (slime)."""
    ratio, gain = rows([[2, 2, 0.5]]), rows([[2, -2, 2]])
    arguments = (ratio.log(), torch.zeros(1, 3), gain, torch.ones(1, 3))
    assert loss.clip_loss(*arguments, **SYMMETRIC, dual_clip=1.5).tolist()[0] == pytest.approx([-2.4, 3, -1])
    assert loss.clip_loss(*arguments, **SYMMETRIC, dual_clip=None).tolist()[0] == pytest.approx([-2.4, 4, -1])


def test_truncated_importance_weights_equal_the_reference() -> None:
    """TIS with cap 2 gives verl's weights and loss."""
    weights = corrections.mismatch_weights(OLD, ROLL, cap=2.0)
    assert weights[0, [0, 1, 3, 4]].tolist() == pytest.approx([1.051271, 1.051271, 0.904837, 2.0], abs=2e-6)
    per_token = loss.clip_loss(NEW, OLD, ADVANTAGES, MASK, **SYMMETRIC, token_weights=weights)
    assert loss.token_mean(per_token, MASK, N).item() == pytest.approx(-0.260653, abs=2e-6)


def test_icepop_equals_the_reference() -> None:
    """IcePop in [0.5, 2] drops row 0's last token, keeps the denominator, and gives verl's loss."""
    weights = corrections.icepop_weights(OLD, ROLL, low=0.5, high=2.0)
    assert (weights[MASK.bool()] == 0).sum() == 1
    assert weights[0, 4] == 0
    per_token = loss.clip_loss(NEW, OLD, ADVANTAGES, MASK, **SYMMETRIC, token_weights=weights)
    assert loss.token_mean(per_token, MASK, N).item() == pytest.approx(-0.140426, abs=2e-6)


@pytest.mark.parametrize(
    ("estimate", "expected"), [(loss.kl_k1, 0.003846), (loss.kl_k2, 0.040096), (loss.kl_k3, 0.039009)]
)
def test_kl_estimators_equal_the_reference(estimate, expected) -> None:
    """k1, k2 and k3 as token means give verl's numbers."""
    assert loss.token_mean(estimate(NEW, REF, MASK), MASK, N).item() == pytest.approx(expected, abs=2e-6)


def statistics(rows_slice: slice = slice(None)) -> loss.LossStatistics:
    return statistics_of(*(tensor[rows_slice] for tensor in (NEW, OLD, ROLL, ADVANTAGES, MASK)))


def statistics_of(new: Tensor, old: Tensor, roll: Tensor, gain: Tensor, mask: Tensor) -> loss.LossStatistics:
    clipped = loss.clipped_tokens(new, old, gain, mask, **HIGHER)
    return loss.loss_statistics(new, old, roll, mask, clipped=clipped)


def test_statistics_equal_the_reference() -> None:
    """Clip share and approximate KL are verl's; mismatch KL and ESS follow their formulas."""
    result = statistics()
    assert result.tokens == N
    assert result.clip_share == pytest.approx(0.384615, abs=2e-6)
    assert result.approx_kl == pytest.approx(0.026923, abs=2e-6)
    ratio = (OLD - ROLL)[MASK.bool()].exp()
    assert result.mismatch_kl == pytest.approx((ratio - 1 - ratio.log()).mean().item())
    assert result.ess == pytest.approx((ratio.sum() ** 2 / ratio.square().sum() / N).item())


def test_statistics_of_micro_batches_add_up() -> None:
    """Adding the statistics of the parts gives those of the whole."""
    parts = statistics(slice(0, 1)) + statistics(slice(1, 4))
    assert parts.values() == pytest.approx(statistics().values())


def test_statistics_of_nothing_are_calm() -> None:
    """Without tokens no share divides by zero and the effective sample size raises no alarm."""
    assert loss.LossStatistics().values() == {
        "tokens": 0,
        "clip_share": 0,
        "approx_kl": 0,
        "mismatch_kl": 0,
        "ess": 1,
    }


def test_sft_loss_is_the_negative_log_likelihood() -> None:
    """The token mean of the SFT loss is minus the mean log-prob of the sampled tokens."""
    mean = loss.token_mean(loss.sft_loss(NEW, MASK), MASK, N)
    assert mean.item() == pytest.approx(-NEW[MASK.bool()].mean().item())


@pytest.mark.parametrize("count", [0, -1])
def test_an_empty_batch_has_no_loss(count) -> None:
    """A global count below 1 raises LearnerError instead of giving NaN or infinity."""
    with pytest.raises(LearnerError):
        loss.token_mean(NEW, MASK, count)


def test_equal_logprobs_give_the_plain_reinforce_gradient() -> None:
    """With new = old = behaviour the gradient is that of -A log p, weights included."""
    clipped, plain = NEW.clone().requires_grad_(), NEW.clone().requires_grad_()
    weights = corrections.mismatch_weights(NEW, NEW, cap=2.0)
    per_token = loss.clip_loss(clipped, NEW, ADVANTAGES, MASK, **HIGHER, token_weights=weights)
    loss.token_mean(per_token, MASK, N).backward()
    loss.token_mean(-ADVANTAGES * plain, MASK, N).backward()
    assert torch.allclose(clipped.grad, plain.grad, atol=1e-12)


@pytest.mark.parametrize("dual_clip", [None, 3.0])
def test_zero_advantage_gives_zero_gradient(dual_clip) -> None:
    """Where the advantage is 0 nothing is learned."""
    new = NEW.clone().requires_grad_()
    zero = torch.zeros_like(NEW)
    loss.clip_loss(new, OLD, zero, MASK, **HIGHER, dual_clip=dual_clip).sum().backward()
    assert not new.grad.any()


def test_weights_carry_no_gradient() -> None:
    """The mismatch correction scales the loss and is not itself optimised."""
    old = OLD.clone().requires_grad_()
    assert not corrections.mismatch_weights(old, ROLL, cap=2.0).requires_grad
    assert not corrections.icepop_weights(old, ROLL).requires_grad
    weights = torch.ones_like(NEW, requires_grad=True)
    assert not loss.clip_loss(NEW, OLD, ADVANTAGES, MASK, **HIGHER, token_weights=weights).requires_grad


@pytest.mark.parametrize("value", [float("nan"), float("-inf"), 1e30])
def test_what_is_masked_out_never_matters(value) -> None:
    """Any value under a 0 of the mask, even NaN, leaves loss, gradient and statistics unchanged."""
    out = MASK == 0
    new = NEW.masked_fill(out, value).requires_grad_()
    old, roll, gain = (tensor.masked_fill(out, value) for tensor in (OLD, ROLL, ADVANTAGES))
    weights = corrections.mismatch_weights(old, roll, cap=2.0)
    total = loss.token_mean(loss.clip_loss(new, old, gain, MASK, **SYMMETRIC, token_weights=weights), MASK, N)
    total.backward()
    assert total.item() == pytest.approx(-0.260653, abs=2e-6)
    assert torch.isfinite(new.grad).all()
    assert not new.grad[out].any()
    assert statistics_of(new, old, roll, gain, MASK).values() == pytest.approx(statistics().values())


@st.composite
def batches(draw: st.DrawFn) -> tuple[Tensor, ...]:
    """new, old, behaviour, advantages and a mask with at least one 1, of any small shape."""
    shape = (draw(st.integers(1, 5)), draw(st.integers(1, 6)))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    new, old, behaviour, gain = torch.randn((4, *shape), dtype=torch.float64, generator=generator)
    mask = (torch.rand(shape, generator=generator) < draw(st.floats(0.1, 1))).double()
    mask[0, 0] = 1
    return new, old, behaviour, gain, mask


def every_loss(batch: tuple[Tensor, ...], totals: tuple[Tensor, Tensor, float]) -> tuple[Tensor, Tensor]:
    """All losses in all aggregations, and the gradient of their sum with respect to new."""
    new, old, behaviour, gain, mask = batch
    sequence_tokens, tokens, sequences = totals
    new = new.clone().requires_grad_()
    truncated = corrections.mismatch_weights(old, behaviour, cap=2.0)
    kinds = [
        loss.clip_loss(new, old, gain, mask, **HIGHER, token_weights=truncated),
        loss.clip_loss(new, old, gain, mask, **HIGHER, token_weights=corrections.icepop_weights(old, behaviour)),
        loss.sft_loss(new, mask),
        loss.kl_k2(new, behaviour, mask),
        loss.kl_k3(new, behaviour, mask),
        loss.kl_k3_as_loss(new, behaviour, mask),
    ]
    values = torch.stack(
        [
            value
            for kind in kinds
            for value in (
                loss.token_mean(kind, mask, float(tokens)),
                loss.seq_mean_token_mean(kind, mask, sequence_tokens=sequence_tokens, global_sequences=sequences),
                loss.seq_mean_token_sum_norm(kind, mask, constant_tokens=7, global_sequences=sequences),
            )
        ]
    )
    values.sum().backward()
    return values.detach(), new.grad


def totals_of(batch: tuple[Tensor, ...]) -> tuple[Tensor, Tensor, float]:
    mask = batch[-1]
    return mask.sum(-1, keepdim=True).expand_as(mask), mask.sum(), float(len(mask))


@settings(max_examples=40, deadline=None)
@given(batch=batches(), padding=st.integers(1, 4))
def test_padding_width_changes_nothing(batch, padding) -> None:
    """Wider rows give the same losses and gradients."""
    wide = tuple(torch.nn.functional.pad(tensor, (0, padding)) for tensor in batch)
    values, gradient = every_loss(batch, totals_of(batch))
    wide_values, wide_gradient = every_loss(wide, totals_of(wide))
    assert torch.allclose(values, wide_values, atol=1e-12)
    assert torch.allclose(gradient, wide_gradient[:, : gradient.shape[1]], atol=1e-12)
    assert not wide_gradient[:, gradient.shape[1] :].any()


@settings(max_examples=40, deadline=None)
@given(batch=batches(), data=st.data())
def test_the_split_into_micro_batches_changes_nothing(batch, data) -> None:
    """With global counts the losses and gradients of the parts add up to those of the whole."""
    cut = data.draw(st.integers(0, len(batch[0])))
    sequence_tokens, tokens, sequences = totals_of(batch)
    values, gradient = every_loss(batch, (sequence_tokens, tokens, sequences))
    parts = [
        every_loss(tuple(tensor[part] for tensor in batch), (sequence_tokens[part], tokens, sequences))
        for part in (slice(0, cut), slice(cut, None))
    ]
    assert torch.allclose(values, parts[0][0] + parts[1][0], atol=1e-10)
    assert torch.allclose(gradient, torch.cat([parts[0][1], parts[1][1]]), atol=1e-12)


@settings(max_examples=40, deadline=None)
@given(batch=batches(), data=st.data())
def test_row_order_changes_nothing(batch, data) -> None:
    """Rows in another order give the same losses, and gradients in that order."""
    order = list(data.draw(st.permutations(range(len(batch[0])))))
    values, gradient = every_loss(batch, totals_of(batch))
    moved = tuple(tensor[order] for tensor in batch)
    moved_values, moved_gradient = every_loss(moved, totals_of(moved))
    assert torch.allclose(values, moved_values, atol=1e-10)
    assert torch.allclose(gradient[order], moved_gradient, atol=1e-12)


@settings(max_examples=40, deadline=None)
@given(batch=batches())
def test_masked_out_equals_absent(batch) -> None:
    """A row of only the sampled tokens has the same loss as the row with masked-out tokens between them."""
    values, gradient = every_loss(batch, totals_of(batch))
    inside = batch[-1].bool()
    flat = tuple(tensor[inside].unsqueeze(1) for tensor in batch)
    sequence_tokens, tokens, sequences = totals_of(batch)
    flat_values, flat_gradient = every_loss(flat, (sequence_tokens[inside].unsqueeze(1), tokens, sequences))
    assert torch.allclose(values, flat_values, atol=1e-10)
    assert torch.allclose(gradient[inside], flat_gradient[:, 0], atol=1e-12)


@settings(max_examples=40, deadline=None)
@given(batch=batches())
def test_effective_sample_size_is_a_share(batch) -> None:
    """ESS lies in (0, 1] and neither KL estimate of the k3 kind is negative."""
    new, old, behaviour, gain, mask = batch
    result = statistics_of(new, old, behaviour, gain, mask)
    assert 0 < result.ess <= 1 + 1e-12
    assert result.mismatch_kl >= 0
