"""The box that a Task's limits ask for."""

import math

from core.task import Task
from sandbox.runtimes.base import BoxSpec

_WALL_PER_CPU = 4.0


def box_spec(task: Task) -> BoxSpec:
    """A box with the Task's files and limits.

    ``limits.tool_seconds`` is CPU time; wall time is four times as much, so that a busy machine, which is not
    the policy's doing, does not turn a right answer into a time-out.
    """
    limits = task.limits
    return BoxSpec(
        files=task.files,
        cpu_seconds=max(1, math.ceil(limits.tool_seconds)),
        wall_seconds=limits.tool_seconds * _WALL_PER_CPU,
        memory_mib=limits.memory_mib,
    )
