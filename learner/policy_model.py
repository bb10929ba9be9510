"""PolicyModel: what is trained, a LoRA adapter on the Base or all weights, asked only for log-probs of given tokens.

float32 on CPU; bfloat16 with a float32 head on GPU. Logits are made for the wanted positions only and in
chunks: a prompt's positions never reach the head.
"""

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import torch
from peft import LoraConfig, PeftModel, get_peft_model, get_peft_model_state_dict
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import AutoModelForCausalLM

from core.config.learner import LoraSection
from core.errors import ConfigurationError, CorruptArtefact, LearnerError, boundary
from learner.logprobs import sequence_logprobs, tree_logprobs
from learner.sequence_parallel import SequenceGroup, pad_segments, pad_tokens, sharded_logprobs
from learner.token_tree import Segment
from learner.tree_attention import register_tree_attention

ADAPTER_NAME = "default"
ADAPTER_WEIGHTS = "adapter_model.safetensors"
ADAPTER_CONFIG = "adapter_config.json"
CHUNK_TOKENS = 512
"""Positions per head chunk: 512 x 49k vocabulary in float32 is 100 MB."""

_CHANGES_LOGITS = ("final_logit_softcapping", "logit_scale", "logits_scaling")


class PolicyModel(nn.Module):
    """``forward`` returns log-probs and entropies of the wanted tokens."""

    def __init__(self, network: Any, *, base_path: Path | None = None, sequence: SequenceGroup | None = None) -> None:
        """``network``: a PeftModel, or with ``base_path`` a causal language model all of whose weights train.

        ``sequence``: the ranks that share each row.
        """
        super().__init__()
        self.network = network
        self.sequence = sequence
        self._base_path = base_path
        # In lists: torch must not take the frozen Base for a part of this module.
        self._base: list[Any] = []
        self._speaking: list[Any] = []
        self.register_state_dict_post_hook(_keep_trained)  # type: ignore[no-untyped-call]

    def forward(
        self,
        tokens: Tensor,
        mask: Tensor,
        temperature: float = 1.0,
        positions: Tensor | None = None,
        predecessors: Tensor | None = None,
        segments: Sequence[Segment] | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Log-prob of token t at index t and the entropy there, float32 [rows, width]; 0 outside ``mask``.

        Rows are padded on the right, so causal attention keeps padding out without an attention mask. With
        ``segments`` there is one row, a tree (``learner.token_tree``), with its ``positions`` and ``predecessors``.
        """
        if self.sequence is not None:
            return self._sharded(tokens, mask, temperature, positions, predecessors, segments)
        tree = {} if segments is None else {"position_ids": positions, "segments": segments}
        hidden = self.causal.get_decoder()(input_ids=tokens, use_cache=False, **tree).last_hidden_state
        head, size = self.head_weight, CHUNK_TOKENS
        if predecessors is None:
            return sequence_logprobs(hidden, head, tokens, mask, chunk_tokens=size, temperature=temperature)
        return tree_logprobs(hidden, head, tokens, mask, predecessors, chunk_tokens=size, temperature=temperature)

    def _sharded(
        self,
        tokens: Tensor,
        mask: Tensor,
        temperature: float,
        positions: Tensor | None,
        predecessors: Tensor | None,
        segments: Sequence[Segment] | None,
    ) -> tuple[Tensor, Tensor]:
        """``forward`` of this rank's part of the rows; the result is of whole rows."""
        sequence, width = self.sequence, tokens.shape[1]
        assert sequence is not None, "there is no group to share rows with"
        padding = sequence.padding(width)
        own = sequence.shard(width + padding)
        if segments is None or positions is None:
            places = torch.arange(width + padding, device=tokens.device).expand(len(tokens), -1)
        else:
            places = pad_tokens(positions, padding)
        tree = {} if segments is None else {"segments": pad_segments(segments, width, padding)}
        hidden = self.causal.get_decoder()(
            input_ids=pad_tokens(tokens, padding)[:, own],
            position_ids=places[:, own],
            use_cache=False,
            sequence=sequence,
            **tree,
        ).last_hidden_state
        return sharded_logprobs(
            hidden,
            self.head_weight,
            tokens,
            mask,
            predecessors,
            sequence=sequence,
            chunk_tokens=CHUNK_TOKENS,
            temperature=temperature,
        )

    @property
    def causal(self) -> Any:
        """The causal language model (a transformers PreTrainedModel) that answers now."""
        if self._speaking:
            return self._speaking[-1]
        return self.network if self.is_full else self.network.get_base_model()

    @property
    def is_full(self) -> bool:
        """Whether all weights are trained."""
        return self._base_path is not None

    @property
    def head_weight(self) -> nn.Parameter:
        """The output embedding, used outside its own module."""
        weight: nn.Parameter = self.causal.get_output_embeddings().weight
        return weight

    @property
    def lora_rank(self) -> int | None:
        """Rank of the adapter; None for full weights."""
        return None if self.is_full else int(self._adapter_config.r)

    @property
    def _adapter_config(self) -> Any:
        return self.network.peft_config[ADAPTER_NAME]

    def checkpoint_gradients(self) -> None:
        """Keep only each layer's input, and compute the layer again in the backward pass."""
        causal = self.causal
        causal.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        # transformers does it in training mode only. The layers' children stay in evaluation mode: no dropout.
        for module in causal.modules():
            if getattr(module, "gradient_checkpointing", False):
                module.training = True

    @contextmanager
    def as_base(self) -> Iterator[None]:
        """Inside, the Base answers: the adapter is off, or a frozen copy is used, which is loaded at the first call.

        The copy lies in main memory in between. Raises LearnerError when it cannot be loaded.
        """
        if self._base_path is None:
            with self.network.disable_adapter():
                yield
            return
        weight = next(self.network.parameters())
        if not self._base:
            attention = self.network.config._attn_implementation
            with boundary(LearnerError, f"loading the base model from {self._base_path}"):
                self._base.append(_load(self._base_path, weight.dtype, attention).requires_grad_(False).eval())
        self._speaking.append(self._base[0].to(weight.device))
        try:
            yield
        finally:
            self._speaking.pop()
            self._base[0].to("cpu")

    def export_adapter(self, folder: Path) -> None:
        """Write a PEFT folder (``adapter_config.json``, ``adapter_model.safetensors``) as vLLM reads it.

        Under ZeRO-3 call it with the parameters gathered.
        """
        state = get_peft_model_state_dict(self.network, save_embedding_layers=False)
        tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in state.items()}
        folder.mkdir(parents=True, exist_ok=True)
        save_file(tensors, folder / ADAPTER_WEIGHTS, metadata={"format": "pt"})
        config = copy.copy(self._adapter_config)
        config.inference_mode = True
        # The folder's checksum must not depend on where the Base happens to lie.
        config.base_model_name_or_path = None
        config.save_pretrained(str(folder))


