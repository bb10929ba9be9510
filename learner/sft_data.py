"""Demonstrations as TrainingSamples: the one place that tokenises text, since demonstrations were never sampled."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer

from core.errors import LearnerError, TaskError, boundary
from core.sample import TrainingSample
from core.task import Task
from learner.end_of_turn import end_of_turn


def load_tokenizer(base_path: Path) -> Any:
    """The Base's tokenizer. Raises LearnerError when it is missing or has no chat template."""
    with boundary(LearnerError, f"loading the tokenizer from {base_path}"):
        tokenizer = AutoTokenizer.from_pretrained(str(base_path))
    if not tokenizer.chat_template:
        raise LearnerError(f"the tokenizer in {base_path} has no chat template, and SFT needs one")
    return tokenizer


def demonstration_samples(tasks: Sequence[Task], tokenizer: Any) -> list[TrainingSample]:
    """Opening messages through the chat template (mask 0), then the demonstration and the end token (mask 1).

    The prompt is rendered as the engine renders it, so the answer is learned where the policy will begin to
    sample. Raises TaskError for a Task without a demonstration.
    """
    end = end_of_turn(tokenizer)
    return [_sample(task, tokenizer, end) for task in tasks]


def _sample(task: Task, tokenizer: Any, end: int) -> TrainingSample:
    if task.demonstration is None:
        raise TaskError(f"Task {task.id} has no demonstration")
    prompt = tokenizer.apply_chat_template(
        list(task.messages), add_generation_prompt=True, tokenize=True, return_dict=False
    )
    answer = [*tokenizer.encode(task.demonstration, add_special_tokens=False), end]
    unknown = (0,) * len(prompt)
    return TrainingSample(
        episode_id=task.id,
        group_id=None,
        domain=task.domain,
        tokens=(*prompt, *answer),
        loss_mask=unknown + (1,) * len(answer),
        behaviour_logprobs=(0.0,) * (len(prompt) + len(answer)),
        advantages=(0.0,) * len(prompt) + (1.0,) * len(answer),
        versions=(-1,) * (len(prompt) + len(answer)),
    )
