"""GRPO and SFT as a plain PyTorch loop over single unpadded samples, in full logits: what the engine must equal."""

from pathlib import Path

import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM

from core.sample import TrainingSample


def plain_gradients(
    base: Path, adapter: Path, samples: list[TrainingSample], *, algorithm: str, cap: float
) -> tuple[float, dict[str, torch.Tensor]]:
    """Loss and gradients by parameter name of one update with old = new (ratio 1)."""
    model = PeftModel.from_pretrained(
        AutoModelForCausalLM.from_pretrained(str(base), dtype=torch.float32), str(adapter), is_trainable=True
    )
    total = sum(sum(sample.loss_mask) for sample in samples)
    loss = torch.zeros(())
    for sample in samples:
        tokens = torch.tensor([sample.tokens])
        logprobs = model(input_ids=tokens).logits[0, :-1].log_softmax(-1)
        new = logprobs.gather(1, tokens[0, 1:, None])[:, 0]
        mask = torch.tensor(sample.loss_mask[1:], dtype=torch.float32)
        if algorithm == "sft":
            terms = -new
        else:
            weights = (new.detach() - torch.tensor(sample.behaviour_logprobs[1:])).exp().clamp(max=cap)
            terms = -(new - new.detach()).exp() * torch.tensor(sample.advantages[1:]) * weights
        loss = loss + (terms * mask).sum() / total
    loss.backward()
    return float(loss.detach()), {
        name: parameter.grad.clone() for name, parameter in model.named_parameters() if parameter.grad is not None
    }
