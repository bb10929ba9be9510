"""Drafters in the admin API and on the command line."""

import pytest
from typer.testing import CliRunner

from core.access import Scope
from core.distillation import DISTIL, DistilRequest
from core.drafter import Drafter, DrafterStatus
from hone.cli import app
from hone.commands import drafters as command
from tests.gateway_harness import BASE, POLICY, Harness, running_gateway


@pytest.fixture
async def harness(fresh_sqlite_url, open_store, make_config):
    """A gateway with one version of a Policy."""
    store = await open_store(fresh_sqlite_url)
    async with running_gateway(store, make_config, {"store.url": fresh_sqlite_url}) as harness:
        await harness.mint()
        yield harness


async def add(harness: Harness, number: int, **fields: object) -> Drafter:
    """A Drafter in the store."""
    made = Drafter(id=f"drf_{number}", base=BASE, path="/d", number=number, **fields)
    async with harness.store.transaction() as work:
        await work.drafters.add(made)
    return made


async def test_drafters_are_listed_and_filtered(harness: Harness):
    """By Policy and by status, in order of number."""
    live = await add(harness, 1, policy=POLICY, status=DrafterStatus.LIVE, acceptance=0.6)
    await add(harness, 2)
    status, found = await harness.admin("GET", "/drafters")
    assert status == 200
    assert [one["number"] for one in found] == [1, 2]
    _, found = await harness.admin("GET", f"/drafters?policy={POLICY}&status=live")
    assert [one["id"] for one in found] == [live.id]
    status, error = await harness.admin("GET", "/drafters?status=nonsense")
    assert status == 400
    assert error["error"]["type"] == "invalid_request_error"


async def test_a_drafter_is_asked_for(harness: Harness):
    """The job names the target and the Drafter to begin with, and the wish is on record."""
    live = await add(harness, 1, policy=POLICY, status=DrafterStatus.LIVE)
    status, job = await harness.admin("POST", "/drafters", {"policy": POLICY, "version": 1, "seed": 5})
    assert status == 202
    assert job["kind"] == DISTIL
    request = DistilRequest.model_validate(job["payload"])
    assert (request.base, request.policy, request.target_version) == (BASE, POLICY, 1)
    assert (request.after, request.seed) == (live.id, 5)
    status, fresh = await harness.admin("POST", "/drafters", {"warm_start": False})
    assert status == 202
    assert fresh["id"] != job["id"]
    assert (fresh["payload"]["policy"], fresh["payload"]["after"]) == (None, None)
    async with harness.store.reading() as work:
        records = [one for one in await work.audit.list() if one.action == "drafter.distil"]
    assert {one.subject for one in records} == {POLICY, BASE}


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"policy": "absent"}, 404),
        ({"policy": POLICY, "version": 99}, 404),
        ({"base": "absent"}, 404),
        ({"version": 1}, 400),
        ({"policy": POLICY, "base": "other"}, 400),
        ({"policy": POLICY, "layers": 3}, 400),
    ],
)
async def test_what_cannot_be_drafted_for_is_refused(harness: Harness, body, expected):
    """Before any job is made, in the API's error form."""
    status, error = await harness.admin("POST", "/drafters", body)
    assert status == expected
    assert error["error"]["message"]
    assert await harness.store.queue.claim([DISTIL], "test", lease_seconds=1.0) == []


async def test_asking_needs_the_right_to_write(harness: Harness):
    """A key that may only read may list and not ask."""
    await harness.add_key("reader", scopes={Scope.ADMIN_READ})
    status, _ = await harness.admin("GET", "/drafters", key="reader")
    assert status == 200
    status, _ = await harness.admin("POST", "/drafters", {}, key="reader")
    assert status == 403


class Admin:
    """An admin client that answers from a script."""

    def __init__(self) -> None:
        self.posted: list[tuple[str, dict]] = []

    def __enter__(self) -> "Admin":
        return self

    def __exit__(self, *_: object) -> None:
        return

    def get(self, path: str, **parameters: object) -> list[dict]:
        """Two Drafters."""
        first = Drafter(
            id="drf_1",
            base=BASE,
            path="/d",
            status=DrafterStatus.LIVE,
            acceptance=0.61,
            accepted_per_draft=1.3,
            metrics={"acceptance": 0.66},
        )
        second = Drafter(id="drf_2", base=BASE, policy=POLICY, number=2, path="/d", reason="a [reason]")
        return [one.model_dump(mode="json") for one in (first, second)]

    def post(self, path: str, body: dict) -> dict:
        """A job."""
        self.posted.append((path, body))
        return {"id": "job_1", "payload": {"policy": body["policy"], "base": BASE, "target_version": 4}}


def test_the_command_line(monkeypatch):
    """``list`` shows numbers, targets and shares; ``train`` asks for the promoted version unless told otherwise."""
    admin = Admin()
    monkeypatch.setattr(command, "local_admin", lambda _: admin)
    runner = CliRunner(env={"COLUMNS": "160"})
    listed = runner.invoke(app, ["drafters", "list"])
    assert listed.exit_code == 0, listed.output
    for text in (f"{BASE}@0", f"{POLICY}@0", "61.0%", "66.0%", "1.30", "a [reason]"):
        assert text in listed.output
    asked = runner.invoke(app, ["drafters", "train", POLICY, "--fresh"])
    assert asked.exit_code == 0, asked.output
    assert f"{POLICY}@4" in asked.output
    assert admin.posted == [("/drafters", {"policy": POLICY, "version": None, "seed": 0, "warm_start": False})]
