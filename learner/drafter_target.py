"""The target of a drafter: its likeliest next tokens at every position, and text sampled from it.

The Base with a LoRA adapter merged into it, or full weights. It only reads: one forward pass per sequence.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM

from core.errors import CorruptArtefact, LearnerError, boundary
from learner.drafter_data import DistilSequence, batches_of

_CHUNK_TOKENS = 512
_SAMPLED_TOGETHER = 32
_LEAST_PROBABILITY = 1e-3
"""Below it a token adds nothing to acceptance, and would widen the head that the student trains on."""


@dataclass(frozen=True)
class DraftTarget:
    """Which weights are drafted for."""

    base_path: Path
    """The Base's folder, or that of a version's full weights."""
    adapter: Path | None = None
    """A LoRA version's folder; None: the weights in ``base_path`` as they are."""


@dataclass(frozen=True)
class TopLogprobs:
    """The target's distribution at some positions: [positions, k] token ids and log-probs (nats).

    Tokens below a thousandth have log-prob -inf: they are not learned.
    """

    ids: Tensor
    logprobs: Tensor


class TargetModel:
    """The target's weights in memory, float32 on CPU and bfloat16 on GPU."""

    def __init__(self, target: DraftTarget, *, device: torch.device) -> None:
        """Raises LearnerError when the Base cannot be loaded, CorruptArtefact for a broken adapter."""
        dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
        with boundary(LearnerError, f"loading the target from {target.base_path}"):
            network: Any = AutoModelForCausalLM.from_pretrained(str(target.base_path), dtype=dtype)
        if target.adapter is not None:
            with boundary(CorruptArtefact, f"loading the adapter in {target.adapter}"):
                network = PeftModel.from_pretrained(network, str(target.adapter)).merge_and_unload()
        self.stored_dtype: torch.dtype = AutoConfig.from_pretrained(str(target.base_path)).dtype or dtype
        """What the folder's weights are written in, and what a drafter's are."""
        self.network: Any = network.to(device).eval().requires_grad_(False)
        self.device = device
        self.folder = target.base_path

    @property
    def head_weight(self) -> Tensor:
        """The output embedding, [vocabulary, features]."""
        weight: Tensor = self.network.get_output_embeddings().weight
        return weight

    @property
    def vocabulary(self) -> int:
        """Tokens that the head tells apart."""
        return int(self.head_weight.shape[0])

    @torch.no_grad()
    def hidden(self, sequences: Sequence[DistilSequence]) -> Tensor:
        """Hidden states that predict the sampled tokens, all sequences' one after the other: [positions, features].

        The sequences are one batch.
        """
        tokens, wanted = tensors_of(sequences, self.device)
        states: Tensor = self.network.get_decoder()(input_ids=tokens, use_cache=False).last_hidden_state
        return states[wanted]

    @torch.no_grad()
    def top_logprobs(self, hidden: Tensor, *, k: int) -> TopLogprobs:
        """The ``k`` likeliest next tokens at each hidden state."""
        ids, logprobs = [], []
        for part in torch.split(hidden, _CHUNK_TOKENS):
            logits = part.float() @ self.head_weight.float().t()
            values, places = logits.topk(min(k, self.vocabulary), dim=-1)
            values = values - logits.logsumexp(dim=-1, keepdim=True)
            ids.append(places.to(torch.int32))
            logprobs.append(values.masked_fill(values.exp() < _LEAST_PROBABILITY, -torch.inf))
        kept = torch.cat(logprobs)
        # The likeliest is always learned, also where everything is below the bound.
        kept[:, 0] = kept[:, 0].clamp(min=-20.0)
        return TopLogprobs(torch.cat(ids), kept)

    def sample(
        self,
        prompts: Sequence[tuple[int, ...]],
        *,
        max_tokens: int,
        seed: int,
        advanced: Callable[[int], None],
    ) -> list[DistilSequence]:
        """One answer per prompt at temperature 1, of at most ``max_tokens``; ``advanced`` gets the number done."""
        torch.manual_seed(seed)
        order = sorted(range(len(prompts)), key=lambda index: -len(prompts[index]))
        found: dict[int, DistilSequence] = {}
        for start in range(0, len(order), _SAMPLED_TOGETHER):
            chosen = order[start : start + _SAMPLED_TOGETHER]
            for index, answer in zip(chosen, self._answers([prompts[i] for i in chosen], max_tokens), strict=True):
                found[index] = DistilSequence((*prompts[index], *answer), len(prompts[index]))
            advanced(len(found))
        return [found[index] for index in sorted(found)]

    @torch.no_grad()
    def _answers(self, prompts: Sequence[tuple[int, ...]], max_tokens: int) -> list[tuple[int, ...]]:
        width = max(len(prompt) for prompt in prompts)
        tokens = torch.zeros(len(prompts), width, dtype=torch.long, device=self.device)
        mask = torch.zeros_like(tokens)
        for row, prompt in enumerate(prompts):
            tokens[row, width - len(prompt) :] = torch.tensor(prompt)
            mask[row, width - len(prompt) :] = 1
        ends = self._end_tokens()
        written = self.network.generate(
            input_ids=tokens,
            attention_mask=mask,
            max_new_tokens=max_tokens,
            do_sample=True,
            temperature=1.0,
            top_k=0,
            top_p=1.0,
            eos_token_id=ends or None,
            pad_token_id=ends[0] if ends else 0,
        )
        return [_until_end(row, ends) for row in written[:, width:].tolist()]

    def _end_tokens(self) -> list[int]:
        ends = self.network.generation_config.eos_token_id
        return [] if ends is None else [ends] if isinstance(ends, int) else list(ends)


def tensors_of(sequences: Sequence[DistilSequence], device: torch.device) -> tuple[Tensor, Tensor]:
    """Right-padded tokens, and a mask of the positions whose next token was sampled."""
    shape = (len(sequences), max(len(sequence.tokens) for sequence in sequences))
    tokens = torch.zeros(shape, dtype=torch.long)
    wanted = torch.zeros(shape, dtype=torch.bool)
    for row, sequence in enumerate(sequences):
        tokens[row, : len(sequence.tokens)] = torch.tensor(sequence.tokens)
        wanted[row, sequence.first_output - 1 : len(sequence.tokens) - 1] = True
    return tokens.to(device), wanted.to(device)


def batches(sequences: Sequence[DistilSequence], *, token_budget: int) -> list[list[DistilSequence]]:
    """The sequences in batches that fit the budget."""
    return [[sequences[index] for index in batch] for batch in batches_of(sequences, token_budget=token_budget)]


def _until_end(answer: list[int], ends: Sequence[int]) -> tuple[int, ...]:
    """The answer up to and with its first end token; what follows is padding."""
    for place, token in enumerate(answer):
        if token in ends:
            return tuple(answer[: place + 1])
    return tuple(answer)
