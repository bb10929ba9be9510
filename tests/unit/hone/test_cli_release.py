"""``hone release``: policy files, what is sent, what is shown; running the process."""

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from core.config.schema import HoneConfig
from core.errors import InvalidRequest
from core.release_evidence import rule_of
from core.release_rule import open_trial
from core.release_run import ReleaseRun, Verdict
from hone import process_entry
from hone.cli import app
from hone.commands import release
from hone.release_client import ReleaseClient, read_plan
from tests.release_harness import POLICY, plan

TOML = """
suites = ["held-out"]
approvals = ["ramp"]
[rule]
targets = ["maths"]
alpha = 0.01
[rule.families.all]
domains = ["maths", "code"]
"""
YAML = """
suites: [held-out]
approvals: [ramp]
rule:
  targets: [maths]
  alpha: 0.01
  families: {all: {domains: [maths, code]}}
"""


def run_of(**fields: Any) -> ReleaseRun:
    trial = open_trial(rule_of(plan()))
    values = {"id": "rrun_1", "policy": POLICY, "version": 3, "baseline": 1, "plan": plan(), "trial": trial}
    run = ReleaseRun(live=trial, open_policy=POLICY, step=plan().steps[0], **(values | fields))
    return run.decided(Verdict.STARTED, by="me", reasons=("[bold]because[/]",))


class FakeAdmin:
    """An admin API with one release; keeps what was posted."""

    def __init__(self) -> None:
        self.run = run_of(waits=("job 1 is queued",))
        self.posted: list[tuple[str, Any]] = []

    def __enter__(self) -> "FakeAdmin":
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing to close."""

    def get(self, path: str, **parameters: Any) -> Any:
        dumped = self.run.model_dump(mode="json")
        if path == "/releases":
            return [dumped | {"newest": dumped["decisions"][-1]}]
        return dumped

    def text(self, path: str, **parameters: Any) -> str:
        return f"<p>{path} {parameters}</p>"

    def post(self, path: str, body: dict[str, Any] | None = None) -> Any:
        self.posted.append((path, body))
        return self.run.model_dump(mode="json")


@pytest.fixture
def admin(monkeypatch: pytest.MonkeyPatch) -> FakeAdmin:
    """The admin API that the commands meet."""
    fake = FakeAdmin()
    monkeypatch.setattr(release, "local_admin", lambda _config: fake)
    monkeypatch.setattr(release, "load_settings", HoneConfig)
    return fake


def run(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["release", *arguments])


@pytest.mark.parametrize(("name", "text"), [("plan.toml", TOML), ("plan.yaml", YAML)])
def test_a_policy_file_becomes_a_plan(admin: FakeAdmin, tmp_path: Path, name: str, text: str) -> None:
    """TOML and YAML say the same; what they leave out has defaults; the Policy is that of the candidate."""
    file = tmp_path / name
    file.write_text(text)
    result = run("start", f"{POLICY}@3", "--plan", str(file))
    assert result.exit_code == 0, result.output
    path, body = admin.posted[0]
    assert (path, body["version"], body["plan"]["policy"]) == ("/releases", 3, POLICY)
    assert (body["plan"]["rule"]["alpha"], body["plan"]["approvals"]) == (0.01, ["ramp"])
    assert "coder@3 against @1 is running" in result.output


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("plan.txt", TOML, "neither TOML nor YAML"),
        ("plan.toml", "= 1", "not well formed"),
        ("plan.yaml", "- 1", "no table"),
        ("plan.yaml", "a: [", "not well formed"),
        ("plan.toml", 'policy = "other"', "is for Policy 'other'"),
        ("plan.toml", "suites = []", "rule: Field required"),
    ],
)
def test_a_wrong_policy_file_is_explained(tmp_path: Path, name: str, text: str, says: str) -> None:
    """The message names the file and what is wrong in it."""
    file = tmp_path / name
    file.write_text(text)
    with pytest.raises(InvalidRequest, match=says):
        read_plan(file, POLICY)
    with pytest.raises(InvalidRequest, match="cannot be read"):
        read_plan(tmp_path / "none.toml", POLICY)


def test_what_people_do_reaches_the_api(admin: FakeAdmin) -> None:
    """Approving, skipping and stopping send their reasons."""
    for arguments in (
        ("approve", POLICY),
        ("skip", POLICY, "shadow", "--reason", "urgent"),
        ("stop", POLICY, "--reason", "wrong"),
    ):
        assert run(*arguments).exit_code == 0
    assert admin.posted == [
        (f"/releases/{POLICY}/approve", {"reason": None}),
        (f"/releases/{POLICY}/skip", {"step": "shadow", "reason": "urgent"}),
        (f"/releases/{POLICY}/stop", {"reason": "wrong"}),
    ]


def test_status_and_list_show_what_is_waited_for(admin: FakeAdmin) -> None:
    """People see the step, what it waits for and every decision; marks in texts are shown, not obeyed."""
    output = run("status", POLICY).output
    assert "waits: job 1 is queued" in output
    assert "[bold]because[/]" in output
    assert "rrun_1" in run("list").output
    assert '"id": "rrun_1"' in run("status", POLICY, "--json").output


def test_pages_are_written(admin: FakeAdmin, tmp_path: Path) -> None:
    """The page goes to the terminal or into a file."""
    assert "<p>" in run("page", POLICY).output
    file = tmp_path / "page.html"
    assert run("page", POLICY, "--decision", "2", "--output", str(file)).exit_code == 0
    assert "'decision': 2" in file.read_text()


def test_the_client_is_typed(admin: FakeAdmin) -> None:
    """From Python a release is a ReleaseRun."""
    assert ReleaseClient(admin).get(POLICY).label == "coder@3"


def test_without_a_command_the_controller_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """``hone release`` becomes the process."""
    started: list[list[str]] = []
    monkeypatch.setattr(process_entry.os, "execv", lambda _path, arguments: started.append(arguments))
    assert run().exit_code == 0
    assert started[0][-1] == "hone.processes.release"
