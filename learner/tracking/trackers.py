"""TensorBoard and Weights & Biases through their own libraries, which are imported here and only when configured."""

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import structlog

from core.config.learner_watch import TrackingSection
from core.errors import ConfigurationError
from core.run import StepMetrics, TrainingRun
from learner.tracking.base import Tracker, scalars

log = structlog.get_logger(__name__)


class TensorBoardTracker:
    """Writes event files that TensorBoard shows."""

    def __init__(self, folder: Path, run: TrainingRun) -> None:
        """Raises ConfigurationError when the library is missing."""
        library = _library("tensorboardX", key="learner.tracking.tensorboard", extra="tensorboard")
        # A resumed run does steps again: what the events said of them is purged.
        self._writer: Any = library.SummaryWriter(
            logdir=str(folder), purge_step=len(run.steps) + 1 if run.steps else None
        )
        self._writer.add_text("config", f"```\n{run.config}\n```", 0)

    def step(self, step: StepMetrics) -> None:
        """Add the step's scalars."""
        for name, value in scalars(step).items():
            self._writer.add_scalar(name, value, step.step, walltime=step.created_at)
        self._writer.flush()

    def close(self) -> None:
        """Write out what is left."""
        self._writer.close()


class WandbTracker:
    """Sends steps to one run of a Weights & Biases project; a resumed run goes on in it."""

    def __init__(self, folder: Path, run: TrainingRun, config: TrackingSection) -> None:
        """Raises ConfigurationError when the library is missing."""
        library = _library("wandb", key="learner.tracking.wandb_project", extra="wandb")
        folder.mkdir(parents=True, exist_ok=True)
        self._run: Any = library.init(
            project=config.wandb_project,
            mode=config.wandb_mode,
            id=run.id,
            name=run.id,
            resume="allow",
            group=run.policy,
            job_type=run.algorithm,
            config={**run.config, "domains": list(run.domains), "seed": run.seed, "start_version": run.start_version},
            dir=str(folder),
        )

    def step(self, step: StepMetrics) -> None:
        """Send the step's scalars."""
        self._run.log(scalars(step), step=step.step)

    def close(self) -> None:
        """Send what is left."""
        self._run.finish()


class Trackers:
    """Several trackers as one; one that fails is logged and left out from then on."""

    def __init__(self, trackers: Sequence[Tracker]) -> None:
        self._trackers = list(trackers)

    def step(self, step: StepMetrics) -> None:
        """Tell all of them."""
        for tracker in list(self._trackers):
            try:
                tracker.step(step)
            except Exception as error:  # noqa: BLE001 - somebody else's library; training goes on without it
                self._trackers.remove(tracker)
                log.warning("tracker_failed", tracker=type(tracker).__name__, error=str(error))

    def close(self) -> None:
        """Close all of them."""
        for tracker in self._trackers:
            try:
                tracker.close()
            except Exception as error:  # noqa: BLE001 - as above
                log.warning("tracker_not_closed", tracker=type(tracker).__name__, error=str(error))


def open_trackers(config: TrackingSection, *, folder: Path, run: TrainingRun) -> Trackers:
    """The configured trackers of ``run``; ``folder`` is the run's own.

    Raises ConfigurationError that names the key and the extra when a library is missing.
    """
    trackers: list[Tracker] = []
    if config.tensorboard:
        trackers.append(TensorBoardTracker(folder / "tensorboard", run))
    if config.wandb_project:
        trackers.append(WandbTracker(folder / "wandb", run, config))
    return Trackers(trackers)


def _library(name: str, *, key: str, extra: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ConfigurationError(
            f"{key} is set, and {name} is not installed", hint=f"pip install 'hone[{extra}]', or unset the key"
        ) from error
