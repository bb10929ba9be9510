"""World: the ranks that train together, and what they say to one another.

Rank 0 talks to the store; the other ranks get everything by broadcast. One rank uses an in-process store, so
that no port is opened; several ranks meet at a file or at ``tcp://127.0.0.1:port``.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import torch
import torch.distributed

from core.config.load import announce_local_rank, launcher_variables
from core.errors import ConfigurationError, LearnerError
from learner.sequence_parallel import SequenceGroup

_COLLECTIVE_SECONDS = 600.0
"""Longest time that ranks may be apart inside a training step, or while they meet."""
_IDLE = timedelta(days=365)
"""Other ranks wait for rank 0 while it has no job; a rank that died closes its connections at once."""


@dataclass(frozen=True)
class World:
    """This process's place among the training ranks."""

    rank: int
    size: int
    device: torch.device
    control: Any = None
    """gloo group for orders and small sums; None with a single rank."""
    sequence: SequenceGroup | None = None
    """The ranks that this one shares rows of tokens with; None: each rank has its own."""

    @property
    def leads(self) -> bool:
        """Whether this is rank 0, the only one that does I/O."""
        return self.rank == 0

    @property
    def replicas(self) -> int:
        """How many ranks, or groups of ranks, have rows of their own."""
        return self.size if self.sequence is None else self.size // self.sequence.size

    @property
    def replica(self) -> int:
        """Which of them this rank belongs to."""
        return self.rank if self.sequence is None else self.rank // self.sequence.size

    def in_sequence_groups(self, size: int) -> "World":
        """This World with neighbouring ranks in groups of ``size``; call it on every rank.

        Raises ConfigurationError where they do not divide.
        """
        if size == 1:
            return self
        if self.size % size:
            raise ConfigurationError(
                f"learner.sequence_parallel is {size}, and {self.size} ranks do not divide into groups of {size}",
                param="learner.sequence_parallel",
            )
        groups = [
            torch.distributed.new_group(list(range(first, first + size))) for first in range(0, self.size, size)
        ]
        own = SequenceGroup(rank=self.rank % size, size=size, group=groups[self.rank // size])
        return replace(self, sequence=own)

    def leave_sequence_group(self) -> None:
        """Give up what ``in_sequence_groups`` made."""
        if self.sequence is not None:
            torch.distributed.destroy_process_group(self.sequence.group)

    def wait_for_all(self) -> None:
        """Return once every rank has come here. Raises LearnerError when a rank is gone."""
        self.sum([0.0])

    def broadcast(self, value: Any = None) -> Any:
        """Rank 0's ``value`` on every rank. Raises LearnerError when a rank is gone."""
        if self.size == 1:
            return value
        box = [value]
        try:
            torch.distributed.broadcast_object_list(box, src=0, group=self.control)
        except RuntimeError as error:
            raise LearnerError(f"a training rank is gone: {error}") from error
        return box[0]

    def sum(self, values: Sequence[float]) -> list[float]:
        """Element-wise sums over all replicas, in float64; ranks that share rows must give the same values."""
        if self.size == 1:
            return [float(value) for value in values]
        tensor = torch.tensor(list(values), dtype=torch.float64)
        try:
            torch.distributed.all_reduce(tensor, group=self.control)
        except RuntimeError as error:
            raise LearnerError(f"a training rank is gone: {error}") from error
        shared = 1 if self.sequence is None else self.sequence.size
        return [float(value) / shared for value in tensor.tolist()]


def is_launched() -> bool:
    """Whether ``torchrun`` or ``deepspeed`` started this process as one of several ranks."""
    return launcher_variables().get("WORLD_SIZE", 1) > 1


def is_follower() -> bool:
    """Whether a launcher started this process as another rank than the one that leads."""
    return is_launched() and launcher_variables().get("RANK", 0) > 0


def join_world(
    *,
    rank: int = 0,
    size: int = 1,
    rendezvous: str | None = None,
    timeout_seconds: float = _COLLECTIVE_SECONDS,
) -> World:
    """Enter the process group (once per process; later calls return the same place).

    ``rendezvous``: a ``file://`` or ``tcp://`` URL, needed for more than one rank that no launcher started.
    Raises LearnerError when the ranks cannot meet.
    """
    local_rank, launched = rank, launcher_variables()
    if rendezvous is None and is_launched():
        rank, size, rendezvous = launched["RANK"], launched["WORLD_SIZE"], "env://"
        local_rank = launched.get("LOCAL_RANK", rank)
    announce_local_rank(local_rank)
    cuda = torch.cuda.is_available()
    if cuda:
        torch.cuda.set_device(local_rank % torch.cuda.device_count())
    elif size > 1:
        torch.set_num_threads(max(1, (os.cpu_count() or size) // size))
    if not torch.distributed.is_initialized():
        _enter_group("nccl" if cuda else "gloo", rank, size, rendezvous, timedelta(seconds=timeout_seconds))
    if torch.distributed.get_world_size() != size:
        raise LearnerError(f"this process already trains with {torch.distributed.get_world_size()} ranks, not {size}")
    device = torch.device("cuda", torch.cuda.current_device()) if cuda else torch.device("cpu")
    control = None
    if size > 1:
        control = torch.distributed.new_group(backend="gloo", timeout=_IDLE)
    return World(rank=torch.distributed.get_rank(), size=size, device=device, control=control)


def leave_world() -> None:
    """Leave the process group; the process cannot train with DeepSpeed afterwards."""
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def _enter_group(backend: str, rank: int, size: int, rendezvous: str | None, timeout: timedelta) -> None:
    if size == 1:
        torch.distributed.init_process_group(
            backend,
            store=torch.distributed.HashStore(),  # type: ignore[attr-defined]
            rank=0,
            world_size=1,
            timeout=timeout,
        )
        return
    if rendezvous is None:
        raise LearnerError("several training ranks need a rendezvous", hint="give a file:// or tcp:// URL")
    try:
        torch.distributed.init_process_group(
            backend, init_method=rendezvous, rank=rank, world_size=size, timeout=timeout
        )
    except (RuntimeError, ValueError) as error:
        raise LearnerError(f"the training ranks could not meet at {rendezvous}: {error}") from error
