"""Hone's side of the learner's benchmark: ``python -m bench.learner.hone_side JOB.json RESULT.json``."""

import json
import resource
import sys
import time
from pathlib import Path
from typing import Any

import torch

from bench.learner.plan import CLIP_HIGH, CLIP_LOW, GRADIENT_CLIPPING, LORA
from core.config.learner import LearnerSection
from core.sample import TrainingSample
from learner.advantages import EPS_TRL, group_advantages
from learner.distributed import join_world, leave_world
from learner.trainer import Trainer, TrainerSpec


def train(job: dict[str, Any]) -> dict[str, Any]:
    """One step that does not count, then ``steps`` that do; seconds of each, peak memory and what was reached."""
    torch.set_num_threads(job["threads"])
    section = LearnerSection.model_validate(
        {
            "train": job["train"],
            "lora": LORA,
            "gradient_clipping": GRADIENT_CLIPPING,
            "micro_batch_tokens": job["micro_batch"],
            "objective": {"correction": "none", "dual_clip": 0.0, "clip_low": CLIP_LOW, "clip_high": CLIP_HIGH},
        }
    )
    samples = _samples(job["episodes"])
    world = join_world()
    try:
        spec = TrainerSpec(
            config=section,
            base_path=Path(job["base"]),
            adapter=Path(job["adapter"]) if job["adapter"] else None,
            learning_rate=job["learning_rate"],
            seed=0,
        )
        trainer = Trainer(spec, world=world)
        seconds = []
        for _ in range(1 + job["steps"]):
            started = time.perf_counter()
            update = trainer.grpo_update(samples)
            seconds.append(time.perf_counter() - started)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        loss = _reached(trainer, samples)
        trainer.close()
    finally:
        leave_world()
    return {
        "seconds": seconds[1:],
        "peak_mib": peak,
        "loss": loss,
        "gradient_norm": update.gradient_norm,
    }


def _samples(episodes: list[dict[str, Any]]) -> list[TrainingSample]:
    groups: dict[int, list[float]] = {}
    for episode in episodes:
        groups.setdefault(episode["group"], []).append(episode["reward"])
    advantages = {group: iter(group_advantages(rewards, eps=EPS_TRL).values) for group, rewards in groups.items()}
    return [
        TrainingSample(
            episode_id=str(number),
            group_id=str(episode["group"]),
            domain=None,
            tokens=(*episode["prompt"], *episode["response"]),
            loss_mask=(0,) * len(episode["prompt"]) + (1,) * len(episode["response"]),
            behaviour_logprobs=(0.0,) * (len(episode["prompt"]) + len(episode["response"])),
            advantages=(0.0,) * len(episode["prompt"])
            + (next(advantages[episode["group"]]),) * len(episode["response"]),
            versions=(-1,) * len(episode["prompt"]) + (1,) * len(episode["response"]),
        )
        for number, episode in enumerate(episodes)
    ]


def _reached(trainer: Trainer, samples: list[TrainingSample]) -> float:
    """The policy-gradient loss -mean(A log p) over response tokens, by the weights at the end."""
    total = count = 0.0
    for first in range(0, len(samples), 8):
        chosen = samples[first : first + 8]
        for sample, logprobs in zip(chosen, trainer.logprobs([one.tokens for one in chosen]), strict=True):
            for place, wanted in enumerate(sample.loss_mask):
                if wanted:
                    total -= sample.advantages[place] * logprobs[place]
                    count += 1
    return total / count


def main() -> None:
    """Do one job; its result goes to a file, because libraries print."""
    job_path, result_path = sys.argv[1:3]
    Path(result_path).write_text(json.dumps(train(json.loads(Path(job_path).read_text()))))


if __name__ == "__main__":
    main()
