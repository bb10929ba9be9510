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
from core.errors import HoneError
from core.sample import TrainingSample
from learner.batch import TensorBatch, pad_sequences, to_tensors
from learner.deepspeed_engine import DeepSpeedEngine, OptimizerFactory, adamw
from learner.distributed import World
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
    """Adapter folder of the version to start from; None: version 0, a fresh adapter."""
    learning_rate: float
    seed: int


class Trainer:
    """Updates one PolicyModel; not thread-safe: call it from one thread."""

    def __init__(self, spec: TrainerSpec, *, world: World, optimizer: OptimizerFactory | None = None) -> None:
        """``optimizer`` replaces AdamW. Raises LearnerError or CorruptArtefact when the model cannot be built."""
        self._config = spec.config
        self._world = world
        self.model = build_policy_model(
            spec.base_path,
            lora=spec.config.lora,
            adapter=spec.adapter,
            device=world.device,
            seed=spec.seed,
            trees=spec.config.layout == "flat",
        )
        # Dropout would make the learner's distribution another one than the engine's.
        self.model.eval()
        if spec.config.gradient_checkpointing:
            self.model.checkpoint_gradients()
        self.lora_rank = self.model.lora_rank
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

    def trained_parameters(self) -> dict[str, Tensor]:
        """Copies of the adapter's parameters by name, for inspection."""
        self._announce("trained_parameters")
        with self._engine.gathered():
            return {
                name: parameter.detach().cpu().clone()
                for name, parameter in self.model.network.named_parameters()
                if parameter.requires_grad
            }

    def export_adapter(self, folder: Path) -> None:
        """Rank 0 writes the adapter as a PEFT folder."""
        self._announce("export_adapter", folder)
        with self._engine.gathered():
            if self._world.leads:
                self.model.export_adapter(folder)

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
            ranks=self._world.size,
            layout=self._config.layout,
            share_prefixes=self._config.share_prefixes,
        )
        return [to_tensors(batch, self._world.device) for batch in shares[self._world.rank]]


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
