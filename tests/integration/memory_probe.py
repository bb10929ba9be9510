"""A process that trains a small model in one layout after the other and prints the peak memory of each, in bytes.

glibc is told to give freed tensors back (by the environment), so that peaks are those of living tensors.
"""

import gc
import json
import random
import re
import sys
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from core.config.learner import LearnerSection
from core.sample import TrainingSample
from learner.distributed import join_world
from learner.trainer import Trainer, TrainerSpec

VOCABULARY = 2048
PROMPT, SAMPLED = 64, 128


def resident(key: str) -> int:
    """Bytes by a key of /proc/self/status."""
    found = re.search(rf"{key}:\s+(\d+)", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) * 1024


def sample(number: int) -> TrainingSample:
    """One of four attempts that share a prompt."""
    prompt, own = random.Random(number // 4), random.Random(100 + number)
    tokens = [prompt.randrange(VOCABULARY) for _ in range(PROMPT)] + [
        own.randrange(VOCABULARY) for _ in range(SAMPLED)
    ]
    return TrainingSample(
        episode_id=f"ep_{number}",
        group_id=f"grp_{number // 4}",
        domain="d",
        tokens=tuple(tokens),
        loss_mask=(0,) * PROMPT + (1,) * SAMPLED,
        behaviour_logprobs=(0.0,) * PROMPT + (-7.0,) * SAMPLED,
        advantages=(0.0,) * PROMPT + (own.uniform(-1, 1),) * SAMPLED,
        versions=(-1,) * PROMPT + (0,) * SAMPLED,
    )


def peak(base: Path, changes: dict[str, object]) -> int:
    """Of two updates, above what the process had before."""
    gc.collect()
    before = resident("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")
    config = LearnerSection.model_validate(changes)
    spec = TrainerSpec(config=config, base_path=base, adapter=None, learning_rate=1e-4, seed=0)
    trainer = Trainer(spec, world=join_world())
    for _ in range(2):
        trainer.grpo_update([sample(number) for number in range(12)])
    measured = resident("VmHWM") - before
    trainer.close()
    return measured


def main() -> None:
    """Arguments: the base's folder, layouts as JSON."""
    torch.set_num_threads(1)
    base = Path(sys.argv[1])
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=VOCABULARY,
            hidden_size=256,
            intermediate_size=688,
            num_hidden_layers=6,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=4096,
            tie_word_embeddings=True,
        )
    )
    model.save_pretrained(base)
    del model
    peak(base, {"micro_batch_tokens": 64})  # what is imported and built once is not a layout's
    print(json.dumps([peak(base, changes) for changes in json.loads(sys.argv[2])]))


main()
