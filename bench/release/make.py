"""Makes the live run's three adapters with their Probes: ``python -m bench.release.make FOLDER BASE``.

``better`` learned the task, ``equal`` differs from the Base by noise that changes little, ``bad`` by noise that
breaks it. A process of its own, so that torch is gone before anything is measured.
"""

import argparse
import json
import random
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from bench.hotswap.weights import ALPHA, MODULES, RANK, Judge, windows, write_adapter
from bench.release.plan import ADAPTERS, MANIFEST
from bench.release.words import training_pairs
from learner.probe import CANDIDATES, MAX_TOKENS, ProbeDraft, choose_probe

_STEPS = 30
_BATCH = 8
_RATE = 3e-3
_NOISE = {"equal": 0.3, "bad": 8.0}
"""Times the spread at which versions differ by half a nat a token."""
_IGNORED = -100


def main() -> None:
    """Make them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("base", type=Path)
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    tokenizer: Any = AutoTokenizer.from_pretrained(str(arguments.base))
    for name in ADAPTERS:
        path = arguments.folder / name
        if name == "better":
            _train(path, arguments.base, tokenizer)
        else:
            _noise(path, arguments.base, _NOISE[name])
    judge = Judge(arguments.base)
    texts = [_prompt(tokenizer, question) for question, _ in training_pairs()]
    sequences = windows(texts, count=CANDIDATES, width=MAX_TOKENS, seed=0)
    of_base = tuple(tuple(row) for row in judge.logprobs(sequences))
    made = []
    for name in ADAPTERS:
        judge.become(arguments.folder / name)
        draft = ProbeDraft(sequences=tuple(sequences), parent=of_base, base=of_base)
        probe = choose_probe(draft, judge.logprobs(sequences), dtype="float32")
        made.append({"path": str(arguments.folder / name), "probe": probe.model_dump(mode="json")})
    (arguments.folder / MANIFEST).write_text(json.dumps(made))


def _train(path: Path, base: Path, tokenizer: Any) -> None:
    """Supervised, on the answers' tokens alone."""
    torch.manual_seed(0)
    generator = random.Random(0)
    model: Any = AutoModelForCausalLM.from_pretrained(str(base), dtype=torch.float32)
    config = LoraConfig(
        r=RANK, lora_alpha=int(ALPHA), target_modules=list(MODULES), lora_dropout=0.0, task_type="CAUSAL_LM"
    )
    model = get_peft_model(model, config)
    trained = [one for one in model.parameters() if one.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=_RATE)
    pairs = training_pairs()
    for _ in range(_STEPS):
        tokens, labels = _batch(tokenizer, generator.sample(pairs, _BATCH))
        loss = model(input_ids=tokens, labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.save_pretrained(str(path))


def _batch(tokenizer: Any, pairs: list[tuple[str, str]]) -> tuple[torch.Tensor, torch.Tensor]:
    rows = []
    for question, answer in pairs:
        prompt = _prompt(tokenizer, question)
        said = tokenizer(answer, add_special_tokens=False)["input_ids"] + [tokenizer.eos_token_id]
        rows.append((prompt + said, [_IGNORED] * len(prompt) + said))
    width = max(len(tokens) for tokens, _ in rows)
    # Padding on the right: causal attention keeps it out.
    tokens = torch.tensor([row + [0] * (width - len(row)) for row, _ in rows])
    labels = torch.tensor([row + [_IGNORED] * (width - len(row)) for _, row in rows])
    return tokens, labels


def _prompt(tokenizer: Any, question: str) -> list[int]:
    messages = [{"role": "user", "content": question}]
    found: list[int] = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    return found


def _noise(path: Path, base: Path, scale: float) -> None:
    write_adapter(path, base, seed=7)
    file = path / "adapter_model.safetensors"
    tensors = load_file(file)
    changed = {name: one * scale if ".lora_B." in name else one for name, one in tensors.items()}
    save_file(changed, file, metadata={"format": "pt"})


if __name__ == "__main__":
    main()
