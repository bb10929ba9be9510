"""Trainer: model and engine of one run on every rank; rank 0 gives the orders.

Each public method announces itself to the other ranks, which run the same method in ``follow``. So code on rank 0
calls a Trainer as if it were alone.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import structlog
import torch
from torch import Tensor

from core.config.learner import LearnerSection
from core.config.learner_live import LossWeightsSection
from core.errors import HoneError
from core.sample import TrainingSample
from learner.batch import TensorBatch, pad_sequences, to_tensors
from learner.deepspeed_engine import DeepSpeedEngine, OptimizerFactory, adamw, dtype_of
from learner.distributed import World
from learner.full_weights import folder_dtypes, load_model, score_sequences, write_full_folder
from learner.mixed_step import MixedBatches, mixed_update
from learner.mixture import Mixture, paired_samples, uses_reference
from learner.packing import pack_for_ranks
from learner.policy_model import build_policy_model
from learner.step import UpdateMetrics, grpo_update, sft_update

log = structlog.get_logger(__name__)

STATE_TAG = "state"


@dataclass(frozen=True)
class TrainerSpec:
    """Everything that a rank needs to build its Trainer."""

    config: LearnerSection
    base_path: Path
    adapter: Path | None
    """Folder of the version to start from, its adapter or its weights; None: version 0."""
    learning_rate: float
    seed: int
    engine_dtype: str | None = None
    """What engines run in: for ``float32``, full weights trained in float32 are exported as they are."""


class Trainer:
    """Updates one PolicyModel; not thread-safe: call it from one thread."""

    def __init__(self, spec: TrainerSpec, *, world: World, optimizer: OptimizerFactory | None = None) -> None:
        """``optimizer`` replaces AdamW. Raises LearnerError or CorruptArtefact when the model cannot be built."""
        self._config = spec.config
        self._world = world = world.in_sequence_groups(spec.config.sequence_parallel)
        self._base_path = spec.base_path
        self.dtype = dtype_of(spec.config, world)
        """Of the weights in training."""
        self._widen = spec.engine_dtype == "float32" and self.dtype is torch.float32
        self.model = build_policy_model(
            spec.base_path,
            lora=spec.config.lora,
            adapter=spec.adapter,
            device=world.device,
            seed=spec.seed,
            trees=spec.config.layout == "flat",
            train=spec.config.train,
            dtype=self.dtype,
            sequence=world.sequence,
        )
        # Dropout would make the learner's distribution another one than the engine's.
        self.model.eval()
        if spec.config.gradient_checkpointing:
            self.model.checkpoint_gradients()
        self.lora_rank = self.model.lora_rank
        self._base: Any = None
        self._engine = DeepSpeedEngine(
            self.model,
            config=spec.config,
            world=world,
            optimizer=optimizer or adamw(spec.config, spec.learning_rate),
            outside_parameters=[self.model.head_weight],
        )

    def grpo_update(self, samples: Sequence[TrainingSample]) -> UpdateMetrics:
        """Train on one batch of Episodes; see ``learner.step.grpo_update``."""
        self._announce("grpo_update", samples)
        return grpo_update(
            self._engine,
            self._share(samples),
            config=self._config,
            world=self._world,
            reference=self.model.as_base,
        )

    def sft_update(self, samples: Sequence[TrainingSample]) -> UpdateMetrics:
        """Train on demonstrations; see ``learner.step.sft_update``."""
        self._announce("sft_update", samples)
        return sft_update(self._engine, self._share(samples), world=self._world)

    def mixed_update(self, mixture: Mixture, weights: LossWeightsSection) -> UpdateMetrics:
        """Train on several losses at once; see ``learner.mixed_step.mixed_update``."""
        self._announce("mixed_update", mixture, weights)
        used = mixture.weighed(weights)
        batches = MixedBatches(
            policy=self._share(used.policy),
            demonstrations=self._share(used.demonstrations),
            pairs=self._share(paired_samples(used.pairs)),
            pair_count=len(used.pairs),
            best=self._share(used.best),
        )
        return mixed_update(
            self._engine,
            batches,
            config=self._config,
            weights=weights,
            world=self._world,
            reference=self.model.as_base,
        )

    def logprobs(self, sequences: Sequence[tuple[int, ...]], base: bool = False) -> list[tuple[float, ...]]:
        """Log-prob of every token given those before it (0.0 for the first), of the policy or of the Base."""
        self._announce("logprobs", sequences, base)
        tokens, mask = pad_sequences(list(sequences))
        inputs = {
            "tokens": torch.from_numpy(tokens).to(self._world.device),
            "mask": torch.from_numpy(mask).to(self._world.device),
        }
        with torch.no_grad():
            if base:
                with self.model.as_base():
                    values, _ = self._engine(**inputs)
            else:
                values, _ = self._engine(**inputs)
        return [tuple(row[: len(sequence)]) for row, sequence in zip(values.tolist(), sequences, strict=True)]

    def base_logprobs(self, sequences: Sequence[tuple[int, ...]]) -> list[tuple[float, ...]]:
        """``logprobs`` of the Base for a few short sequences; call on rank 0.

        Beside full weights whose losses need no Base, only rank 0 has a copy of it, which never leaves main memory.
        Raises LearnerError when it cannot be loaded.
        """
        if not self.model.is_full or uses_reference(self._config):
            return self.logprobs(sequences, base=True)
        if self._base is None:
            self._base = load_model(self._base_path, self.dtype)
        return list(score_sequences(self._base, sequences))

    def trained_parameters(self) -> dict[str, Tensor]:
        """Copies of what is trained by name, for inspection."""
        self._announce("trained_parameters")
        with self._engine.gathered():
            return {
                name: parameter.detach().cpu().clone()
                for name, parameter in self.model.network.named_parameters()
                if parameter.requires_grad
            }

    @property
    def layout(self) -> str:
        """What decides the form of a saved state, in words."""
        kind, ranks = ("full weights" if self.model.is_full else "an adapter"), self._world.size
        name = str(self.dtype).removeprefix("torch.")
        return (
            f"{kind} in {name} on {ranks} {'rank' if ranks == 1 else 'ranks'}, ZeRO stage {self._config.zero_stage}"
        )

    @property
    def exports_exactly(self) -> bool:
        """Whether what is exported is what is trained: else full weights are rounded to the Base's dtype."""
        return not self.model.is_full or self._widen or folder_dtypes(self._base_path) == {self.dtype}

    def export_adapter(self, folder: Path) -> None:
        """Rank 0 writes the adapter as a PEFT folder, or full weights as a folder like the Base's."""
        self._announce("export_adapter", folder)
        if self.model.is_full:
            self._export_full(folder)
            return
        with self._engine.gathered():
            if self._world.leads:
                self.model.export_adapter(folder)

    def _export_full(self, folder: Path) -> None:
        """One tensor at a time is whole on every rank, and all of them in rank 0's main memory."""
        state: dict[str, Tensor] = {}
        for name, parameter in self.model.network.named_parameters(remove_duplicate=False):
            with self._engine.gathered([parameter]):
                if self._world.leads:
                    state[name] = parameter.detach().to("cpu", copy=True)
        if self._world.leads:
            buffers = {name: buffer.cpu() for name, buffer in self.model.network.named_buffers()}
            write_full_folder(buffers | state, self._base_path, folder, widen=self._widen)

    def save_state(self, folder: Path) -> None:
        """All ranks write weights and optimizer state. Raises StoreFull or StoreError."""
        self._announce("save_state", folder)
        self._engine.save(folder, STATE_TAG)

    def load_state(self, folder: Path) -> None:
        """All ranks restore what ``save_state`` wrote; only right after construction."""
        self._announce("load_state", folder)
        self._engine.load(folder, STATE_TAG)

    def close(self) -> None:
        """Free the engine; the other ranks leave ``follow``."""
        self._announce("close")
        self._engine.close()
        self._world.leave_sequence_group()

    def follow(self) -> None:
        """On ranks above 0: do what rank 0 does until it closes the Trainer.

        What fails fails on every rank alike, so this one only notes it: rank 0 decides what comes next.
        """
        command = ""
        while command != "close":
            command, arguments = self._world.broadcast()
            with _noted(command):
                getattr(self, command)(*arguments)

    def _announce(self, command: str, *arguments: Any) -> None:
        if self._world.leads:
            self._world.broadcast((command, arguments))

    def _share(self, samples: Sequence[TrainingSample]) -> list[TensorBatch]:
        shares = pack_for_ranks(
            samples,
            token_budget=self._config.micro_batch_tokens,
            ranks=self._world.replicas,
            layout=self._config.layout,
            share_prefixes=self._config.share_prefixes,
        )
        return [to_tensors(batch, self._world.device) for batch in shares[self._world.replica]]


def open_trainer(spec: TrainerSpec, *, world: World) -> Trainer:
    """Build the run's Trainer on every rank; call on rank 0."""
    world.broadcast(spec)
    return Trainer(spec, world=world)


def follow_rank(world: World, *, optimizer: OptimizerFactory | None = None) -> None:
    """The life of a rank above 0: one Trainer after the other until rank 0 dismisses it."""
    while (spec := world.broadcast()) is not None:
        with _noted("open"):
            Trainer(spec, world=world, optimizer=optimizer).follow()


def dismiss_ranks(world: World) -> None:
    """Let the other ranks end; call on rank 0."""
    world.broadcast(None)


@contextmanager
def _noted(command: str) -> Iterator[None]:
    try:
        yield
    except HoneError as error:
        log.error("rank_command_failed", command=command, error=str(error))
