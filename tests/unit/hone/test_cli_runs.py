"""``hone runs``: the list, a run's steps, and its page."""

from typing import Any

import pytest
from typer.testing import CliRunner

from core.alarm import Alarm
from core.errors import NotFound
from core.run import DomainMetrics, RunStatus, StepMetrics, TrainingRun
from hone.cli import app
from hone.commands import runs

RUN = TrainingRun(
    id="run_a",
    policy="coder",
    algorithm="grpo",
    start_version=1,
    domains=("sums",),
    planned_steps=4,
    seed=7,
    status=RunStatus.STOPPED,
    error="alarm at step 2: ess 0.1 beyond 0.3",
    steps=tuple(
        StepMetrics(
            step=number,
            version=number + 1,
            reward_mean=number / 4,
            loss=0.1,
            gradient_norm=1.0,
            values={"entropy": 1.0, "ess": 0.1},
            domains={"sums": DomainMetrics(groups=2, attempts=8, zero_variance_groups=1, reward_mean=number / 4)},
            alarms=(Alarm(name="ess", value=0.1, limit=0.3),),
        )
        for number in (1, 2)
    ),
)
LINEAGE = [{"step": 1, "version": 2, "checkpoint_id": "ckpt_a", "episode_ids": ["ep_1"]}]


class FakeAdmin:
    """An admin API with one run."""

    def __enter__(self) -> "FakeAdmin":
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def get(self, path: str, **parameters: Any) -> Any:
        known: dict[str, Any] = {
            "/runs": [RUN.model_dump(mode="json")],
            "/runs/run_a": RUN.model_dump(mode="json"),
            "/runs/run_a/lineage": LINEAGE,
        }
        if path not in known:
            raise NotFound("there is no such run")
        return known[path]


@pytest.fixture
def hone(tmp_path, monkeypatch):
    """Runs a command against the fake, in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(runs, "local_admin", lambda config: FakeAdmin())
    return lambda *arguments: CliRunner().invoke(app, ["runs", *arguments])


def test_the_list_says_how_far_each_run_got_and_why_it_ended(hone):
    """Steps, versions, status, reward from first to last, and the reason."""
    shown = hone("list")
    assert shown.exit_code == 0
    for part in ("run_a", "2/4", "@2-@3", "stopped", "0.250 → 0.500", "alarm at step 2"):
        assert part in shown.output


def test_show_has_a_line_per_step_and_domain(hone):
    """Numbers and alarms by step, groups by Domain."""
    shown = hone("show", "run_a")
    assert shown.exit_code == 0
    assert shown.output.count("ess 0.1 beyond 0.3") == 3
    assert "sums: 4 groups (2 without variance), reward 0.250 → 0.500" in shown.output


def test_page_writes_one_file(hone, tmp_path):
    """By default it bears the run's name; pictures and lineage are in it."""
    shown = hone("page", "run_a")
    assert shown.exit_code == 0
    page = (tmp_path / "run_a.html").read_text()
    assert page.count("<svg") >= 5
    assert "ckpt_a" in page
    assert hone("page", "run_a", "--output", "x.html").exit_code == 0
    assert (tmp_path / "x.html").exists()


def test_an_unknown_run_is_one_line(hone):
    """Exit code 1 and no traceback."""
    shown = hone("show", "run_b")
    assert shown.exit_code == 1
    assert "no such run" in shown.output
