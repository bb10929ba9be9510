"""DeepSpeed behind one small class: the only file that imports it.

Three of its habits are dealt with here (all read from deepspeed 0.19.8):

* ``init_distributed`` compiles a shared-memory communication extension on Linux CPUs, which takes minutes and
  looks like a hang when two ranks race. It serves inference all-reduce only, so it is marked incompatible
  (``deepspeed.ops.__compatible_ops__``) and plain gloo is used, for one rank and for many.
* ``gradient_clipping`` defaults to 1.0: it is always given. In stage 0 DeepSpeed clips and forgets the norm, so
  there the clipping is done here, at the optimizer's step.
* Its own Adam is another extension: torch's AdamW is handed in.

Gradients are averaged over ranks: a loss that is a sum over global tokens must be multiplied by the world size. That
holds in every stage and with sequence parallel too, which DeepSpeed is not told of (``learner.sequence_parallel``).
"""

import contextlib
import logging
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import deepspeed
import deepspeed.ops
import torch
from deepspeed.utils import logger as deepspeed_logger
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer
from torch.optim.lr_scheduler import LambdaLR

from core.config.learner import LearnerSection
from core.errors import CorruptArtefact, Diverged, HoneError, StoreError, StoreFull, boundary
from learner.distributed import World
from learner.schedule import rate_factor
from learner.storage import storage_errors

OptimizerFactory = Callable[[Iterable[nn.Parameter]], Optimizer]

_SHARED_MEMORY_COMM = "deepspeed_shm_comm"


def adamw(config: LearnerSection, learning_rate: float) -> OptimizerFactory:
    """torch's AdamW with the configured decay, fused: on CPUs a sixth of the plain one's time."""
    return lambda parameters: AdamW(parameters, lr=learning_rate, weight_decay=config.weight_decay, fused=True)


def dtype_of(config: LearnerSection, world: World) -> torch.dtype:
    """The dtype of weights and activations."""
    if config.precision == "auto":
        return torch.bfloat16 if world.device.type == "cuda" else torch.float32
    return torch.bfloat16 if config.precision == "bfloat16" else torch.float32


