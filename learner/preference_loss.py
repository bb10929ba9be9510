"""DPO: learning from pairs of a preferred and a rejected answer. Pure.

Source: Rafailov et al., arXiv 2305.18290, equation 7; label smoothing as in TRL's ``DPOTrainer``.
"""

from torch import Tensor
from torch.nn.functional import logsigmoid


def dpo_loss(
    chosen_logprobs: Tensor,
    rejected_logprobs: Tensor,
    reference_chosen_logprobs: Tensor,
    reference_rejected_logprobs: Tensor,
    *,
    beta: float = 0.1,
    label_smoothing: float = 0.0,
) -> Tensor:
    """One loss per pair, from sums of log-probs over each whole answer, all of shape (pairs,).

    ``beta`` says how far from the reference the policy may go (larger: less far). ``label_smoothing`` is the
    share of pairs that are expected to be the wrong way round.
    """
    margin = beta * (
        (chosen_logprobs - reference_chosen_logprobs) - (rejected_logprobs - reference_rejected_logprobs)
    )
    return -(1 - label_smoothing) * logsigmoid(margin) - label_smoothing * logsigmoid(-margin)
