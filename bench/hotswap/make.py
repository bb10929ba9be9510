"""Makes the versions that the benchmark publishes, each with a real Probe: ``python -m bench.hotswap.make``.

A process of its own, so that torch is gone before anything is measured. Writes ``versions.json`` beside the folders.
"""

import argparse
import json
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from transformers import AutoTokenizer

from bench.hotswap.weights import Judge, windows, write_adapter, write_whole
from bench.texts import OPENINGS
from core.policy import Probe
from learner.probe import CANDIDATES, MAX_TOKENS, ProbeDraft, choose_probe

MANIFEST = "versions.json"
Maker = Callable[[Path, Path, int], None]
"""Writes one version: its folder, the Base's folder, its number."""


def candidates(base: Path) -> list[tuple[int, ...]]:
    """The sequences among which Probes are chosen."""
    tokenizer: Any = AutoTokenizer.from_pretrained(str(base))
    texts: list[list[int]] = [
        tokenizer.apply_chat_template(
            [{"role": "user", "content": text}], add_generation_prompt=True, return_dict=False
        )
        for text in OPENINGS
    ]
    return windows(texts, count=CANDIDATES, width=MAX_TOKENS, seed=0)


def make(folder: Path, base: Path, count: int, maker: Maker) -> None:
    """``count`` versions, each the child of the one before it, and their Probes."""
    judge = Judge(base)
    sequences = candidates(base)
    of_base = judge.logprobs(sequences)
    parent = of_base
    made = []
    for number in range(1, count + 1):
        path = folder / f"version-{number}"
        maker(path, base, number)
        judge.become(path)
        own = judge.logprobs(sequences)
        made.append({"path": str(path), "probe": _probe(sequences, own, parent, of_base).model_dump(mode="json")})
        parent = own
    (folder / MANIFEST).write_text(json.dumps(made))


def _probe(
    sequences: Sequence[tuple[int, ...]],
    own: Sequence[Sequence[float]],
    parent: Sequence[Sequence[float]],
    base: Sequence[Sequence[float]],
) -> Probe:
    draft = ProbeDraft(
        sequences=tuple(sequences),
        parent=tuple(tuple(row) for row in parent),
        base=tuple(tuple(row) for row in base),
    )
    return choose_probe(draft, own, dtype="float32")


def _lora(path: Path, base: Path, number: int) -> None:
    write_adapter(path, base, seed=number)


def _full(path: Path, base: Path, number: int) -> None:
    """A random adapter, merged into the Base's weights: a whole model of its own."""
    with tempfile.TemporaryDirectory() as folder:
        adapter = Path(folder) / "adapter"
        write_adapter(adapter, base, seed=1000 + number)
        write_whole(path, base, adapter)


MAKERS: dict[str, Maker] = {"lora": _lora, "full": _full}


def main() -> None:
    """Make them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=sorted(MAKERS))
    parser.add_argument("folder", type=Path)
    parser.add_argument("base", type=Path)
    parser.add_argument("count", type=int)
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    make(arguments.folder, arguments.base, arguments.count, MAKERS[arguments.kind])


if __name__ == "__main__":
    main()
