"""TRL's side of the learner's benchmark: ``python bench/learner/trl_side.py JOB.json RESULT.json``.

Runs in an environment of its own, without Hone. TRL's GRPOTrainer trains as its users run it; only sampling is
replaced by the recorded Episodes, which both sides have alike.
"""

import json
import resource
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer


class RecordedTrainer(GRPOTrainer):  # type: ignore[misc]
    """GRPOTrainer whose Episodes are given; their rewards become advantages by TRL's own rule (group std)."""

    recorded: dict[str, torch.Tensor]

    def _generate_and_score_completions(self, inputs: Any) -> dict[str, torch.Tensor]:
        del inputs
        return {name: value.clone() for name, value in self.recorded.items()}


class Stopwatch(TrainerCallback):
    """Seconds of each optimizer step."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.norms: list[float] = []
        self._started = 0.0

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """An optimizer step's first micro-batch comes."""
        self._started = time.perf_counter()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """The optimizer has stepped."""
        self.seconds.append(time.perf_counter() - self._started)

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        """The norm that TRL tells."""
        if logs and "grad_norm" in logs:
            self.norms.append(float(logs["grad_norm"]))


def train(job: dict[str, Any]) -> dict[str, Any]:
    """As ``bench.learner.hone_side.train``."""
    torch.set_num_threads(job["threads"])
    tokenizer = AutoTokenizer.from_pretrained(job["base"])
    recorded = _tensors(job["episodes"], pad=tokenizer.pad_token_id or 0)
    rows, micro = len(job["episodes"]), job["micro_batch"]
    with tempfile.TemporaryDirectory() as folder:
        config = GRPOConfig(
            output_dir=folder,
            max_steps=1 + job["steps"],
            per_device_train_batch_size=micro,
            gradient_accumulation_steps=rows // micro,
            num_generations=job["group_size"],
            max_completion_length=job["response_tokens"],
            learning_rate=job["learning_rate"],
            lr_scheduler_type="constant",
            warmup_steps=0,
            adam_beta1=job["adamw"]["betas"][0],
            adam_beta2=job["adamw"]["betas"][1],
            adam_epsilon=job["adamw"]["eps"],
            weight_decay=job["adamw"]["weight_decay"],
            max_grad_norm=job["gradient_clipping"],
            epsilon=job["clip"][0],
            epsilon_high=job["clip"][1],
            loss_type="dapo",
            beta=0.0,
            bf16=False,
            gradient_checkpointing=False,
            use_cpu=True,
            report_to="none",
            save_strategy="no",
            logging_steps=1,
            disable_tqdm=True,
            seed=0,
        )
        watch = Stopwatch()
        trainer = RecordedTrainer(
            model=_model(job),
            reward_funcs=[_no_reward],
            args=config,
            train_dataset=Dataset.from_list([{"prompt": "recorded"}] * max(rows, 8)),
            processing_class=tokenizer,
            callbacks=[watch],
        )
        trainer.recorded = recorded
        trainer.train()
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        loss = _reached(trainer.model, recorded)
    return {
        "seconds": watch.seconds[1:],
        "peak_mib": peak,
        "loss": loss,
        "gradient_norm": watch.norms[-1] if watch.norms else None,
    }


def _model(job: dict[str, Any]) -> Any:
    base = AutoModelForCausalLM.from_pretrained(job["base"], dtype=torch.float32)
    if not job["adapter"]:
        return base
    # Both sides begin with the same adapter, so that they can be held against one another.
    return PeftModel.from_pretrained(base, job["adapter"], is_trainable=True)


def _no_reward(completions: list[Any], **_: Any) -> list[float]:
    return [0.0] * len(completions)


def _tensors(episodes: list[dict[str, Any]], *, pad: int) -> dict[str, torch.Tensor]:
    """Prompts padded on the left, responses on the right, and advantages, as TRL makes them."""
    prompt_width = max(len(episode["prompt"]) for episode in episodes)
    width = max(len(episode["response"]) for episode in episodes)
    shape = (len(episodes), prompt_width), (len(episodes), width)
    prompts, prompt_mask = torch.full(shape[0], pad), torch.zeros(shape[0], dtype=torch.long)
    responses, mask = torch.full(shape[1], pad), torch.zeros(shape[1], dtype=torch.long)
    rewards = torch.tensor([episode["reward"] for episode in episodes])
    groups = torch.tensor([episode["group"] for episode in episodes])
    advantages = torch.zeros(len(episodes))
    for row, episode in enumerate(episodes):
        prompts[row, prompt_width - len(episode["prompt"]) :] = torch.tensor(episode["prompt"])
        prompt_mask[row, prompt_width - len(episode["prompt"]) :] = 1
        responses[row, : len(episode["response"])] = torch.tensor(episode["response"])
        mask[row, : len(episode["response"])] = 1
    for group in set(groups.tolist()):
        chosen = groups == group
        advantages[chosen] = (rewards[chosen] - rewards[chosen].mean()) / (rewards[chosen].std() + 1e-4)
    return {
        "prompt_ids": prompts,
        "prompt_mask": prompt_mask,
        "completion_ids": responses,
        "completion_mask": mask,
        "advantages": advantages,
        "num_items_in_batch": mask.sum(),
    }


@torch.no_grad()
def _reached(model: Any, recorded: dict[str, torch.Tensor]) -> float:
    """The policy-gradient loss -mean(A log p) over response tokens, by the weights at the end."""
    model.eval()
    total = count = 0.0
    for first in range(0, len(recorded["prompt_ids"]), 8):
        part = {name: value[first : first + 8] for name, value in recorded.items() if value.dim()}
        ids = torch.cat([part["prompt_ids"], part["completion_ids"]], dim=1)
        mask = torch.cat([part["prompt_mask"], part["completion_mask"]], dim=1)
        width = part["completion_ids"].shape[1]
        logits = model(input_ids=ids, attention_mask=mask, logits_to_keep=width + 1).logits[:, :-1].float()
        logprobs = logits.log_softmax(-1).gather(2, part["completion_ids"].unsqueeze(2)).squeeze(2)
        wanted = part["completion_mask"]
        total -= float((part["advantages"].unsqueeze(1) * logprobs * wanted).sum())
        count += float(wanted.sum())
    return total / count


def main() -> None:
    """Do one job; its result goes to a file, because libraries print."""
    job_path, result_path = sys.argv[1:3]
    Path(result_path).write_text(json.dumps(train(json.loads(Path(job_path).read_text()))))


if __name__ == "__main__":
    main()