def build_policy_model(
    base_path: Path,
    *,
    lora: LoraSection,
    adapter: Path | None,
    device: torch.device,
    seed: int,
    trees: bool = True,
    train: Literal["lora", "full"] = "lora",
    dtype: torch.dtype | None = None,
    sequence: SequenceGroup | None = None,
) -> PolicyModel:
    """The Base from its folder, with the parent version's adapter or a fresh one (which changes nothing yet).

    With ``train`` ``full``, ``adapter`` is the folder of the parent version's weights. ``trees``: rows may be trees
    of segments, which needs a model whose layers all have plain causal attention; so does ``sequence``, the ranks
    that share each row. ``dtype``: bfloat16 on GPU and float32 elsewhere, unless given.

    Raises LearnerError when the Base cannot be loaded or trained so, ConfigurationError when its heads cannot be
    shared so, CorruptArtefact for a broken adapter.
    """
    dtype = dtype or (torch.bfloat16 if device.type == "cuda" else torch.float32)
    attention = register_tree_attention() if trees or sequence is not None else None
    full = train == "full"
    if full and adapter is not None:
        with boundary(CorruptArtefact, f"loading the weights in {adapter}"):
            base = _load(adapter, dtype, attention)
    else:
        with boundary(LearnerError, f"loading the base model from {base_path}"):
            base = _load(base_path, dtype, attention)
    _check_trainable(base, lora)
    if attention is not None:
        _check_plain_attention(base, sequence)
    if full:
        return PolicyModel(base, base_path=base_path, sequence=sequence)
    base.requires_grad_(False)
    torch.manual_seed(seed)
    if adapter is not None:
        with boundary(CorruptArtefact, f"loading the adapter in {adapter}"):
            network = PeftModel.from_pretrained(
                base, str(adapter), is_trainable=True, autocast_adapter_dtype=False
            ).to(dtype)
        return PolicyModel(network, sequence=sequence)
    config = LoraConfig(
        r=lora.rank,
        lora_alpha=lora.alpha,  # type: ignore[arg-type]
        target_modules=list(lora.target_modules),
        lora_dropout=0.0,
        bias="none",
        task_type="CAUSAL_LM",
    )
    with boundary(LearnerError, "adding the LoRA adapter"):
        # Under ZeRO-3 adapters must have the base's dtype.
        network = get_peft_model(base, config, autocast_adapter_dtype=False)
    return PolicyModel(network, sequence=sequence)


def _load(path: Path, dtype: torch.dtype, attention: str | None) -> Any:
    return AutoModelForCausalLM.from_pretrained(str(path), dtype=dtype, attn_implementation=attention)


def _keep_trained(module: nn.Module, state: dict[str, Any], prefix: str, _: Any) -> None:
    """A saved state is what is trained. DeepSpeed leaves out frozen parameters, but keeps a tied head."""
    trained = {prefix + name for name, parameter in module.named_parameters() if parameter.requires_grad}
    for name in state.keys() - trained:
        del state[name]


def _check_plain_attention(base: Any, sequence: SequenceGroup | None) -> None:
    kinds = set(getattr(base.config, "layer_types", None) or ["full_attention"])
    windowed = getattr(base.config, "use_sliding_window", bool(getattr(base.config, "sliding_window", None)))
    if kinds != {"full_attention"} or windowed or not getattr(base, "_supports_attention_backend", False):
        raise LearnerError(
            "the base model has attention other than plain causal attention over all tokens",
            hint="set learner.layout to 'padded' and learner.sequence_parallel to 1",
        )
    heads = base.config.num_attention_heads
    if sequence is not None and heads % sequence.size:
        raise ConfigurationError(
            f"{sequence.size} ranks cannot share the base model's {heads} attention heads",
            hint="set learner.sequence_parallel to a number that divides them",
            param="learner.sequence_parallel",
        )


def _check_trainable(base: Any, lora: LoraSection) -> None:
    if "lm_head" in lora.target_modules:
        raise LearnerError("learner.lora.target_modules must not name the head, which is read as it is")
    for name in _CHANGES_LOGITS:
        if getattr(base.config, name, None) not in (None, 0, 1, 1.0):
            raise LearnerError(f"the base model's '{name}' changes logits, and the learner does not apply it")
    head = base.get_output_embeddings()
    if head is None or getattr(head, "bias", None) is not None:
        raise LearnerError("the base model has no plain output head without a bias")
