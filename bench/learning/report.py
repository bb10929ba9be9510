"""The benchmark's section of the document."""

from typing import Any

from bench.learning.plan import DOMAINS, FULL
from bench.report import checks_table, table

NAME = "bench-learning"

_INTRODUCTION = """## Learning

`make bench-learning` writes this section, `bench/results/learning.json` and, beside it, the raw curves
(`learning-curves.json`); it takes hours, goes on where an earlier call stopped, and makes one run again with
`make bench-learning DOMAIN=letters SEED=1`. `make bench-learning-quick` tries one Domain shortly and writes nothing.

- SmolLM2-135M-Instruct on real vLLM (CPU), the whole loop as `hone up` runs it: attempts through the gateway, tools
  in the sandbox, verifiers, DeepSpeed, LoRA hot-swap after every step.
- Each of {domains} with each seed: SFT on demonstrations of the answer's form (*start*), {steps} GRPO steps of 8
  groups of 8 (*end*), and as many with the rewards dealt out at random among the attempts of a group (*control*):
  what rises there rises for another reason than the reward.
- *base*, *start* and *end* are success on {tasks} held-out Tasks at temperature 1; *gain* is end minus start on the
  same Tasks, with a 95% bootstrap interval over Tasks. *forgotten*: the largest loss from start to end in the three
  other Domains. *reward gap*: success at the last training step minus held-out success.
- `controls_gained` counts controls whose gain is above zero with an interval widened for as many questions.
- `mixed` runs train on all Domains; `forgetting_max` is the largest loss in any of them, which chance alone makes
  larger the more there are, and `forgetting_sure` the largest by the near bound of its interval.
"""

_COLUMNS = {
    "run": "run",
    "domain": "Domain",
    "gain": "gain",
    "control": "control's gain",
    "base": "base",
    "start": "start",
    "end": "end",
    "forgotten": "forgotten",
    "reward_gap": "reward gap",
    "minutes": "minutes",
}


def section(found: dict[str, Any]) -> str:
    """The section in Markdown."""
    machine = ", ".join(f"{name} {value}" for name, value in found["machine"].items())
    return "\n".join(
        [
            _INTRODUCTION.format(domains=", ".join(DOMAINS), steps=FULL.grpo_steps, tasks=FULL.heldout_tasks),
            "### Checks of learning\n",
            checks_table(found["checks"]),
            "### Runs\n",
            table(_COLUMNS, found["tables"]["rows"], texts=4),
            f"Measured on: {machine}; {found['version']}.\n",
        ]
    )
