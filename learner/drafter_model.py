"""The port of a drafter's form, and the default one: a few layers cut from the target.

EAGLE heads, which read the target's hidden states, would be another implementation of the port.
"""

import copy
import shutil
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, Protocol

import structlog
import torch
from safetensors import safe_open
from torch import Tensor, nn
from transformers import AutoModelForCausalLM

from core.errors import CorruptArtefact, LearnerError, boundary
from learner.drafter_data import DistilSequence
from learner.drafter_target import TargetModel, tensors_of

log = structlog.get_logger(__name__)

_TOKENIZER_FILES = ("tokenizer*", "special_tokens_map.json", "added_tokens.json", "vocab*", "merges.txt", "*.jinja")


class Student(Protocol):
    """A draft model in training."""

    def parameters(self) -> list[nn.Parameter]:
        """What trains."""
        ...

    @property
    def head_weight(self) -> Tensor:
        """The frozen output embedding, [vocabulary, features]."""
        ...

    def hidden(self, sequences: Sequence[DistilSequence]) -> Tensor:
        """Hidden states that predict the sampled tokens of one batch: [positions, features]."""
        ...

    def export(self, folder: Path) -> None:
        """Write a Hugging Face folder that the engine loads as its draft model."""
        ...


class DrafterMethod(Protocol):
    """Builds the student for a target. ``speculation`` is how engines call this form."""

    @property
    def speculation(self) -> str:
        """``draft_model``, ``eagle3``, …: ``core.variant.SpeculationMethod``."""
        ...

    def student(self, target: TargetModel, *, warm_start: Path | None) -> Student:
        """A student to train. A ``warm_start`` of another form is left unused, and logged.

        Raises LearnerError when the target cannot be drafted for so, CorruptArtefact for a broken folder.
        """
        ...


class LayerCut:
    """The first layers of the target, with its embedding, final norm and head.

    What comes first still reads what it was trained to read; the last layers, fed with what the first ones write,
    do worse than none. On SmolLM2-135M, after the same short training, ``agreement`` was 0.158 from layers 0, 1, 2,
    0.123 from 0, 1, 29 and 0.131 from 0, 28, 29 (before it 0.041, 0.000 and 0.000).
    """

    speculation = "draft_model"

    def __init__(self, layers: int) -> None:
        if layers < 1:
            raise ValueError(f"a drafter needs a layer, not {layers}")
        self._layers = layers

    def student(self, target: TargetModel, *, warm_start: Path | None) -> "LayerCutStudent":
        """The cut, or the layers of ``warm_start`` where they fit."""
        network = _cut(target.network, chosen_layers(target.network.config.num_hidden_layers, self._layers))
        student = LayerCutStudent(network, target)
        if warm_start is not None:
            student.take_over(warm_start)
        return student


def chosen_layers(available: int, wanted: int) -> tuple[int, ...]:
    """The first ``wanted`` layers. Raises LearnerError when the target has no more than that."""
    if wanted >= available:
        raise LearnerError(
            f"a drafter of {wanted} layers is no smaller than its target of {available}",
            hint="lower learner.drafter.layers",
        )
    return tuple(range(wanted))


class LayerCutStudent:
    """A causal model of few layers; embedding and head are the target's and never train."""

    def __init__(self, network: Any, target: TargetModel) -> None:
        self._network = network
        self._target = target
        network.requires_grad_(False)
        self._trained: list[nn.Parameter] = []
        for part in (network.model.layers, network.model.norm):
            part.requires_grad_(True)
            self._trained += list(part.parameters())

    def parameters(self) -> list[nn.Parameter]:
        """Layers and final norm."""
        return self._trained

    @property
    def head_weight(self) -> Tensor:
        """The target's."""
        return self._target.head_weight

    def hidden(self, sequences: Sequence[DistilSequence]) -> Tensor:
        """Hidden states that predict the sampled tokens of one batch."""
        tokens, wanted = tensors_of(sequences, self._target.device)
        states: Tensor = self._network.get_decoder()(input_ids=tokens, use_cache=False).last_hidden_state
        return states[wanted]

    def take_over(self, folder: Path) -> None:
        """Load layers and norm of an earlier drafter. Raises CorruptArtefact when it cannot be read."""
        own = {name: parameter for name, parameter in self._network.named_parameters() if parameter.requires_grad}
        found, layers = _stored(folder, own)
        fits = layers == len(self._network.model.layers) and all(
            name in found and found[name].shape == parameter.shape for name, parameter in own.items()
        )
        if not fits:
            log.warning("drafter_not_taken_over", folder=str(folder), layers=layers)
            return
        for name, parameter in own.items():
            parameter.data.copy_(found[name])

    def export(self, folder: Path) -> None:
        """Weights in the target's stored type, configuration, and the target's tokenizer files."""
        stored = copy.deepcopy(self._network).to(self._target.stored_dtype)
        stored.save_pretrained(str(folder), safe_serialization=True)
        for pattern in _TOKENIZER_FILES:
            for file in self._target.folder.glob(pattern):
                shutil.copyfile(file, folder / file.name)


def _cut(network: Any, layers: Sequence[int]) -> Any:
    """A model of these layers alone, sharing nothing that trains with ``network``."""
    decoder = getattr(network, "model", None)
    if decoder is None or not hasattr(decoder, "layers") or not hasattr(decoder, "norm"):
        raise LearnerError(f"a {type(network).__name__} has no plain stack of layers to cut a drafter from")
    config = copy.deepcopy(network.config)
    config.num_hidden_layers = len(layers)
    if getattr(config, "layer_types", None):
        config.layer_types = [network.config.layer_types[index] for index in layers]
    cut: Any = AutoModelForCausalLM.from_config(config)  # type: ignore[no-untyped-call]
    # Also where the target is in 16 bits: small updates would be rounded away.
    cut = cut.to(device=network.device, dtype=torch.float32)
    cut.model.embed_tokens.load_state_dict(decoder.embed_tokens.state_dict())
    cut.model.norm.load_state_dict(decoder.norm.state_dict())
    cut.lm_head.load_state_dict(network.lm_head.state_dict())
    for place, index in enumerate(layers):
        cut.model.layers[place].load_state_dict(decoder.layers[index].state_dict())
    return cut.eval()


def _stored(folder: Path, wanted: Collection[str]) -> tuple[dict[str, Tensor], int]:
    """The wanted tensors that the folder holds, and how many layers are in it."""
    with (
        boundary(CorruptArtefact, f"reading the drafter in {folder}"),
        safe_open(folder / "model.safetensors", framework="pt") as stored,
    ):
        names = list(stored.keys())
        found = {name: stored.get_tensor(name) for name in names if name in wanted}
    return found, sum(name.endswith("input_layernorm.weight") for name in names)
