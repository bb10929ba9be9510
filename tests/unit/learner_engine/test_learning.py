"""GRPO learns what is rewarded, and nothing from rewards that are shuffled."""

import random
from statistics import fmean

import pytest
import torch

from core.episode import Episode, EpisodeStatus, StopReason
from core.policy import PolicySpan
from core.turn import Timing, Turn
from core.variant import Variant
from learner.grpo_batch import build_batch
from learner.intake import Attempt
from learner.trainer import Trainer

STEPS = 20
GROUPS = 4
SIZE = 8
OUTPUT = 6


def _rewarded(token: int) -> bool:
    return token % 4 == 0


def _rollout(trainer: Trainer, prompt: tuple[int, ...], group: str, generator: torch.Generator) -> list[Attempt]:
    """One group sampled with the model in training; the reward is the share of tokens from a certain set."""
    tokens = torch.tensor([prompt] * SIZE)
    logprobs = []
    with torch.no_grad():
        for _ in range(OUTPUT):
            distribution = trainer.model.causal(input_ids=tokens).logits[:, -1].log_softmax(-1)
            chosen = torch.multinomial(distribution.exp(), 1, generator=generator)
            logprobs.append(distribution.gather(1, chosen))
            tokens = torch.cat([tokens, chosen], dim=1)
    scores = torch.cat(logprobs, dim=1).tolist()
    attempts = []
    for row in range(SIZE):
        output = tuple(tokens[row, len(prompt) :].tolist())
        turn = Turn(
            id=f"turn_{group}_{row}",
            episode_id=f"ep_{group}_{row}",
            index=0,
            tenant_id="ten_1",
            policy="coder",
            policy_spans=(PolicySpan(version=1),),
            variant=Variant.STANDARD,
            deployment_id="dep_1",
            prompt_ids=prompt,
            output_ids=output,
            output_logprobs=tuple(scores[row]),
            timing=Timing(started_at=0.0, total_seconds=0.1),
            request_id="req_1",
            trainable=True,
        )
        episode = Episode(
            id=turn.episode_id,
            tenant_id="ten_1",
            status=EpisodeStatus.SCORED,
            task_id="task_1",
            domain="words",
            group_id=group,
            policy="coder",
            version=1,
            purpose="train",
            trainable=True,
            stop_reason=StopReason.ANSWERED,
            turn_ids=(turn.id,),
            reward=sum(map(_rewarded, output)) / OUTPUT,
            success=False,
        )
        attempts.append(Attempt(episode=episode, turns=(turn,)))
    return attempts


@pytest.mark.parametrize("shuffled", [False, True])
def test_reward_rises_unless_rewards_are_shuffled(make_trainer, config, shuffled) -> None:
    """Over 20 steps the mean reward rises by a clear margin, and stays where it was when rewards are shuffled."""
    trainer = make_trainer(learning_rate=0.02, gradient_clipping=1.0, micro_batch_tokens=512)
    generator, prompts = torch.Generator().manual_seed(1), random.Random(2)
    rewards = []
    for step in range(STEPS):
        groups = [
            _rollout(trainer, tuple(prompts.randrange(128) for _ in range(4)), f"grp_{step}_{index}", generator)
            for index in range(GROUPS)
        ]
        batch = build_batch(groups, config=config, line=(0, 1), shuffle_seed=str(step) if shuffled else None)
        rewards.append(batch.reward_mean)
        update = trainer.grpo_update(batch.samples)
        # Sampler and learner are the same model: their log-probs agree.
        assert update.values["mismatch_kl"] < 1e-6
    gain = fmean(rewards[-5:]) - fmean(rewards[:5])
    if shuffled:
        assert abs(gain) < 0.1
    else:
        assert gain > 0.25
