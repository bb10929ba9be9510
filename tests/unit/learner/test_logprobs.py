"""Chunked log-probs equal the plain computation in value and gradient."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from learner.logprobs import sequence_logprobs, token_logprobs, token_logprobs_and_entropy


def inputs(tokens: int, *, dtype: torch.dtype = torch.float64, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    hidden = torch.randn(tokens, 6, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()
    weight = torch.randn(11, 6, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()
    return hidden, weight, torch.randint(0, 11, (tokens,), generator=generator)


def plain(hidden: Tensor, weight: Tensor, targets: Tensor, temperature: float = 1.0) -> Tensor:
    logits = hidden @ weight.t() / temperature
    return logits.log_softmax(-1).gather(-1, targets.unsqueeze(-1)).squeeze(-1)


@settings(max_examples=40, deadline=None)
@given(tokens=st.integers(1, 9), chunk=st.integers(1, 10), seed=st.integers(0, 999), heat=st.floats(0.3, 3))
def test_value_and_gradient_equal_the_plain_computation(tokens, chunk, seed, heat) -> None:
    """For any chunk size and temperature, values and both gradients are those of a plain log-softmax."""
    hidden, weight, targets = inputs(tokens, seed=seed)
    upstream = torch.linspace(-1, 2, tokens, dtype=torch.float64)
    chunked = token_logprobs(hidden, weight, targets, chunk_tokens=chunk, temperature=heat)
    whole = plain(hidden, weight, targets, heat)
    assert torch.allclose(chunked, whole, atol=1e-10)
    got = torch.autograd.grad(chunked, (hidden, weight), upstream)
    wanted = torch.autograd.grad(whole, (hidden, weight), upstream)
    assert all(torch.allclose(a, b, atol=1e-10) for a, b in zip(got, wanted, strict=True))


def test_gradcheck() -> None:
    """Numeric differentiation agrees with the backward pass."""
    hidden, weight, targets = inputs(5)
    assert torch.autograd.gradcheck(lambda h, w: token_logprobs(h, w, targets, chunk_tokens=2), (hidden, weight))


def test_a_frozen_head_gets_no_gradient() -> None:
    """With a head that does not train only the hidden states get a gradient, as LoRA needs."""
    hidden, weight, targets = inputs(5)
    token_logprobs(hidden, weight.detach(), targets, chunk_tokens=2).sum().backward()
    assert hidden.grad is not None
    assert weight.grad is None


@pytest.mark.parametrize("autocast", [False, True])
def test_bfloat16_states_are_reduced_in_float32(autocast) -> None:
    """16-bit inputs give the float32 result of those inputs, under autocast too, and 16-bit gradients."""
    hidden, weight, targets = inputs(7, dtype=torch.bfloat16)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        chunked = token_logprobs(hidden, weight, targets, chunk_tokens=3)
    assert chunked.dtype == torch.float32
    assert torch.allclose(chunked, plain(hidden.float(), weight.float(), targets), atol=1e-5)
    chunked.sum().backward()
    assert hidden.grad.dtype == weight.grad.dtype == torch.bfloat16


def test_extreme_logits_stay_finite() -> None:
    """Logits of a thousand overflow neither value nor gradient."""
    hidden, weight, targets = inputs(4, dtype=torch.float32)
    logprobs = token_logprobs(hidden * 1000, weight, targets, chunk_tokens=2)
    logprobs.sum().backward()
    assert torch.isfinite(logprobs).all()
    assert torch.isfinite(hidden.grad).all()


def test_entropy_equals_the_plain_computation() -> None:
    """The entropy is that of the softmax and carries no gradient."""
    hidden, weight, targets = inputs(6)
    logprobs, entropy = token_logprobs_and_entropy(hidden.view(2, 3, 6), weight, targets.view(2, 3), chunk_tokens=4)
    distribution = torch.distributions.Categorical(logits=hidden @ weight.t())
    assert torch.allclose(entropy, distribution.entropy().view(2, 3), atol=1e-10)
    assert not entropy.requires_grad
    assert torch.allclose(logprobs, plain(hidden, weight, targets).view(2, 3), atol=1e-10)


def test_sequence_logprobs_align_with_their_tokens() -> None:
    """Index t holds the log-prob of token t given those before; first, masked-out and padded tokens get 0."""
    generator = torch.Generator().manual_seed(3)
    hidden = torch.randn(2, 5, 6, generator=generator, dtype=torch.float64, requires_grad=True)
    _, weight, _ = inputs(1)
    tokens = torch.randint(0, 11, (2, 5), generator=generator)
    mask = torch.tensor([[1, 0, 1, 1, 0], [0, 1, 0, 1, 1]])
    logprobs, entropy = sequence_logprobs(hidden, weight, tokens, mask, chunk_tokens=2)
    expected = torch.nn.functional.pad(plain(hidden[:, :-1], weight, tokens[:, 1:]), (1, 0)) * mask
    assert torch.allclose(logprobs, expected, atol=1e-10)
    assert ((entropy > 0) == (expected != 0)).all()
    got = torch.autograd.grad(logprobs.square().sum(), hidden)[0]
    wanted = torch.autograd.grad(expected.square().sum(), hidden)[0]
    assert torch.allclose(got, wanted, atol=1e-10)


def test_a_micro_batch_without_loss_tokens_still_has_a_backward_pass() -> None:
    """An all-masked batch gives zeros that are part of the graph, as collective backward passes need."""
    hidden = torch.randn(2, 3, 6, requires_grad=True)
    weight = torch.randn(11, 6)
    logprobs, _ = sequence_logprobs(hidden, weight, torch.zeros(2, 3, dtype=torch.long), torch.zeros(2, 3))
    logprobs.sum().backward()
    assert not hidden.grad.any()


@pytest.mark.parametrize("bad", [{"chunk_tokens": 0}, {"temperature": 0.0}])
def test_senseless_settings_are_refused(bad) -> None:
    """A chunk of no tokens or a temperature of 0 raises ValueError."""
    hidden, weight, targets = inputs(2)
    with pytest.raises(ValueError, match="must be positive"):
        token_logprobs(hidden, weight, targets, **bad)
