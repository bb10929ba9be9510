"""``hone tenants`` and ``hone keys``: what they send and what they print."""

from typing import Any

import pytest
from typer.testing import CliRunner

from hone.cli import app
from hone.commands import keys, tenants

ALLOWANCE = {"requests_per_minute": 3, "tokens_per_month": None}
TENANT = {"id": "ten_a", "name": "A", "training_granted": False, "models": ["coder"], "allowance": ALLOWANCE}
KEY = {
    "id": "key_a",
    "tenant_id": "ten_a",
    "name": "k",
    "scopes": ["inference"],
    "training_granted": True,
    "models": None,
    "allowance": {},
    "expires_at": None,
    "previous_until": 4e9,
    "revoked": False,
}
USAGE = {
    "month": "2026-11",
    "key_id": "key_a",
    "requests": 1,
    "prompt_tokens": 1200,
    "completion_tokens": 3,
    "cost_microdollars": 2_500_000,
}
ANSWERS: dict[tuple[str, str], Any] = {
    ("GET", "/tenants"): [TENANT],
    ("GET", "/tenants/ten_a"): TENANT,
    ("POST", "/tenants"): TENANT,
    ("PATCH", "/tenants/ten_a"): TENANT,
    ("GET", "/tenants/ten_a/usage"): [USAGE],
    ("GET", "/keys"): [KEY],
    ("GET", "/keys/key_a"): KEY,
    ("POST", "/keys"): {"key": KEY, "plaintext": "hone-secret"},
    ("PATCH", "/keys/key_a"): KEY,
    ("POST", "/keys/key_a/rotate"): {"key": KEY, "plaintext": "hone-secret"},
    ("DELETE", "/keys/key_a"): KEY | {"revoked": True},
}


class FakeAdmin:
    """Answers from ANSWERS, and keeps what was sent."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, str, Any]] = []

    def __enter__(self) -> "FakeAdmin":
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing to close."""

    def get(self, path: str, **parameters: Any) -> Any:
        return self._answer("GET", path, parameters)

    def post(self, path: str, body: Any = None) -> Any:
        return self._answer("POST", path, body)

    def patch(self, path: str, body: Any) -> Any:
        return self._answer("PATCH", path, body)

    def delete(self, path: str) -> Any:
        return self._answer("DELETE", path, None)

    def _answer(self, method: str, path: str, body: Any) -> Any:
        self.sent.append((method, path, body))
        return ANSWERS[method, path]


@pytest.fixture
def admin(monkeypatch: pytest.MonkeyPatch) -> FakeAdmin:
    """The admin API of both command groups."""
    fake = FakeAdmin()
    for module in (keys, tenants):
        monkeypatch.setattr(module, "local_admin", lambda _config: fake)
        monkeypatch.setattr(module, "load_settings", lambda: None)
    return fake


@pytest.mark.parametrize(
    ("command", "last", "shown"),
    [
        ("tenants list", ("GET", "/tenants", {}), "requests per minute 3"),
        ("tenants create A", ("POST", "/tenants", {"name": "A"}), "ten_a created"),
        (
            "tenants create A --train --redact --model coder --limit tokens_per_month=1_000",
            (
                "POST",
                "/tenants",
                {
                    "name": "A",
                    "training_granted": True,
                    "redact": True,
                    "models": ["coder"],
                    "allowance": {"tokens_per_month": 1000},
                },
            ),
            "ten_a created",
        ),
        (
            "tenants change ten_a --all-models --limit requests_per_minute=none --limit dollars_per_month=2.5",
            (
                "PATCH",
                "/tenants/ten_a",
                {"models": None, "allowance": ALLOWANCE | {"requests_per_minute": None, "dollars_per_month": 2.5}},
            ),
            "ten_a:",
        ),
        ("tenants usage ten_a --month 2026-11", ("GET", "/tenants/ten_a/usage", {"month": "2026-11"}), "$2.50"),
        ("keys list", ("GET", "/keys", {"tenant_id": None}), "key_a"),
        (
            "keys create k --tenant ten_a --scope inference --scope feedback",
            ("POST", "/keys", {"name": "k", "tenant_id": "ten_a", "scopes": ["inference", "feedback"]}),
            "hone-secret",
        ),
        ("keys change key_a --no-train", ("PATCH", "/keys/key_a", {"training_granted": False}), "key_a: inference"),
        (
            "keys rotate key_a --grace-seconds 60",
            ("POST", "/keys/key_a/rotate", {"grace_seconds": 60.0}),
            "hone-secret",
        ),
        ("keys revoke key_a", ("DELETE", "/keys/key_a", None), "revoked"),
    ],
)
def test_commands_send_only_what_is_given(admin: FakeAdmin, command: str, last: Any, shown: str) -> None:
    """The request and a word of the answer."""
    result = CliRunner().invoke(app, command.split(), env={"COLUMNS": "200"})
    assert result.exit_code == 0, result.output
    assert admin.sent[-1] == last
    assert shown in result.output


@pytest.mark.parametrize("limit", ["speed=3", "requests_per_minute=fast", "requests_per_minute"])
def test_an_unknown_limit_is_refused(admin: FakeAdmin, limit: str) -> None:
    """Before anything is sent that writes; the names are listed."""
    result = CliRunner().invoke(app, ["tenants", "create", "A", "--limit", limit])
    assert result.exit_code == 1
    assert admin.sent == []


def test_an_expiry_is_counted_from_now(admin: FakeAdmin) -> None:
    """Days become Unix seconds."""
    CliRunner().invoke(app, ["keys", "create", "k", "--expires-in-days", "0"])
    (sent,) = admin.sent
    assert 1.7e9 < sent[2]["expires_at"] < 1e11
