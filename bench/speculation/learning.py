"""What the project's learner does for the speculation benchmark, in a process of its own that ends with its memory.

``python -m bench.speculation.learning post-train|distil JOB.json RESULT.json``: an SFT of a LoRA adapter on token
sequences, or a drafter distilled for a target.
"""

import json
import sys
import time
from pathlib import Path
from typing import Any

from core.config.learner import DrafterSection, LearnerSection
from core.sample import TrainingSample
from learner.distill import distil
from learner.distributed import join_world, leave_world
from learner.drafter_data import DistilSequence
from learner.drafter_target import DraftTarget
from learner.trainer import Trainer, TrainerSpec


def post_train(job: dict[str, Any]) -> dict[str, Any]:
    """SFT with the run's own Trainer; writes the adapter's folder."""
    section = LearnerSection.model_validate(job["learner"])
    samples = [
        TrainingSample(
            episode_id=str(number),
            group_id=None,
            domain=None,
            tokens=(*prompt, *answer),
            loss_mask=(0,) * len(prompt) + (1,) * len(answer),
            behaviour_logprobs=(0.0,) * (len(prompt) + len(answer)),
            advantages=(0.0,) * len(prompt) + (1.0,) * len(answer),
            versions=(-1,) * (len(prompt) + len(answer)),
        )
        for number, (prompt, answer) in enumerate(job["demonstrations"])
    ]
    world = join_world()
    try:
        spec = TrainerSpec(
            config=section,
            base_path=Path(job["base"]),
            adapter=None,
            learning_rate=section.sft_learning_rate,
            seed=job["seed"],
        )
        trainer = Trainer(spec, world=world)
        losses = []
        for first in range(0, len(samples), section.sft_batch):
            losses.append(trainer.sft_update(samples[first : first + section.sft_batch]).loss)
        trainer.export_adapter(Path(job["folder"]))
        trainer.close()
    finally:
        leave_world()
    return {"steps": len(losses), "first_loss": losses[0], "last_loss": losses[-1]}


def make_drafter(job: dict[str, Any]) -> dict[str, Any]:
    """Distil with the learner's ``distil``; its folder and what it measured."""
    adapter, earlier = job.get("adapter"), job.get("warm_start")
    found = distil(
        target=DraftTarget(Path(job["base"]), Path(adapter) if adapter else None),
        sequences=[DistilSequence(tuple(tokens), first) for tokens, first in job["sequences"]],
        prompts=[tuple(prompt) for prompt in job["prompts"]],
        root=Path(job["folder"]),
        options=DrafterSection.model_validate(job["drafter"]),
        seed=job["seed"],
        warm_start=Path(earlier) if earlier else None,
    )
    return {"path": str(found.path), "metrics": found.metrics}


def main() -> None:
    """Do one job; its result goes to a file, because libraries print."""
    kind, job_path, result_path = sys.argv[1:4]
    job = json.loads(Path(job_path).read_text())
    started = time.monotonic()
    result = {"post-train": post_train, "distil": make_drafter}[kind](job)
    Path(result_path).write_text(json.dumps(result | {"seconds": time.monotonic() - started}))


if __name__ == "__main__":
    main()
