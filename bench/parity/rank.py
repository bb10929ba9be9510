"""One process of one layout: rank 0 leads a Trainer through one SGD step and writes what it moved."""

import json
import time
import warnings
from collections.abc import Iterable
from pathlib import Path

import structlog
import torch
from torch import nn
from transformers.utils.logging import disable_progress_bar

from bench.parity.plan import RATE, Layout, build_samples
from learner.distributed import join_world, leave_world
from learner.trainer import Trainer, TrainerSpec, dismiss_ranks, follow_rank


def run_rank(rank: int, layout: Layout, folder: Path, base: Path, adapter: Path) -> None:
    """Meet the others in ``folder``; rank 0 writes ``result.json``."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", FutureWarning)
    disable_progress_bar()  # type: ignore[no-untyped-call]
    structlog.configure(logger_factory=structlog.ReturnLoggerFactory())
    rendezvous = f"file://{folder / 'rendezvous'}"
    world = join_world(rank=rank, size=layout.ranks, rendezvous=rendezvous)
    torch.set_num_threads(1)
    if not world.leads:
        follow_rank(world, optimizer=_sgd)
        leave_world()
        return
    started = time.monotonic()
    spec = TrainerSpec(
        config=layout.section(),
        base_path=base,
        adapter=adapter if layout.train == "lora" else None,
        learning_rate=RATE,
        seed=0,
    )
    world.broadcast(spec)
    trainer = Trainer(spec, world=world, optimizer=_sgd)
    before = trainer.trained_parameters()
    update = trainer.grpo_update(build_samples())
    after = trainer.trained_parameters()
    trainer.close()
    dismiss_ranks(world)
    leave_world()
    torch.save({name: (before[name] - after[name]) / RATE for name in before}, folder / "gradients.pt")
    found = {"loss": update.loss, "norm": update.gradient_norm, "seconds": time.monotonic() - started}
    (folder / "result.json").write_text(json.dumps(found))


def _sgd(parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=RATE)
