"""``hone experiments``: what is asked of the admin API, and what is shown."""

from typing import Any

import pytest
from typer.testing import CliRunner

from core.config.schema import HoneConfig
from core.experiment import Arm, Experiment
from core.ramp import gather_evidence
from hone.cli import app
from hone.commands import experiments

ARMS = (Arm(name="promoted", version=1, share=0.8), Arm(name="candidate", version=2, share=0.2))
ONE = Experiment(id="exp_1", policy="coder", kind="ab", arms=ARMS, salt="s", stage=2)


class FakeAdmin:
    """An admin API with one Experiment; keeps what was posted."""

    def __init__(self) -> None:
        self.posted: list[tuple[str, Any]] = []

    def __enter__(self) -> "FakeAdmin":
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def get(self, path: str, **_: object) -> Any:
        """One answer of each path."""
        one = ONE.model_dump(mode="json")
        if path.endswith("/report"):
            evidence = gather_evidence(ONE, [], now=1.0).model_dump(mode="json")
            return {"experiment": one, "evidence": evidence, "against": ["guardrail error is broken"]}
        return [one] if path == "/experiments" else {"experiment": one, "episodes": {"candidate": 7, "mixed": 1}}

    def post(self, path: str, body: Any = None) -> Any:
        """Keep it."""
        self.posted.append((path, body))
        return ONE.model_dump(mode="json")


@pytest.fixture
def admin(monkeypatch: pytest.MonkeyPatch) -> FakeAdmin:
    """In place of a running installation."""
    fake = FakeAdmin()
    monkeypatch.setattr(experiments, "load_settings", HoneConfig)
    monkeypatch.setattr(experiments, "local_admin", lambda _config: fake)
    return fake


def run(*arguments: str) -> str:
    """What a command prints."""
    result = CliRunner().invoke(app, ["experiments", *arguments])
    assert result.exit_code == 0, result.output
    return result.output


def test_it_lists_shows_and_reports(admin: FakeAdmin) -> None:
    """Arms with versions and shares, counts by arm, every guardrail, and what speaks against the candidate."""
    assert "exp_1" in run("list")
    shown = run("show", "exp_1")
    assert "promoted 1 80%, candidate 2 20%" in shown
    assert "candidate: 7 Episodes" in shown
    report = run("report", "exp_1")
    assert "split: as planned" in report
    assert "invalid_tool_call" in report
    assert "against the candidate: guardrail error is broken" in report


def test_it_begins_moves_and_stops(admin: FakeAdmin) -> None:
    """Each command is one call; without a version the Variants are compared."""
    run("begin", "coder", "--version", "2", "--share", "0.05", "--key", "user", "--reason", "new")
    run("begin", "coder")
    run("move", "exp_1", "0.5")
    run("stop", "exp_1", "--reason", "enough")
    assert admin.posted == [
        (
            "/experiments",
            {"policy": "coder", "share": 0.05, "key": "user", "reason": "new", "candidate_version": 2},
        ),
        (
            "/experiments",
            {"policy": "coder", "share": 0.01, "key": "episode", "reason": None, "candidate_variant": "fast"},
        ),
        ("/experiments/exp_1/share", {"share": 0.5}),
        ("/experiments/exp_1/stop", {"reason": "enough"}),
    ]