class DeepSpeedEngine:
    """One model under ZeRO stage 0-3: forward, backward, step, save, load."""

    def __init__(
        self,
        model: nn.Module,
        *,
        config: LearnerSection,
        world: World,
        optimizer: OptimizerFactory,
        outside_parameters: Iterable[nn.Parameter] = (),
    ) -> None:
        """``outside_parameters``: weights that ``model.forward`` uses without calling the module that owns them."""
        deepspeed_logger.setLevel(logging.ERROR)
        deepspeed.ops.__compatible_ops__[_SHARED_MEMORY_COMM] = False
        self._stage = config.zero_stage
        self._clipping = config.gradient_clipping
        self._world = world
        self._own_clipping = config.zero_stage == 0 and dtype_of(config, world) is torch.float32
        self._norm: float | None = None
        self._trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        chosen = optimizer(self._trained)
        if self._own_clipping:
            chosen.register_step_pre_hook(self._clip)
        outside = list(outside_parameters)
        self._engine, *_ = deepspeed.initialize(
            model=model,
            optimizer=chosen,
            lr_scheduler=LambdaLR(chosen, partial(rate_factor, config)),
            config=self._deepspeed_config(config, world),
            dist_init_required=False if deepspeed.comm.is_initialized() else None,
        )
        if self._stage == 3:
            for parameter in outside:
                deepspeed.zero.register_external_parameter(model, parameter)

    def __call__(self, **inputs: Any) -> Any:
        """``model.forward(**inputs)``."""
        return self._engine(**inputs)

    def backward(self, loss: Tensor) -> None:
        """Accumulate gradients of ``loss``; how many backward passes make a step is the caller's choice."""
        self._engine.backward(loss)

    def step(self) -> float:
        """Reduce over ranks, clip, update; the global gradient norm before clipping.

        Raises Diverged when the gradient is not finite: the weights would be lost.
        """
        self._norm = None
        self._engine.step()
        norm = self._norm if self._own_clipping else self._engine.get_global_grad_norm()
        value = float(norm) if norm is not None else float("nan")
        if not math.isfinite(value):
            raise Diverged(f"the gradient norm is {value}: training stopped before it harmed the policy")
        return value

    @contextlib.contextmanager
    def gathered(self, parameters: Sequence[nn.Parameter] | None = None) -> Iterator[None]:
        """Inside, trained parameters, or those given, are whole on every rank (ZeRO-3 shards them).

        Call on all ranks.
        """
        if self._stage < 3:
            yield
            return
        with deepspeed.zero.GatheredParameters(self._trained if parameters is None else list(parameters)):
            yield

    def save(self, folder: Path, tag: str) -> None:
        """Write weights, optimizer, learning-rate schedule and each rank's random generators (all ranks).

        Raises StoreFull or StoreError, on every rank when one of them could not write.
        """
        failure: HoneError | None = None
        try:
            with storage_errors("writing the training state", folder), self._late_write_errors():
                self._engine.save_checkpoint(str(folder), tag=tag, exclude_frozen_parameters=True)
                torch.save(_generators(self._world), folder / f"generators-{self._world.rank}.pt")
        except (StoreError, StoreFull) as error:
            failure = error
        failed = self._world.sum([float(failure is not None)])[0] > 0
        if failure is not None:
            raise failure
        if failed:
            raise StoreError(f"writing the training state: another rank could not write below {folder}")

    @contextlib.contextmanager
    def _late_write_errors(self) -> Iterator[None]:
        """Inside, DeepSpeed's files fail to be written only at the end: there are barriers between them.

        A rank that left early would meet the others' barrier with its next collective.
        """
        writer = self._engine.checkpoint_engine
        write, errors = writer.save, []

        def noted(*arguments: Any, **named: Any) -> Any:
            try:
                return write(*arguments, **named)
            except Exception as error:  # noqa: BLE001 - of torch's writer, which raises many kinds; raised below
                errors.append(error)

        writer.save = noted
        try:
            yield
        finally:
            writer.save = write
        if errors:
            raise errors[0]

    def load(self, folder: Path, tag: str) -> None:
        """Restore what ``save`` wrote into a fresh engine (all ranks). Raises CorruptArtefact.

        The files are pickles: load only folders whose checksum was verified.
        """
        with boundary(CorruptArtefact, f"reading the training state in {folder}"):
            path, _ = self._engine.load_checkpoint(str(folder), tag=tag, load_module_strict=False)
            _set_generators(torch.load(folder / f"generators-{self._world.rank}.pt", weights_only=True))
        if path is None:
            raise CorruptArtefact(f"the training state in {folder} lacks {tag}")

    def close(self) -> None:
        """Drop hooks and buffers."""
        self._engine.destroy()

    def _clip(self, optimizer: Optimizer, *_: Any) -> None:
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        limit = self._clipping if self._clipping > 0 else float("inf")
        self._norm = float(nn.utils.clip_grad_norm_(parameters, limit, error_if_nonfinite=False))
        if not math.isfinite(self._norm):
            raise Diverged(f"the gradient norm is {self._norm}: training stopped before it harmed the policy")

    def _deepspeed_config(self, config: LearnerSection, world: World) -> dict[str, Any]:
        half = dtype_of(config, world) is torch.bfloat16
        # Of many small micro-batches bfloat16 would lose those that are added last; stage 0 refuses another dtype.
        accumulated = {"data_types": {"grad_accum_dtype": "fp32"}} if half and config.zero_stage else {}
        return {
            **accumulated,
            "train_micro_batch_size_per_gpu": 1,
            "gradient_accumulation_steps": 1,
            # step() is the boundary: the number of micro-batches differs from step to step.
            "managed_gradient_accumulation": False,
            "gradient_clipping": 0.0 if self._own_clipping else config.gradient_clipping,
            "zero_optimization": self._zero(config),
            "zero_allow_untested_optimizer": True,
            "zero_force_ds_cpu_optimizer": False,
            "bf16": {"enabled": half},
            "steps_per_print": None,
            **{key: value for key, value in config.deepspeed.items() if key != "zero_optimization"},
        }

    @staticmethod
    def _zero(config: LearnerSection) -> dict[str, Any]:
        zero: dict[str, Any] = {"stage": config.zero_stage}
        if config.offload_optimizer:
            zero["offload_optimizer"] = {"device": "cpu", "pin_memory": False}
        if config.offload_parameters:
            zero["offload_param"] = {"device": "cpu", "pin_memory": False}
        given: dict[str, Any] = config.deepspeed.get("zero_optimization", {})
        return {**zero, **given, "stage": config.zero_stage}


def _generators(world: World) -> dict[str, Tensor]:
    found = {"cpu": torch.get_rng_state()}
    if world.device.type == "cuda":
        found["cuda"] = torch.cuda.get_rng_state(world.device)
    return found


def _set_generators(found: dict[str, Tensor]) -> None:
    torch.set_rng_state(found["cpu"])
    if "cuda" in found and torch.cuda.is_available():
        torch.cuda.set_rng_state(found["cuda"])
