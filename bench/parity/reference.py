"""The right gradient: plain PyTorch, one process, float32, one sample at a time, whole logits."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from torch import Tensor
from transformers import AutoModelForCausalLM

from core.sample import TrainingSample

_CAP = 2.0
_BAND = (0.5, 2.0)


def plain_gradients(
    base: Path, adapter: Path | None, samples: Sequence[TrainingSample], *, objective: str
) -> tuple[float, dict[str, Tensor]]:
    """Loss and gradients by parameter name of one update whose old log-probs are the present ones.

    ``adapter`` None: all weights are trained. ``objective``: ``clip`` with truncated importance weights and the mean
    over tokens, or ``gspo`` with its mask over sequences and the mean over sequences.
    """
    model: Any = AutoModelForCausalLM.from_pretrained(str(base), dtype=torch.float32)
    if adapter is not None:
        model = PeftModel.from_pretrained(model, str(adapter), is_trainable=True)
    model.eval()
    tokens = sum(sum(sample.loss_mask) for sample in samples)
    loss = torch.zeros(())
    for sample in samples:
        terms = _terms(model, sample, objective)
        loss = loss + (terms.sum() / tokens if objective == "clip" else terms.mean() / len(samples))
    loss.backward()  # type: ignore[no-untyped-call]
    found = {name: one.grad.clone() for name, one in model.named_parameters() if one.grad is not None}
    return float(loss.detach()), found


def _terms(model: Any, sample: TrainingSample, objective: str) -> Tensor:
    row = torch.tensor([sample.tokens])
    logprobs: Tensor = model(input_ids=row).logits[0, :-1].log_softmax(-1)
    own = torch.tensor(sample.loss_mask[1:], dtype=torch.bool)
    new = logprobs.gather(1, row[0, 1:, None])[:, 0][own]
    behaviour = torch.tensor(sample.behaviour_logprobs[1:])[own]
    gain = torch.tensor(sample.advantages[1:])[own]
    mismatch = new.detach() - behaviour
    if objective == "clip":
        return -(new - new.detach()).exp() * gain * mismatch.exp().clamp(max=_CAP)
    whole = mismatch.sum().exp()
    kept = float(_BAND[0] <= whole <= _BAND[1])
    # The ratio of a sequence is 1 here; its gradient is that of its tokens' mean.
    return -((new - new.detach()).mean()).exp() * gain * kept
