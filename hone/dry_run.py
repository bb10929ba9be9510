"""``hone train --dry-run``: what a run would need, and whether it can be, without starting anything."""

import asyncio
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path

import psutil
from rich.table import Table

from core.config.learner import LearnerSection
from core.errors import LearnerError
from core.task import Split, Task
from hone.output import table
from learner.estimate.memory import MemoryEstimate, estimate_memory
from learner.estimate.model_shape import ModelShape, read_model_shape
from learner.estimate.speed import CPU_USE, StepWork, gpu_flops, matrix_flops, measured_rates, step_work
from learner.task_pool import conversation_tokens
from store.store import Store

_SAMPLED_TASKS = 500
"""Of each Domain, whose lengths are looked at."""
_GIB = 1 << 30
_QUERY_SECONDS = 10.0


@dataclass(frozen=True)
class Device:
    """Where a rank trains."""

    kind: str
    """``cpu`` or ``cuda``."""
    name: str
    total: int
    """Bytes of one device; of a CPU, all main memory, which its ranks share."""
    count: int = 1


@dataclass(frozen=True)
class Forecast:
    """What a run would need."""

    shape: ModelShape
    device: Device
    memory: MemoryEstimate
    """Of one rank."""
    work: StepWork
    train_seconds: float | None
    """A step; None where the GPU is not known."""
    wait_seconds: float | None
    """A step waits so long for Episodes, as measured before; None: unknown until a run has been."""
    basis: str
    """Where the times come from."""
    longest: int
    """Tokens of the longest conversation that a Task allows."""


async def forecast(
    store: Store,
    config: LearnerSection,
    *,
    policy: str,
    domains: Sequence[str],
    device: Device,
    algorithm: str = "grpo",
) -> Forecast:
    """Of a ``grpo`` or ``sft`` run. Raises LearnerError without Tasks, NotFound for an unknown Policy."""
    split: Split = "warmup" if algorithm == "sft" else "train"
    async with store.reading() as work:
        base = await work.bases.get((await work.policies.get(policy)).base)
        runs = await work.runs.list(policy)
        tasks = [
            task
            for domain in domains
            for task in await work.tasks.list(domain=domain, split=split, limit=_SAMPLED_TASKS)
        ]
    shape = await asyncio.to_thread(read_model_shape, Path(base.path))
    if not tasks:
        raise LearnerError(f"no Task of split '{split}' in {', '.join(domains)}", hint="import Tasks first")
    longest = max(conversation_tokens(task) for task in tasks)
    prompt, response = _typical(tasks, algorithm)
    if algorithm == "sft":
        alone = {"groups_per_step": config.sft_batch, "group_size": 1, "updates_per_batch": 1}
        load = step_work(shape, config.model_copy(update=alone), prompt=prompt, response=response)
    else:
        load = step_work(shape, config, prompt=prompt, response=response)
    measured: tuple[float | None, float | None] | None = measured_rates(runs, config, algorithm=algorithm)
    basis = "this Policy's newest run like it"
    if measured is None:
        measured = await _computed(load, config, device), None
        basis = "operations a step over the machine's speed, every answer as long as its limit"
    return Forecast(
        shape=shape,
        device=device,
        memory=estimate_memory(
            shape,
            config,
            ranks=config.ranks,
            device=device.kind,
            longest_sample=longest,
            step_tokens=load.tokens,
        ),
        work=load,
        train_seconds=measured[0],
        wait_seconds=measured[1],
        basis=basis,
        longest=longest,
    )


def check_layout(found: Forecast, config: LearnerSection, *, size: int | None = None) -> None:
    """Raise LearnerError, with what to change, when the run cannot be as configured.

    ``size``: bytes that a device has for it; None: what the device has in all.
    """
    shape = found.shape
    missing = shape.missing_modules(config.lora.target_modules) if config.train == "lora" else []
    if missing:
        raise LearnerError(
            f"the base model has no linear layer called {', '.join(missing)}",
            hint="set learner.lora.target_modules to its layers' names",
        )
    if shape.heads % config.sequence_parallel:
        raise LearnerError(
            f"learner.sequence_parallel {config.sequence_parallel} does not divide the {shape.heads} attention heads",
            hint=f"use a divisor of {shape.heads}",
        )
    data_ranks = config.ranks // config.sequence_parallel
    if config.groups_per_step * config.group_size < data_ranks:
        raise LearnerError(
            f"a step has fewer attempts ({config.groups_per_step * config.group_size}) than ranks ({data_ranks})",
            hint="raise learner.groups_per_step, or lower learner.ranks",
        )
    if found.device.kind == "cuda" and config.ranks > found.device.count:
        raise LearnerError(
            f"learner.ranks is {config.ranks}, and this machine has {found.device.count} GPU",
            hint="lower learner.ranks, or start the learner with a launcher on several machines",
        )
    if shape.context and found.longest > shape.context:
        raise LearnerError(
            f"a Task allows about {found.longest} tokens of conversation, and the model's context is {shape.context}",
            hint="lower the Tasks' limits",
        )
    _check_memory(found, config, found.device.total if size is None else size)


