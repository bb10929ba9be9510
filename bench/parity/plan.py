"""Which layouts the parity benchmark compares, on what model and samples."""

import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from core.config.learner import LearnerSection, LoraSection
from core.sample import TrainingSample
from learner.policy_model import build_policy_model

VOCABULARY = 96
RATE = 2.0**10
"""Of SGD: a step moves weights by so many gradients, so that rounding of the weights does not hide the gradient."""
LORA = LoraSection(rank=4, alpha=8.0)


@dataclass(frozen=True)
class Layout:
    """One way to spread one optimizer step over processes."""

    zero_stage: int
    sequence_parallel: int
    train: str
    layout: str
    """``flat`` (packed, prompts shared) or ``padded``."""
    ranks: int = 2
    objective: str = "clip"
    """A preset; ``gspo`` has ratios of whole sequences."""

    @property
    def name(self) -> str:
        """One line."""
        parts = f"zero {self.zero_stage}, sp {self.sequence_parallel}, {self.train}, {self.layout}"
        return f"{parts}, {self.ranks} ranks" + ("" if self.objective == "clip" else f", {self.objective}")

    def settings(self) -> dict[str, Any]:
        """Keys of ``learner``."""
        return {
            "zero_stage": self.zero_stage,
            "sequence_parallel": self.sequence_parallel,
            "train": self.train,
            "layout": self.layout,
            "objective": {"preset": self.objective},
            "lora": LORA.model_dump(),
            "gradient_clipping": 0.0,
            "micro_batch_tokens": 96,
        }

    def section(self) -> LearnerSection:
        """The configuration. Raises ValidationError for a layout that cannot be."""
        return LearnerSection.model_validate(self.settings())


MAIN = tuple(
    Layout(zero_stage=stage, sequence_parallel=sequence, train=train, layout=layout)
    for sequence in (1, 2)
    for stage in (0, 1, 2, 3)
    for train in ("lora", "full")
    for layout in ("flat", "padded")
)
"""Those that are not refused are the gate's."""
FURTHER = (
    *(
        Layout(zero_stage=stage, sequence_parallel=2, train=train, layout="flat", ranks=4)
        for stage in (1, 2, 3)
        for train in ("lora", "full")
    ),
    Layout(zero_stage=2, sequence_parallel=2, train="full", layout="padded", ranks=4),
    Layout(zero_stage=2, sequence_parallel=4, train="full", layout="flat", ranks=4),
    Layout(zero_stage=1, sequence_parallel=2, train="lora", layout="flat", objective="gspo"),
    Layout(zero_stage=3, sequence_parallel=2, train="full", layout="flat", objective="gspo"),
)
"""Data-parallel and sequence-parallel at once, fewer key heads than ranks, and ratios of whole sequences."""
QUICK = (MAIN[0], MAIN[-1], FURTHER[1])


def build_base(folder: Path) -> Path:
    """A random Llama of two layers, four heads and two key heads, with a tied head."""
    torch.manual_seed(7)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        tie_word_embeddings=True,
        initializer_range=0.2,
    )
    model: Any = LlamaForCausalLM(config)  # type: ignore[no-untyped-call]
    model.save_pretrained(folder)
    return folder


def build_adapter(base: Path, folder: Path) -> Path:
    """An adapter both of whose factors are random, so that both have a gradient."""
    model = build_policy_model(base, lora=LORA, adapter=None, device=torch.device("cpu"), seed=3)
    generator = torch.Generator().manual_seed(5)
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.data.copy_(torch.randn(parameter.shape, generator=generator) * 0.1)
    model.export_adapter(folder)
    return folder


def build_samples() -> list[TrainingSample]:
    """Three groups of uneven size with a prompt each, and answers of uneven length: no number divides anything."""
    generator = random.Random(11)
    samples: list[TrainingSample] = []
    for group, size in enumerate((5, 3, 3)):
        prompt = tuple(generator.randrange(VOCABULARY) for _ in range(generator.randint(5, 23)))
        for index in range(size):
            sampled = generator.randint(1, 17)
            advantage = generator.uniform(-1.5, 1.5)
            samples.append(
                TrainingSample(
                    episode_id=f"ep_{group}_{index}",
                    group_id=f"grp_{group}",
                    domain="words",
                    tokens=prompt + tuple(generator.randrange(VOCABULARY) for _ in range(sampled)),
                    loss_mask=(0,) * len(prompt) + (1,) * sampled,
                    behaviour_logprobs=(0.0,) * len(prompt)
                    + tuple(-generator.uniform(3.0, 6.0) for _ in range(sampled)),
                    advantages=(0.0,) * len(prompt) + (advantage,) * sampled,
                    versions=(-1,) * len(prompt) + (1,) * sampled,
                )
            )
    return samples
