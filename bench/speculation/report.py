"""The benchmark's section of the document."""

from typing import Any

from bench.report import checks_table, table

NAME = "bench-speculation"

_INTRODUCTION = """## Speculation

`make bench-speculation` writes this section and `bench/results/speculation.json`; `make bench-speculation-quick`
tries every part with a few prompts and writes neither.

- vLLM (CPU, float32, SmolLM2-135M-Instruct, LoRA on) runs one engine per method, started with the fleet's own command
  line; one of them works at a time, and methods take turns on the same prompts. Nothing else runs. Greedy, up to
  {max_tokens} tokens an answer; the prompts are in the prefix cache, as an Episode's are after its first Turn, so
  that tokens/s is the speed of decoding.
- Domains: *code* edits a Python file that stands in the prompt; *tools* calls one of two functions that the prompt
  describes; *json* is the project's `json_format`. Prompts that are measured are of the held-out split.
- Methods: `standard`; `{lookup}` (up to {lookup_tokens} tokens per step, from the text so far); `drafter` (a draft
  model that `learner.distill` trained for the Base, {draft_tokens} tokens per step); `drafter-upkept` (what upkeep
  distilled from it for the post-trained target, put onto the running engine in place of it).
- Post-training: SFT of a LoRA adapter by the learner's Trainer on correct answers of the three Domains, in another
  form than the prompts' examples show. Training text of the drafters: what the target answered to prompts of the
  training split, decoded greedily, as it is measured.
- *speedup* checks are the best method's, on the post-trained target (what a Policy serves); the Base is in the table.
  Acceptance is the mean over Domains of accepted / drafted tokens; `drafter_accepted_per_draft_k3` is the lower of
  the drafter on the Base and the upkept one on the post-trained target. Repeated: share of 4-grams that stood earlier
  in the same answer.
- Greedy answers of every fast run are compared with the standard ones token for token. Where they part, the standard
  engine scores both tokens on the same prefix: a gap up to 1e-3 nats is a near-tie.
"""

_CELLS = {
    "target": "target",
    "domain": "Domain",
    "method": "method",
    "together": "at a time",
    "tokens": "tokens",
    "tokens_per_second": "tokens/s",
    "speedup": "speed-up",
    "acceptance": "acceptance",
    "accepted_per_draft": "accepted per draft",
    "positions": "by position",
    "repeated_share": "repeated",
}


def further(found: dict[str, Any]) -> list[str]:
    """Lines for the terminal."""
    tables = found["tables"]
    lines = [
        f"fast against standard: {_compared(tables['fast_against_standard'])}",
        f"standard against itself at another batch size: {_compared(tables['standard_against_itself'])}",
    ]
    lines += [f"{name}: {result}" for name, result in tables["training"].items()]
    if tables["drafter_swap_seconds"] is not None:
        lines.append(f"the drafter was replaced on the running engine in {tables['drafter_swap_seconds']:.2f} s")
    return lines


def section(found: dict[str, Any]) -> str:
    """The whole section."""
    settings = found["settings"]
    parts = [
        _INTRODUCTION.format(
            max_tokens=settings["max_tokens"],
            lookup=settings["lookup"],
            lookup_tokens=settings["lookup_tokens"],
            draft_tokens=settings["draft_tokens"],
        ),
        "### Checks\n",
        checks_table(found["checks"]),
        "### Speed and acceptance\n",
        table(_CELLS, found["tables"]["cells"], texts=3),
        "### Sameness and training\n",
        "\n".join(f"- {line}" for line in further(found)) + "\n",
        _conditions(found),
    ]
    return "\n".join(parts)


def _compared(comparison: dict[str, Any]) -> str:
    return (
        f"{comparison['compared']} greedy answers ({comparison['tokens']} tokens), "
        f"{comparison['near_ties']} near-ties, {comparison['mismatches']} mismatches"
    )


def _conditions(found: dict[str, Any]) -> str:
    machine = ", ".join(f"{name} {value}" for name, value in found["machine"].items())
    return f"Measured on: {machine}; {found['version']}; {found['seconds']:.0f} s in all.\n"
