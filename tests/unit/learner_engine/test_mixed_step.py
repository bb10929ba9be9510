"""One step on several losses moves the weights by the weighted sum of what each loss alone would."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM

from core.config.learner_live import LossWeightsSection
from core.errors import LearnerError
from core.sample import TrainingSample
from learner.mixture import Mixture, PreferencePair, best_attempts
from learner.preference_loss import dpo_loss
from learner.trainer import Trainer, TrainerSpec

Moved = dict[str, torch.Tensor]


@pytest.fixture
def mixture(make_samples) -> Mixture:
    """Different numbers of tokens for each loss; pairs have one prompt each."""
    pairs = []
    for number in range(4):
        chosen, rejected = make_samples(2, seed=20 + number)
        prompt = chosen.loss_mask.index(1)
        pairs.append(PreferencePair(chosen=chosen, rejected=_behind(chosen.tokens[:prompt], rejected)))
    return Mixture(
        policy=tuple(make_samples(7)),
        demonstrations=tuple(make_samples(3, seed=1)),
        pairs=tuple(pairs),
        best=tuple(make_samples(2, seed=2)),
    )


def _behind(prompt: tuple[int, ...], sample: TrainingSample) -> TrainingSample:
    drop = sample.loss_mask.index(1)

    def joined(values, filling):
        return (filling,) * len(prompt) + values[drop:]

    return sample.model_copy(
        update={
            "tokens": prompt + sample.tokens[drop:],
            "loss_mask": joined(sample.loss_mask, 0),
            "behaviour_logprobs": joined(sample.behaviour_logprobs, 0.0),
            "advantages": joined(sample.advantages, 0.0),
            "versions": joined(sample.versions, -1),
        }
    )


@pytest.fixture
def moved(base_path, adapter, config, world) -> Callable[..., tuple[float, dict[str, float], Moved]]:
    """Loss, values and what one step of SGD with rate 1 moved: the gradient."""

    def step(mixture: Mixture, weights: LossWeightsSection, **changes: object):
        spec = TrainerSpec(
            config=config.model_copy(update=changes),
            base_path=base_path,
            adapter=adapter,
            learning_rate=1.0,
            seed=0,
        )
        trainer = Trainer(spec, world=world, optimizer=lambda parameters: torch.optim.SGD(parameters, lr=1.0))
        before = trainer.trained_parameters()
        update = trainer.mixed_update(mixture, weights)
        after = trainer.trained_parameters()
        trainer.close()
        return update.loss, update.values, {name: before[name] - after[name] for name in before}

    return step


WEIGHTS = {"policy": 0.7, "sft": 0.4, "dpo": 1.3, "rejection": 0.2}


@pytest.mark.parametrize("changes", [{}, {"micro_batch_tokens": 100_000}, {"layout": "padded"}, {"zero_stage": 2}])
def test_the_gradient_is_the_weighted_sum_of_the_single_ones(mixture, moved, changes) -> None:
    """Loss and gradient of the mixed step are the weighted sums, to 1e-5, whatever the packing and the ZeRO stage."""
    loss, _, mixed = moved(mixture, LossWeightsSection(**WEIGHTS), **changes)
    expected_loss, expected = 0.0, {name: torch.zeros_like(value) for name, value in mixed.items()}
    for name, weight in WEIGHTS.items():
        alone = LossWeightsSection(**dict.fromkeys(WEIGHTS, 0.0) | {name: 1.0})
        one_loss, _, one = moved(mixture, alone)
        expected_loss += weight * one_loss
        expected = {key: value + weight * one[key] for key, value in expected.items()}
    assert loss == pytest.approx(expected_loss, rel=1e-5)
    whole = torch.cat([value.flatten() for value in expected.values()]).norm()
    for name, value in expected.items():
        # Read off float32 weights: their rounding is the absolute tolerance.
        torch.testing.assert_close(mixed[name], value, rtol=1e-5, atol=max(float(whole) * 1e-5, 5e-7))


def _plain_dpo(base: Path, adapter: Path, pairs, *, beta: float, smoothing: float) -> tuple[float, Moved]:
    model = PeftModel.from_pretrained(
        AutoModelForCausalLM.from_pretrained(str(base), dtype=torch.float32), str(adapter), is_trainable=True
    )

    def answer(sample: TrainingSample) -> torch.Tensor:
        tokens = torch.tensor([sample.tokens])
        logprobs = model(input_ids=tokens).logits[0, :-1].log_softmax(-1).gather(1, tokens[0, 1:, None])[:, 0]
        return (logprobs * torch.tensor(sample.loss_mask[1:])).sum()

    losses = []
    for pair in pairs:
        with torch.no_grad(), model.disable_adapter():
            reference = [answer(pair.chosen)[None], answer(pair.rejected)[None]]
        own = [answer(pair.chosen)[None], answer(pair.rejected)[None]]
        losses.append(dpo_loss(*own, *reference, beta=beta, label_smoothing=smoothing))
    loss = torch.cat(losses).mean()
    loss.backward()
    return float(loss.detach()), {
        name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None
    }


@pytest.mark.parametrize("tokens", [64, 100_000])
def test_dpo_equals_plain_pytorch_with_the_adapter_off_as_reference(
    mixture, moved, base_path, adapter, tokens
) -> None:
    """Also where a pair's answers lie in different micro-batches; the reference is the Base."""
    weights = LossWeightsSection(policy=0.0, dpo=1.0, dpo_beta=0.3, dpo_label_smoothing=0.1)
    loss, values, gradient = moved(mixture, weights, micro_batch_tokens=tokens)
    expected_loss, expected = _plain_dpo(base_path, adapter, mixture.pairs, beta=0.3, smoothing=0.1)
    assert loss == pytest.approx(expected_loss, rel=1e-5)
    assert values["pairs"] == 4
    assert set(gradient) == set(expected)
    for name, value in expected.items():
        torch.testing.assert_close(gradient[name], value, rtol=1e-4, atol=1e-6)


def test_nothing_to_learn_from_is_an_error(mixture, moved) -> None:
    """A step in which all losses have weight 0 says so."""
    with pytest.raises(LearnerError, match="anything to learn"):
        moved(mixture, LossWeightsSection(policy=0.0))


def test_the_best_attempts_of_a_group() -> None:
    """The best above the threshold, the earlier among equals, and none where all are alike."""
    assert best_attempts([0.1, 0.9, 0.9], at_least=0.5) == (1,)
    assert best_attempts([0.1, 0.9, 0.9, 1.0], at_least=0.5, most=2) == (1, 3)
    assert best_attempts([0.1, 0.2], at_least=0.5) == ()
    assert best_attempts([1.0, 1.0], at_least=0.5) == ()
    assert best_attempts([1.0], at_least=0.5) == (0,)
