"""The benchmark's section of the document."""

from typing import Any

from bench.report import checks_table, table

NAME = "bench-parity"

_INTRODUCTION = """## One gradient whatever the layout

`make bench-parity` writes this section and `bench/results/parity.json`; `make bench-parity-quick` tries three layouts
and writes neither.

- One optimizer step on eleven samples in three groups of uneven size, with prompts and answers of uneven length, on a
  random Llama of two layers built for it, in every layout: ZeRO stage 0 to 3, sequence parallel (sp) 1 and 2, LoRA
  and full weights, packed rows with shared prompts (`flat`) and one padded row a sample (`padded`), on two ranks; and
  data-parallel times sequence-parallel on four. Micro-batches and rows divide evenly nowhere.
- The gradient is what SGD moved, with clipping off, over its learning rate of {rate:g}. It is compared with plain
  PyTorch in one process, float32, one sample at a time, with whole logits. *error* is the largest difference of any
  parameter as a share of that parameter's largest gradient; *length* is the whole gradient's over the right one's: a
  factor such as the number of ranks would show there. The optimizers that people use hide such a factor.
- Each layout runs in processes of its own. Sequence parallel with ZeRO stage 0 is refused, with the reason.
"""

_COLUMNS = {
    "zero_stage": "ZeRO",
    "sequence_parallel": "sp",
    "ranks": "ranks",
    "train": "train",
    "layout": "layout",
    "objective": "objective",
    "error": "error",
    "length": "length",
    "loss_error": "loss difference",
    "seconds": "s",
}


def section(found: dict[str, Any]) -> str:
    """The section in Markdown."""
    rows = found["tables"]["rows"]
    refused = [row for row in rows if row["refused"]]
    machine = ", ".join(f"{name} {value}" for name, value in found["machine"].items())
    lines = [
        f"- ZeRO {row['zero_stage']}, sp {row['sequence_parallel']}, {row['train']}, {row['layout']}: "
        f"{row['refused']}."
        for row in refused
    ]
    parts = [
        _INTRODUCTION.format(**found["settings"]),
        "### Checks of parity\n",
        checks_table(found["checks"]),
        "### Layouts\n",
        table(_COLUMNS, [_texts(row) for row in rows if not row["refused"]], texts=6),
        "### Refused layouts\n",
        "\n".join(lines) + "\n",
        f"Measured on: {machine}; {found['version']}; {found['seconds']:.0f} s in all.",
    ]
    return "\n".join(parts)


def _texts(row: dict[str, Any]) -> dict[str, Any]:
    return {**row, "length": None if row["length"] is None else f"{row['length']:.6f}"}
