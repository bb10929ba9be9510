"""Where a run's metrics go: TensorBoard, Weights & Biases, and what happens without them."""

import sys
from types import SimpleNamespace

import pytest

from core.config.learner_watch import TrackingSection
from core.errors import ConfigurationError
from core.run import DomainMetrics, StepMetrics, TrainingRun
from learner.tracking.base import scalars
from learner.tracking.trackers import Trackers, open_trackers

RUN = TrainingRun(
    id="run_1", policy="coder", algorithm="grpo", start_version=1, domains=("sums",), planned_steps=2, seed=5
)
STEP = StepMetrics(
    step=1,
    version=2,
    reward_mean=0.5,
    loss=0.25,
    gradient_norm=1.5,
    values={"ess": 0.75},
    domains={"sums/easy": DomainMetrics(groups=2, attempts=8, zero_variance_groups=1, reward_mean=0.5)},
)


def test_scalars_name_the_whole_and_each_domain() -> None:
    """Every number has a name, and what is unknown is left out."""
    named = scalars(STEP)
    assert (named["train/loss"], named["train/ess"], named["train/version"]) == (0.25, 0.75, 2.0)
    assert named["domain/sums/easy/zero_variance_groups"] == 1.0
    assert "train/success_rate" not in named
    assert "domain/sums/easy/success_rate" not in named


def test_tensorboard_gets_an_event_file(tmp_path) -> None:
    """Steps are in the run's own folder, under their names."""
    trackers = open_trackers(TrackingSection(tensorboard=True), folder=tmp_path, run=RUN)
    trackers.step(STEP)
    trackers.close()
    (file,) = (tmp_path / "tensorboard").glob("events.out.tfevents.*")
    written = file.read_bytes()
    assert b"train/loss" in written
    assert b"domain/sums/easy/reward_mean" in written


@pytest.mark.parametrize(
    ("module", "section", "extra"),
    [
        ("tensorboardX", TrackingSection(tensorboard=True), "hone[tensorboard]"),
        ("wandb", TrackingSection(wandb_project="p"), "hone[wandb]"),
    ],
)
def test_a_missing_library_is_said_with_its_extra(module, section, extra, tmp_path, monkeypatch) -> None:
    """What is configured and not installed is a ConfigurationError that names key and extra."""
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ConfigurationError, match=r"learner\.tracking") as caught:
        open_trackers(section, folder=tmp_path, run=RUN)
    assert extra in (caught.value.hint or "")


def test_wandb_is_told_run_configuration_and_steps(tmp_path, monkeypatch) -> None:
    """One run by Hone's own id, which a resumed run goes on in; steps by number; closed at the end."""
    calls: list[tuple[str, object]] = []
    run = SimpleNamespace(
        log=lambda values, step: calls.append(("log", (step, values["train/loss"]))),
        finish=lambda: calls.append(("finish", None)),
    )
    given: dict[str, object] = {}

    def init(**options: object) -> SimpleNamespace:
        given.update(options)
        return run

    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=init))
    trackers = open_trackers(TrackingSection(wandb_project="p", wandb_mode="offline"), folder=tmp_path, run=RUN)
    trackers.step(STEP)
    trackers.close()
    assert (given["project"], given["id"], given["resume"], given["mode"]) == ("p", "run_1", "allow", "offline")
    assert calls == [("log", (1, 0.25)), ("finish", None)]


def test_a_failing_tracker_ends_no_run() -> None:
    """It is left out from then on, and the others go on."""
    seen = []

    class Failing:
        def step(self, step: StepMetrics) -> None:
            raise OSError("no network")

        def close(self) -> None:
            raise AssertionError("it was left out")

    class Noting:
        def step(self, step: StepMetrics) -> None:
            seen.append(step.step)

        def close(self) -> None:
            seen.append(0)

    trackers = Trackers([Failing(), Noting()])
    trackers.step(STEP)
    trackers.step(STEP)
    trackers.close()
    assert seen == [1, 1, 0]


def test_nothing_configured_is_nothing(tmp_path) -> None:
    """Without trackers, no folder appears."""
    trackers = open_trackers(TrackingSection(), folder=tmp_path / "run", run=RUN)
    trackers.step(STEP)
    trackers.close()
    assert not (tmp_path / "run").exists()