def forecast_table(found: Forecast, config: LearnerSection, *, steps: int) -> Table:
    """The forecast as rows for a terminal."""
    rows = table("what", "amount", "note")
    each = "a rank" if config.ranks > 1 else ""
    for field in fields(found.memory):
        amount = getattr(found.memory, field.name)
        if amount:
            rows.add_row(field.name, _gib(amount), "in main memory" if field.name == "host" else each)
    device = found.device
    room = f"of {_gib(device.total)}, {device.name}"
    rows.add_row("[bold]memory[/]", _gib(found.memory.total * _sharing(found, config)), room)
    rows.add_row("tokens a step", f"{found.work.tokens:,}", f"{found.work.response_tokens:,} sampled")
    rows.add_row("operations a step", f"{found.work.flops:.2e}", "")
    trained = "unknown" if found.train_seconds is None else _duration(found.train_seconds)
    waited = "unknown before a first run" if found.wait_seconds is None else _duration(found.wait_seconds)
    rows.add_row("training a step", trained, found.basis)
    rows.add_row("waiting for Episodes a step", waited, "")
    if found.train_seconds is not None:
        total = steps * (found.train_seconds + (found.wait_seconds or 0.0))
        rows.add_row("[bold]time[/]", _duration(total), f"{steps} steps" + _without(found))
    return rows


def present_device() -> Device:
    """This machine's first GPU as ``nvidia-smi`` names it, or its processors."""
    program = shutil.which("nvidia-smi")
    if program is not None:
        command = [program, "--query-gpu=name,memory.total", "--format=csv,noheader,nounits"]
        try:
            shown = subprocess.run(command, capture_output=True, text=True, timeout=_QUERY_SECONDS, check=True)
            lines = shown.stdout.strip().splitlines()
            name, mebibytes = lines[0].rsplit(",", 1)
            return Device(kind="cuda", name=name.strip(), total=int(mebibytes) << 20, count=len(lines))
        except (OSError, subprocess.SubprocessError, ValueError, IndexError) as error:
            raise LearnerError(f"nvidia-smi did not say which GPU this is: {error}") from error
    count = psutil.cpu_count(logical=False) or 1
    return Device(kind="cpu", name=f"main memory, {count} cores", total=psutil.virtual_memory().total)


def free_bytes(device: Device) -> int:
    """What a run can have of the device now; of a GPU, all of it."""
    return psutil.virtual_memory().available if device.kind == "cpu" else device.total


async def _computed(load: StepWork, config: LearnerSection, device: Device) -> float | None:
    if device.kind == "cpu":
        # Ranks on one machine share its cores.
        return load.flops / (CPU_USE * await asyncio.to_thread(matrix_flops))
    speed = gpu_flops(device.name)
    return None if speed is None else load.flops / (speed * config.ranks)


def _check_memory(found: Forecast, config: LearnerSection, size: int) -> None:
    needed = found.memory.total * _sharing(found, config)
    if needed <= size:
        return
    ways = []
    if not config.gradient_checkpointing:
        ways.append("learner.gradient_checkpointing = true")
    if config.micro_batch_tokens > found.longest:
        ways.append(f"learner.micro_batch_tokens down to {max(found.longest, 64)}")
    if found.device.kind == "cuda":
        if config.ranks > 1 and config.zero_stage < 3:
            ways.append("learner.zero_stage = 3")
        if not config.offload_optimizer:
            ways.append("learner.offload_optimizer = true (with learner.zero_stage 1 and above)")
    if config.train == "full":
        ways.append('learner.train = "lora"')
    raise LearnerError(
        f"the run would need about {_gib(needed)}, and there are {_gib(size)} ({found.device.name})",
        hint="; ".join(ways) or "use a smaller base model or a larger machine",
    )


def _sharing(found: Forecast, config: LearnerSection) -> int:
    """How many ranks share one device's memory."""
    return config.ranks if found.device.kind == "cpu" else 1


def _typical(tasks: Sequence[Task], algorithm: str) -> tuple[int, int]:
    """Mean tokens of prompts, and of what is learned: all answers at their limit, or demonstrations."""
    answers = [task.limits.max_turns * task.limits.max_tokens for task in tasks]
    whole = [conversation_tokens(task) for task in tasks]
    prompt = (sum(whole) - sum(answers)) // len(tasks)
    if algorithm == "sft":
        return prompt, max(1, sum(len(task.demonstration or "") for task in tasks) // (4 * len(tasks)))
    return prompt, sum(answers) // len(tasks)


def _without(found: Forecast) -> str:
    return "" if found.wait_seconds is not None else ", without waiting for Episodes"


def _gib(amount: int) -> str:
    return f"{amount / _GIB:.2f} GiB"


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.1f} s"
    minutes = seconds / 60
    return f"{minutes:.0f} min" if minutes < 120 else f"{minutes / 60:.1f} h"
