"""Losses beside Liger's, which are TRL's: the same value and gradient on random batches.

Liger 0.8.5, ``chunked_loss/grpo_loss.py``. Its function takes one advantage for each sequence and averages as TRL
does. GSPO is compared without importance weights: its token form, which is verl's, gives each token's gradient its
own weight, where Liger's gives all tokens of a sequence the mean.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from liger_kernel.chunked_loss.dpo_loss import LigerFusedLinearDPOFunction
from liger_kernel.chunked_loss.grpo_loss import LigerFusedLinearGRPOFunction
from torch import Tensor

from learner import corrections, loss, policy_losses
from learner.preference_loss import dpo_loss

BOUNDS = {"clip_low": 0.2, "clip_high": 0.28}
Loss = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


@st.composite
def batches(draw: st.DrawFn) -> tuple[Tensor, ...]:
    """new, old and reference log-probs, one advantage a row, and a mask with at least one token in each row."""
    rows, tokens = draw(st.integers(1, 5)), draw(st.integers(1, 7))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    new, old, reference = -torch.rand((3, rows, tokens), dtype=torch.float64, generator=generator) * 3
    gain = torch.randn(rows, dtype=torch.float64, generator=generator)
    mask = (torch.rand((rows, tokens), generator=generator) < 0.7).double()
    mask[:, 0] = 1
    return new, old, reference, gain, mask


def token_mean(terms: Tensor, mask: Tensor) -> Tensor:
    return loss.token_mean(terms, mask, float(mask.sum()))


def sequence_mean(terms: Tensor, mask: Tensor) -> Tensor:
    lengths = mask.sum(-1, keepdim=True).expand_as(mask)
    return loss.seq_mean_token_mean(terms, mask, sequence_tokens=lengths, global_sequences=float(len(mask)))


def constant(terms: Tensor, mask: Tensor) -> Tensor:
    return loss.seq_mean_token_sum_norm(terms, mask, constant_tokens=9, global_sequences=float(len(mask)))


def clip(new: Tensor, old: Tensor, gain: Tensor, mask: Tensor) -> Tensor:
    return loss.clip_loss(new, old, gain, mask, **BOUNDS, dual_clip=None)


def cispo(new: Tensor, old: Tensor, gain: Tensor, mask: Tensor) -> Tensor:
    return policy_losses.cispo_loss(new, old, gain, mask, cap=1.5)


def gspo(new: Tensor, old: Tensor, gain: Tensor, mask: Tensor) -> Tensor:
    return policy_losses.gspo_loss(new, old, gain, mask, corrections.row_sequences(mask), **BOUNDS)


CASES: list[tuple[str, Loss, Callable[[Tensor, Tensor], Tensor], dict[str, Any]]] = [
    ("dapo", clip, token_mean, {"loss_type": "dapo"}),
    ("grpo", clip, sequence_mean, {"loss_type": "grpo"}),
    ("dr_grpo", clip, constant, {"loss_type": "dr_grpo", "max_completion_length": 9}),
    ("cispo", cispo, token_mean, {"loss_type": "cispo", "epsilon_high": 1.5}),
    ("gspo", gspo, sequence_mean, {"loss_type": "grpo", "importance_sampling_level": "sequence"}),
]


@pytest.mark.parametrize("case", CASES, ids=[case[0] for case in CASES])
@settings(max_examples=25, deadline=None)
@given(batch=batches(), weighted=st.booleans())
def test_value_and_gradient_are_ligers(case, batch, weighted) -> None:
    """Each loss in its aggregation, with and without truncated importance weights, equals Liger's to 1e-9."""
    name, ours, aggregate, options = case
    new, old, behaviour, gain, mask = batch
    weights = corrections.mismatch_weights(old, behaviour, cap=2.0) if weighted and name != "gspo" else None
    mine, theirs = new.clone().requires_grad_(), new.clone().requires_grad_()
    terms = ours(mine, old, gain.unsqueeze(1).expand_as(new), mask)
    value = aggregate(terms if weights is None else terms * weights, mask)
    arguments = {"epsilon_low": 0.2, "epsilon_high": 0.28, "beta": 0.0, "vllm_is_ratio": weights} | options
    expected, _ = LigerFusedLinearGRPOFunction.ppo_loss_fn(
        theirs, mask, gain, mask, old_per_token_logps=old, num_items_in_batch=mask.sum(), **arguments
    )
    value.backward()
    expected.backward()
    assert value.item() == pytest.approx(expected.item(), abs=1e-9)
    assert torch.allclose(mine.grad, theirs.grad, atol=1e-9)


@settings(max_examples=25, deadline=None)
@given(batch=batches())
def test_the_kl_value_is_ligers(batch) -> None:
    """The k3 term has Liger's value; its gradient is another on purpose, the KL's own."""
    new, _, reference, gain, mask = batch
    with_kl, _ = LigerFusedLinearGRPOFunction.ppo_loss_fn(
        new, mask, gain, mask, ref_per_token_logps=reference, beta=1.0, num_items_in_batch=mask.sum()
    )
    without, _ = LigerFusedLinearGRPOFunction.ppo_loss_fn(
        new, mask, gain, mask, beta=0.0, num_items_in_batch=mask.sum()
    )
    mine = token_mean(loss.kl_k3_as_loss(new, reference, mask), mask)
    assert mine.item() == pytest.approx((with_kl - without).item(), abs=1e-9)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 2**31), st.floats(0.01, 1.0))
def test_dpo_is_ligers(seed, beta) -> None:
    """DPO's mean over pairs equals Liger's."""
    generator = torch.Generator().manual_seed(seed)
    chosen, rejected, chosen_base, rejected_base = -torch.rand((4, 6), dtype=torch.float64, generator=generator) * 40
    expected, *_ = LigerFusedLinearDPOFunction.preference_loss_fn(
        chosen,
        rejected,
        torch.zeros(12, 1),
        ref_chosen_logps=chosen_base,
        ref_rejected_logps=rejected_base,
        beta=beta,
    )
    mine = dpo_loss(chosen, rejected, chosen_base, rejected_base, beta=beta).mean()
    assert mine.item() == pytest.approx(expected.item(), abs=1e-9)
