"""The benchmark's section of the document."""

from typing import Any

from bench.report import checks_table, table

NAME = "bench-learner"

_INTRODUCTION = """## Learner beside TRL

`make bench-learner` writes this section and `bench/results/learner.json`; `make bench-learner-quick` tries every part
shortly and writes neither.

- Both sides train SmolLM2-135M-Instruct in float32 on the same CPU, with two threads, from the same weights and the
  same fresh adapter (rank {rank}, all linear layers), on the same recorded Episodes (sampled by the Base, groups of
  {group_size}), by the same loss (clip {clip_low} / {clip_high}, token mean, no KL), advantages, AdamW and gradient
  clipping. Sampling is left out of both.
- TRL's `GRPOTrainer` {trl} runs as its users run it, gradient checkpointing off, with the fastest of the
  micro-batches that were tried; Hone runs with its defaults and the fastest of its token budgets that were tried.
- Each side runs in a process of its own, in turns, {rounds} times; one optimizer step is left out, {steps} are
  measured. tokens/s counts unmasked response tokens, and is the median step's. Memory is the process's peak resident
  size. *loss* is -mean(A log p) over response tokens by the weights at the end: both sides must have learned the
  same.
"""

_COLUMNS = {
    "workload": "workload",
    "side": "side",
    "micro_batch": "micro-batch",
    "seconds": "s / step",
    "tokens_per_second": "tokens/s",
    "peak_mib": "peak MiB",
    "loss": "loss",
    "gradient_norm": "gradient norm",
}
_LENGTHS = {
    "workload": "workload",
    "episodes": "Episodes",
    "prompt_tokens": "prompt tokens",
    "response_mean": "response tokens, mean",
    "response_max": "most",
}


def section(found: dict[str, Any]) -> str:
    """The section in Markdown."""
    tables, settings = found["tables"], found["settings"]
    machine = ", ".join(f"{name} {value}" for name, value in found["machine"].items())
    parts = [
        _INTRODUCTION.format(**settings),
        "### Checks of the learner's speed\n",
        checks_table(found["checks"]),
        "### Both sides\n",
        table(_COLUMNS, tables["rows"], texts=2),
        "### Recorded Episodes\n",
        table(_LENGTHS, tables["episodes"]),
        f"Measured on: {machine}; {found['version']}; {found['seconds']:.0f} s in all.",
    ]
    return "\n".join(parts)
