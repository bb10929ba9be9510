"""``hone shadow``: what is asked of the admin API, and what is shown."""

from typing import Any

import pytest
from typer.testing import CliRunner

from core.config.schema import HoneConfig
from core.experiment import Arm, Experiment
from core.shadow import ShadowPair, ShadowStatus
from core.shadow_report import shadow_report
from hone.cli import app
from hone.commands import shadow

ARMS = (Arm(name="primary", version=1, share=1.0), Arm(name="candidate", version=2, share=0.0))
ONE = Experiment(id="exp_1", policy="coder", kind="shadow", arms=ARMS, salt="s", sample_share=0.25)
PAIR = ShadowPair(
    id="p",
    experiment_id="exp_1",
    policy="coder",
    domain="[bold]maths[/]",
    turn_id="turn_1",
    episode_id="ep_1",
    status=ShadowStatus.SCORED,
    primary_arm="primary",
    candidate_arm="candidate",
    primary_score=0.0,
    candidate_score=1.0,
    candidate_events=("refusal",),
)


class FakeAdmin:
    """An admin API with one shadow; keeps what was posted."""

    def __init__(self) -> None:
        self.posted: list[tuple[str, Any]] = []

    def __enter__(self) -> "FakeAdmin":
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def get(self, path: str, **_: object) -> Any:
        """One answer of each path."""
        if path.endswith("/report"):
            report = shadow_report(ONE, [PAIR], {"scored": 1, "skipped": 3, "skipped:busy": 3})
            return {"experiment": ONE.model_dump(mode="json"), "report": report.model_dump(mode="json")}
        return [ONE.model_dump(mode="json")]

    def post(self, path: str, body: Any = None) -> Any:
        """Keep it."""
        self.posted.append((path, body))
        return ONE.model_dump(mode="json")


@pytest.fixture
def admin(monkeypatch: pytest.MonkeyPatch) -> FakeAdmin:
    """In place of a running installation."""
    fake = FakeAdmin()
    monkeypatch.setattr(shadow, "load_settings", HoneConfig)
    monkeypatch.setattr(shadow, "local_admin", lambda _config: fake)
    return fake


def run(*arguments: str) -> str:
    """What a command prints."""
    result = CliRunner().invoke(app, ["shadow", *arguments])
    assert result.exit_code == 0, result.output
    return result.output


def test_it_lists_and_reports(admin: FakeAdmin) -> None:
    """Differences, both sides' bad events and every reason; a client's text is shown as it stands."""
    assert "exp_1" in run("list")
    report = run("report", "exp_1")
    for part in ("mirrored 1: scored 1", "refusal 1", "not mirrored, busy: 3", "candidate 2 beside primary 1"):
        assert part in report
    assert "[bold]" in report


def test_it_begins_and_stops(admin: FakeAdmin) -> None:
    """A version or the Variants; budgets and the reason are sent."""
    run("begin", "coder", "--version", "2", "--share", "0.5", "--max-requests", "7", "--max-tokens", "9")
    run("begin", "coder")
    run("stop", "exp_1", "--reason", "enough")
    first, second, third = admin.posted
    budget = {"max_requests": 7, "max_tokens": 9}
    assert first == ("/shadows", {"policy": "coder", "sample_share": 0.5, "candidate_version": 2} | budget)
    assert second[1]["candidate_variant"] == "fast"
    assert third == ("/shadows/exp_1/stop", {"reason": "enough"})
