"""``hone fleet``: who leads and what replicas do, as a table and as JSON; restarts; running the process."""

import json
from typing import Any

import pytest
from typer.testing import CliRunner

from core.config.schema import HoneConfig
from core.deployment import DeploymentStatus, EngineLoad, LoadedVersion, Restart, SpeculationSeen, SwapRecord
from core.errors import EngineUnavailable
from core.policy import ProbeResult
from hone.cli import app
from hone.commands import fleet
from tests import nouns

PASSED = ProbeResult(passed=True, error=0.0, parent_distance=1.0, base_distance=1.0, reason="ok")
LEADS = {"base": "smol", "leader": "m:1:led", "leads": True, "until": 1.0, "deployments": {"ready": 1}}


def held(version: int, **fields: Any) -> LoadedVersion:
    name = f"coder.v{version}-0"
    values = {"policy": "coder", "version": version, "engine_model": name, "checksum": "c", "swap_seconds": 0.1}
    return LoadedVersion(**values, probe=PASSED, **fields)


class FakeAdmin:
    """An admin API with one fleet and some Deployments; keeps what was posted."""

    def __init__(self) -> None:
        self.fleets: list[dict[str, Any]] = [LEADS]
        self.deployments = [
            nouns.deployment(
                id="dep_a",
                status=DeploymentStatus.READY,
                engine_version="0.32.0",
                answers_to=("smol", "coder.v1-0"),
                loaded=(held(1), held(2, state="draining")),
                load=EngineLoad(running=3, waiting=1, kv_use=0.25, prefix_hits=0.5),
                speculation_seen=SpeculationSeen(acceptance=0.61, accepted_per_draft=2.0),
                swaps=(SwapRecord(kind="lora", policy="coder", version=1, outcome="live", seconds=0.07),),
            )
        ]
        self.posted: list[tuple[str, Any]] = []
        self.plan: dict[str, Any] = {"launch": {"standard": 1}, "attach": {}}

    def __enter__(self) -> "FakeAdmin":
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing to close."""

    def get(self, path: str) -> Any:
        if path.endswith("/plan"):
            return self.plan
        rows = [one.model_dump(mode="json") for one in self.deployments]
        return {"/fleets": self.fleets, "/deployments": rows}[path]

    def post(self, path: str, body: Any) -> Any:
        self.posted.append((path, body))
        return self.deployments[0].model_dump(mode="json")

    def put(self, path: str, body: Any) -> Any:
        self.posted.append((path, body))
        return body

    def delete(self, path: str) -> None:
        self.posted.append((path, None))


@pytest.fixture
def admin(monkeypatch: pytest.MonkeyPatch) -> FakeAdmin:
    """The admin API that the commands meet."""
    fake = FakeAdmin()
    monkeypatch.setattr(fleet, "local_admin", lambda _config: fake)
    monkeypatch.setattr(fleet, "load_settings", HoneConfig)
    return fake


def run(*arguments: str) -> Any:
    return CliRunner(env={"COLUMNS": "300"}).invoke(app, ["fleet", *arguments])


def test_scale_says_what_is_wanted(admin: FakeAdmin):
    """Numbers are launched, URLs attached; without arguments it only shows, and --reset takes the wish back."""
    shown = run("scale", "standard=2", "fast=http://a:1,http://b:1")
    assert shown.exit_code == 0 and "standard=2 fast=http://a:1,http://b:1" in shown.output
    path, body = admin.posted[-1]
    assert path.endswith("/plan")
    assert body == {"launch": {"standard": 2}, "attach": {"fast": ["http://a:1", "http://b:1"]}}
    assert "standard=1" in run("scale").output and len(admin.posted) == 1
    assert run("scale", "--reset").exit_code == 0 and admin.posted[-1] == (path, None)


def test_scale_refuses_what_it_cannot_read(admin: FakeAdmin):
    """One line and a hint, and nothing is sent."""
    shown = run("scale", "standard")
    assert shown.exit_code == 1 and "VARIANT=NUMBER" in shown.output and not admin.posted


def test_status_shows_what_engines_say(admin: FakeAdmin):
    """Versions, load, KV use, prefix hits, acceptance and swaps; a version that the engine lacks is marked."""
    shown = run("status")
    assert shown.exit_code == 0, shown.output
    for text in ("led by m:1:led", "standard-0", "fake 0.32.0", "3+1", "25%", "50%", "61%", "coder@1 live 0.07 s"):
        assert text in shown.output
    assert "smol, coder@1, coder@2 draining?" in shown.output


def test_status_as_json_is_everything(admin: FakeAdmin):
    """The whole answer of the admin API, to be read by programs."""
    shown = json.loads(run("status", "--json").output)
    assert shown["fleets"] == [LEADS] and shown["deployments"][0]["load"]["running"] == 3


def test_status_says_when_nothing_answers(admin: FakeAdmin):
    """No replica, or none that is ready, is an error with a hint; reasons and pending restarts are told."""
    (one,) = admin.deployments
    admin.deployments = [
        one.model_copy(
            update={
                "status": DeploymentStatus.UNHEALTHY,
                "status_reason": "its process ended",
                "restart": Restart(reason="new driver"),
                "heartbeat_at": 0.0,
            }
        )
    ]
    admin.fleets = [{**LEADS, "leads": False}]
    shown = run("status")
    assert shown.exit_code == 1
    for text in ("no fleet leads", "its process ended", "new driver", "s ago", "no replica answers", "hint:"):
        assert text in shown.output
    admin.deployments, admin.fleets = [], [{**LEADS, "leader": None}]
    shown = run("status")
    assert shown.exit_code == 1
    assert "no fleet ever led" in shown.output and "hone up" in shown.output


def test_status_without_a_gateway_is_one_line_and_a_hint(admin: FakeAdmin, monkeypatch: pytest.MonkeyPatch):
    """The gateway's absence is told as for every other command."""

    def away(_path: str) -> Any:
        raise EngineUnavailable("the gateway does not answer", hint="start it with 'hone up'")

    monkeypatch.setattr(admin, "get", away)
    shown = run("status")
    assert shown.exit_code == 1 and "hone up" in shown.output


def test_restart_is_asked_for(admin: FakeAdmin):
    """The reason goes along when there is one."""
    assert run("restart", "dep_a").exit_code == 0
    assert run("restart", "dep_a", "--reason", "new driver").exit_code == 0
    path = "/deployments/dep_a/restart"
    assert admin.posted == [(path, {}), (path, {"reason": "new driver"})]


def test_without_a_command_the_process_runs(monkeypatch: pytest.MonkeyPatch):
    """``hone fleet`` becomes the fleet process."""
    started: list[list[str]] = []
    monkeypatch.setattr("hone.process_entry.os.execv", lambda _path, arguments: started.append(arguments))
    assert run().exit_code == 0
    assert started[0][1:] == ["-m", "hone.processes.fleet"]
