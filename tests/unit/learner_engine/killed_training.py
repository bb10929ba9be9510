"""Run as a program: trains the tiny model in child processes that end themselves with SIGKILL at named points.

Prints, as JSON, what each point's run had recorded after its next process went on to the end.
"""

import json
import os
import signal
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from core.sample import TrainingSample
from learner import checkpoints, deepspeed_engine, storage
from learner.checkpoints import ResumeStates
from learner.distributed import join_world
from learner.trainer import Trainer, TrainerSpec
from tests.forked import import_what, in_child

STEPS = 4
AT = 3
"""The step in which the process is killed."""


def die(*_: Any, **__: Any) -> None:
    """As if somebody pulled the plug."""
    os.kill(os.getpid(), signal.SIGKILL)


class Recorder:
    """Stands in for the store: what a step showed is there as a whole, or not at all."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self.steps: list[list[float]] = json.loads(file.read_text()) if file.exists() else []

    def record(self, *values: float) -> None:
        """Add a step."""
        self.steps.append(list(values))
        draft = self._file.with_suffix(".draft")
        draft.write_text(json.dumps(self.steps))
        draft.rename(self._file)


def train(folder: Path, spec: TrainerSpec, batches: list[list[TrainingSample]], arm: Callable[[], None]) -> None:
    """What a session does: resume, step, save, record, prune; ``arm`` is called before step AT."""
    torch.set_num_threads(1)
    world = join_world()
    recorder, states = Recorder(folder / "steps.json"), ResumeStates(folder / "resume", keep=2)
    states.sweep()
    trainer = Trainer(spec, world=world)
    state = states.newest(up_to_step=len(recorder.steps))
    del recorder.steps[state.step if state else 0 :]
    if state is not None:
        states.restore(trainer, state)
    while len(recorder.steps) < STEPS:
        step = len(recorder.steps) + 1
        if step == AT:
            arm()
        # Which batch is next comes of the generator: without its state another one would be trained on.
        update = trainer.grpo_update(batches[int(torch.randint(len(batches), ()))])
        states.save(trainer, run_id="run_1", step=step)
        if KILL_BEFORE_RECORD and step == AT and not (folder / "again").exists():
            die()
        recorder.record(update.loss, update.gradient_norm)
        states.prune()
    trainer.close()


KILL_BEFORE_RECORD: list[bool] = []


def second_call(real: Callable[..., Any]) -> Callable[..., Any]:
    """``real`` once, then the end."""
    calls: list[int] = []

    def call(*args: Any, **options: Any) -> Any:
        calls.append(1)
        return real(*args, **options) if len(calls) == 1 else die()

    return call


def points() -> dict[str, Callable[[], None]]:
    """Name → what to prepare before step AT so that the process ends there."""
    return {
        "between_steps": die,
        "in_backward": lambda: setattr(deepspeed_engine.DeepSpeedEngine, "backward", die),
        "before_the_optimizer": lambda: setattr(deepspeed_engine.DeepSpeedEngine, "step", die),
        "in_the_engines_files": lambda: setattr(torch, "save", second_call(torch.save)),
        "before_the_name_appears": lambda: setattr(storage, "_flush", die),
        "before_it_is_recorded": lambda: KILL_BEFORE_RECORD.append(True),
        "while_old_states_go": lambda: setattr(storage.shutil, "rmtree", die),
        "while_a_state_is_written_again": lambda: KILL_BEFORE_RECORD.append(True),
    }


def one_point(name: str, folder: Path, spec: TrainerSpec, batches: list[list[TrainingSample]]) -> dict[str, Any]:
    """Kill, go on (killing once more where that is the point), and say what is there."""
    folder.mkdir()
    killed = [in_child(partial(train, folder, spec, batches, points()[name]))]
    if name == "while_a_state_is_written_again":
        # The state of step AT is there and was never recorded: it is made again, and replaced.
        (folder / "again").touch()
        killed.append(
            in_child(partial(train, folder, spec, batches, lambda: setattr(checkpoints, "new_folder", die)))
        )
    visible = sorted(path.name for path in (folder / "resume").glob("step-*"))
    for path in (folder / "resume").glob("step-*"):
        state = ResumeStates(folder / "resume", keep=2).newest(up_to_step=int(path.name.removeprefix("step-")))
        checkpoints.verify_folder(path / "engine", state.checksum if state else "")
    (folder / "again").touch()
    ended = in_child(partial(train, folder, spec, batches, lambda: None))
    left = [path.name for path in (folder / "resume").iterdir()]
    return {
        "killed": [-status for status in killed],
        "visible": visible,
        "ended": ended,
        "left": sorted(left),
        "steps": json.loads((folder / "steps.json").read_text()),
    }


def main(folder: Path) -> None:
    """The uninterrupted run, then every point."""
    spec, batches = torch.load(folder / "input.pt", weights_only=False)
    torch.set_num_threads(1)
    warm, whole = folder / "warm", folder / "whole"
    warm.mkdir()
    whole.mkdir()
    import_what(partial(train, warm, spec, batches, lambda: None))
    if in_child(partial(train, whole, spec, batches, lambda: None)) != 0:
        sys.exit("the uninterrupted run failed")
    found = {name: one_point(name, folder / name, spec, batches) for name in points()}
    steps = json.loads((whole / "steps.json").read_text())
    sys.stdout.write(json.dumps({"whole": steps, "points": found}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
