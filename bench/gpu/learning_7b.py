"""Trains a base model of the 7B class on one GPU: vLLM beside ZeRO-3, one Domain, within ten minutes.

    make install ENGINE=cuda
    python -m bench.gpu.learning_7b --base /models/Qwen2.5-7B-Instruct

``--base``: a Hugging Face folder, or a hub id where the hub can be reached. The engine takes 40% of the GPU's memory
(``--engine-share``), the learner what is left: bfloat16 weights with a float32 head, a LoRA adapter, gradient
checkpointing, ZeRO-3 as on several GPUs. It needs about 80 GiB; ``--offload`` keeps parameters in main memory. Prints
held-out success before and after, and seconds and tokens of every step, as JSON into ``--output``.
"""

import argparse
import asyncio
import dataclasses
import json
import os
import tempfile
from pathlib import Path
from typing import Any

from bench.learning.plan import FULL, Plan
from bench.learning.results import compared, curve
from bench.learning.stack import LearningStack
from bench.machine import describe, hone_version
from bench.runs import say
from hone.settings import load_settings

DOMAIN = "python_tool"
PLAN: Plan = dataclasses.replace(
    FULL,
    heldout_tasks=200,
    grpo_steps=6,
    sft={"sft_batch": 8, "sft_learning_rate": 2e-4, "sft_epochs": 1},
    grpo=FULL.grpo | {"learning_rate": 1e-4, "groups_per_step": 16},
)


def arguments() -> argparse.Namespace:
    """What is trained, and with how much of the GPU."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--base", required=True, help="Hugging Face folder or hub id")
    parser.add_argument("--engine-share", type=float, default=0.4, help="share of the GPU's memory for vLLM")
    parser.add_argument("--offload", action="store_true", help="keep the learner's parameters in main memory")
    parser.add_argument("--output", type=Path, default=Path("runs/learning-7b.json"))
    return parser.parse_args()


def overrides(chosen: argparse.Namespace, folder: str) -> dict[str, Any]:
    """The configuration: everything else is as ``hone up`` has it."""
    return {
        "data_dir": folder,
        "base.name": "base-7b",
        "base.source": chosen.base,
        "engine.dtype": "bfloat16",
        "engine.max_model_len": 4096,
        "engine.gpu_memory_share": chosen.engine_share,
        "fleet.variants": ["standard"],
        "learner.zero_stage": 3,
        "learner.gradient_checkpointing": True,
        "learner.offload_parameters": chosen.offload,
        "learner.micro_batch_tokens": 8192,
    }


async def run(chosen: argparse.Namespace) -> dict[str, Any]:
    """SFT warm-up, GRPO, and both ends measured on the same held-out Tasks."""
    with tempfile.TemporaryDirectory(prefix="hone-gpu-") as folder:
        config = load_settings(Path(os.devnull), overrides=overrides(chosen, folder))
        async with LearningStack(config, say=say) as stack:
            policy = "coder"
            await stack.new_policy(policy)
            await stack.add_tasks(DOMAIN, PLAN, 0)
            warm = await stack.train(
                policy, "sft", (DOMAIN,), steps=PLAN.warmup_steps, start=0, seed=0, overrides=PLAN.sft
            )
            start = warm.steps[-1].version
            trained = await stack.train(
                policy, "grpo", (DOMAIN,), steps=PLAN.grpo_steps, start=start, seed=0, overrides=PLAN.grpo
            )
            last = trained.steps[-1].version
            evaluation = await stack.evaluate(
                policy, last, start, DOMAIN, tasks=PLAN.heldout_tasks, plan=PLAN, seed=0
            )
    return {
        "trained": compared(evaluation),
        "curve": curve(trained),
        "machine": describe(),
        "version": hone_version(),
        "base": chosen.base,
    }


def main() -> None:
    """Run, print, write."""
    chosen = arguments()
    found = asyncio.run(run(chosen))
    chosen.output.parent.mkdir(parents=True, exist_ok=True)
    chosen.output.write_text(json.dumps(found, indent=1) + "\n")
    say(json.dumps(found["trained"]))


if __name__ == "__main__":
    main()
