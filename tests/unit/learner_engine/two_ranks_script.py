"""Run as a program, one process per rank: one SGD step for each case in a file; rank 0 writes what changed."""

import sys
from pathlib import Path
from typing import Any

import torch

from learner.distributed import World, join_world, leave_world
from learner.trainer import Trainer, dismiss_ranks, follow_rank


def main(rank: int, size: int, folder: Path) -> None:
    """Meet the other ranks, then lead or follow."""
    world = join_world(rank=rank, size=size, rendezvous=f"file://{folder / 'rendezvous'}")
    if not world.leads:
        follow_rank(world, optimizer=sgd)
        leave_world()
        return
    results = []
    for index, (spec, samples, algorithm) in enumerate(torch.load(folder / "input.pt", weights_only=False)):
        results.append(one_case(world, folder / str(index), spec, samples, algorithm))
    dismiss_ranks(world)
    leave_world()
    torch.save(results, folder / "output.pt")


def one_case(world: World, folder: Path, spec: Any, samples: Any, algorithm: str) -> tuple[Any, ...]:
    """Loss, norm, values, what moved, and whether the saved state loads back exactly."""
    trainer = opened(world, spec)
    before = trainer.trained_parameters()
    update = trainer.grpo_update(samples) if algorithm == "grpo" else trainer.sft_update(samples)
    after = trainer.trained_parameters()
    trainer.export_adapter(folder / "exported")
    trainer.save_state(folder / "state")
    trainer.close()
    again = opened(world, spec)
    again.load_state(folder / "state")
    restored = again.trained_parameters()
    again.close()
    difference = {name: before[name] - after[name] for name in before}
    same = all(torch.equal(after[name], restored[name]) for name in after)
    return update.loss, update.gradient_norm, update.values, difference, same


def opened(world: World, spec: Any) -> Trainer:
    """``open_trainer``, with SGD."""
    world.broadcast(spec)
    return Trainer(spec, world=world, optimizer=sgd)


def sgd(parameters: Any) -> torch.optim.Optimizer:
    """A parameter moves by exactly its gradient."""
    return torch.optim.SGD(parameters, lr=1.0)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]))
