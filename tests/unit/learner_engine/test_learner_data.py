"""How demonstrations become samples, their order, and the shuffled-reward control."""

import pytest

from core.config.learner import LearnerSection
from core.errors import ConfigurationError, TaskError
from learner.grpo_batch import shuffle_rewards
from learner.intake import Attempt
from learner.main import apply_overrides
from learner.sft_data import demonstration_samples, load_tokenizer
from learner.task_order import order_of_pass
from tests import nouns


def test_demonstration_is_learned_after_the_rendered_prompt(base_path) -> None:
    """The prompt is the template's, masked out; answer and end token are masked in."""
    tokenizer = load_tokenizer(base_path)
    task = nouns.task("w1 w2", demonstration="w3 w4")
    (sample,) = demonstration_samples([task], tokenizer)
    prompt = tokenizer.convert_tokens_to_ids(["user", "w1", "w2", "</s>", "assistant"])
    answer = tokenizer.convert_tokens_to_ids(["w3", "w4", "</s>"])
    assert list(sample.tokens) == prompt + answer
    assert list(sample.loss_mask) == [0] * len(prompt) + [1] * len(answer)
    with pytest.raises(TaskError, match="demonstration"):
        demonstration_samples([nouns.task()], tokenizer)


def test_every_pass_is_another_permutation() -> None:
    """A pass visits everything once, and the next pass in another order."""
    first, second = order_of_pass(20, seed=1, epoch=0), order_of_pass(20, seed=1, epoch=1)
    assert sorted(first) == sorted(second) == list(range(20))
    assert first != second


def test_shuffled_rewards_are_the_same_rewards() -> None:
    """The control keeps every reward of the group and the attempts' own order."""
    attempts = [Attempt(episode=nouns.episode(id=f"ep_{index}", reward=index / 8), turns=()) for index in range(8)]
    shuffled = shuffle_rewards(attempts, seed="1:0")
    assert [attempt.episode.id for attempt in shuffled] == [attempt.episode.id for attempt in attempts]
    rewards = [attempt.episode.reward for attempt in shuffled]
    assert sorted(rewards) == [index / 8 for index in range(8)]
    assert rewards != sorted(rewards)


def test_overrides_replace_keys_by_name() -> None:
    """A dotted key reaches into the section; unknown keys and bad values are ConfigurationErrors."""
    changed = apply_overrides(LearnerSection(), {"lora.rank": 4, "group_size": 2})
    assert (changed.lora.rank, changed.group_size) == (4, 2)
    with pytest.raises(ConfigurationError, match=r"learner\.temperature"):
        apply_overrides(LearnerSection(), {"temperature": 0.7})
    with pytest.raises(ConfigurationError, match=r"learner\.lora\.ranks"):
        apply_overrides(LearnerSection(), {"lora.ranks": 4})
    with pytest.raises(ConfigurationError):
        apply_overrides(LearnerSection(), {"group_size": 1})
