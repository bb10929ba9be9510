"""Records the Episodes that both sides train on: prompts of Tasks, responses that the Base sampled.

``python -m bench.learner.episodes JOB.json RESULT.json``: a process of its own, whose memory goes with it.
"""

import json
import random
import sys
from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer

from bench.learner.plan import GROUP_SIZE
from learner.drafter_target import DraftTarget, TargetModel
from sandbox.domains.registry import domain_sources

_SEED = 0


def record(job: dict[str, Any]) -> list[dict[str, Any]]:
    """``groups`` × GROUP_SIZE Episodes: ``group``, ``prompt`` and ``response`` ids, ``reward`` in [0, 1]."""
    base = Path(job["base"])
    prompts = _prompts(base, count=job["groups"], tokens=job["prompt_tokens"])
    starts = [prompt for prompt in prompts for _ in range(GROUP_SIZE)]
    model = TargetModel(DraftTarget(base, None), device=torch.device("cpu"))
    texts = model.sample(starts, max_tokens=job["response_tokens"], seed=_SEED, advanced=lambda _: None)
    found = []
    for number, text in enumerate(texts):
        response = list(text.tokens[text.first_output :])
        # Any reward that differs within a group will do: the share of the response that does not repeat itself.
        reward = len(set(response)) / len(response)
        prompt = list(text.tokens[: text.first_output])
        found.append({"group": number // GROUP_SIZE, "prompt": prompt, "response": response, "reward": reward})
    return found


def _prompts(base: Path, *, count: int, tokens: int) -> list[tuple[int, ...]]:
    """Chat prompts of exactly ``tokens`` ids: a Task's text after others that stand before it as examples."""
    tokenizer = AutoTokenizer.from_pretrained(base)
    tasks = [task for source in domain_sources() for task in source.generate("train", 4 * count + 8, _SEED)]
    random.Random(_SEED).shuffle(tasks)
    prompts = []
    for number in range(count):
        text, place = "", number
        ids: list[int] = []
        while len(ids) < tokens:
            task = tasks[place % len(tasks)]
            text = "\n\n".join([*(str(message["content"]) for message in task.messages), text])
            message = [{"role": "user", "content": text}]
            rendered = tokenizer.apply_chat_template(message, tokenize=False, add_generation_prompt=True)
            ids = tokenizer.encode(str(rendered), add_special_tokens=False)
            place += count
        # The end is what makes it a chat prompt: what is too much goes from the middle.
        prompts.append((*ids[: tokens // 2], *ids[-(tokens - tokens // 2) :]))
    return prompts


def main() -> None:
    """Record one workload's Episodes."""
    job_path, result_path = sys.argv[1:3]
    Path(result_path).write_text(json.dumps(record(json.loads(Path(job_path).read_text()))))


if __name__ == "__main__":
    main()
