"""``hone versions``, and the commands that erase and export: what is asked of the admin API, and what is shown."""

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from core.config.schema import HoneConfig
from hone.cli import app
from hone.commands import episodes, tenants, versions

VERSION = {
    "version": 3,
    "kind": "lora",
    "origin": "grpo",
    "serving": "live",
    "notes": [{"text": "good [at] maths"}],
    "saw_withdrawn": 2,
    "files_removed_at": None,
}
TOMBSTONE = {"id": "tomb_1", "counts": {"turns": 2}, "versions": ["coder@3"]}


class FakeAdmin:
    """An admin API with one version; keeps what was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str, Any]] = []

    def __enter__(self) -> "FakeAdmin":
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def get(self, path: str, **_: object) -> Any:
        """One answer of each path."""
        self.asked.append(("GET", path, None))
        if path.endswith("/verify"):
            return {"label": "coder@3", "checksum_holds": False, "signature": "bad", "reason": "changed"}
        return {"stable": 3, "promoted": 0} if path.endswith("/aliases") else [VERSION]

    def post(self, path: str, body: Any = None) -> Any:
        """One answer of each path."""
        self.asked.append(("POST", path, body))
        return [VERSION] if path.endswith("/prune") else {"signed_by": "abc"}

    def put(self, path: str, body: Any) -> Any:
        """Keep it."""
        self.asked.append(("PUT", path, body))

    def delete(self, path: str, **parameters: Any) -> Any:
        """Keep it."""
        self.asked.append(("DELETE", path, parameters or None))
        return TOMBSTONE

    def download(self, path: str, target: Path) -> int:
        """Write a byte."""
        self.asked.append(("GET", path, None))
        target.write_bytes(b"x")
        return 1


@pytest.fixture
def admin(monkeypatch: pytest.MonkeyPatch) -> FakeAdmin:
    """In place of a running installation."""
    fake = FakeAdmin()
    for module in (versions, episodes, tenants):
        monkeypatch.setattr(module, "load_settings", HoneConfig)
        monkeypatch.setattr(module, "local_admin", lambda _config: fake)
    return fake


def run(*arguments: str, code: int = 0, typed: str | None = None) -> str:
    """What a command prints."""
    result = CliRunner().invoke(app, list(arguments), input=typed)
    assert result.exit_code == code, result.output
    return result.output


def test_versions_are_listed_with_their_names(admin: FakeAdmin) -> None:
    """Aliases, the last note as it was written, and what it saw."""
    shown = run("versions", "list", "coder")
    assert "stable" in shown
    assert "[at]" in shown.replace("\n", "")


def test_names_and_notes(admin: FakeAdmin) -> None:
    """An alias given as a version is looked up first."""
    run("versions", "alias", "coder@stable", "golden")
    run("versions", "note", "coder@3", "remember")
    run("versions", "alias", "coder@3", "golden", "--remove")
    run("versions", "sign", "coder@3")
    assert [one for one in admin.asked if one[0] != "GET"] == [
        ("PUT", "/policies/coder/aliases/golden", {"version": 3}),
        ("POST", "/policies/coder/versions/3/notes", {"text": "remember"}),
        ("DELETE", "/policies/coder/aliases/golden", None),
        ("POST", "/policies/coder/versions/3/sign", None),
    ]
    run("versions", "note", "coder", "x", code=1)
    run("versions", "note", "coder@nowhere", "x", code=1)


def test_a_bad_signature_ends_with_1(admin: FakeAdmin) -> None:
    """Scripts see it."""
    assert "changed" in run("versions", "verify", "coder@3", code=1)


def test_lineage_pruning_and_taint(admin: FakeAdmin) -> None:
    """Both ways of the lineage; a dry run says what would go."""
    run("versions", "lineage", "coder@3")
    run("versions", "lineage", "--episode", "ep_1")
    run("versions", "lineage", code=1)
    assert "would go: @3" in run("versions", "prune", "coder", "--dry-run", "--keep", "2")
    assert admin.asked[-1][2] == {"keep": 2, "days": None, "dry_run": True}
    assert "2" in run("versions", "tainted", "coder")


def test_erasing_asks_first(admin: FakeAdmin, tmp_path: Path) -> None:
    """Nothing is erased unless it is confirmed; an export replaces no file."""
    run("episodes", "withdraw", "ep_1", code=1, typed="n\n")
    assert admin.asked == []
    assert "coder@3" in run("episodes", "withdraw", "ep_1", "--yes")
    run("tenants", "erase", "ten_c", typed="ten_c\n")
    assert admin.asked[-1] == ("DELETE", "/tenants/ten_c", {"confirm": "ten_c"})
    run("tenants", "export", "ten_c", str(tmp_path / "c.tar.gz"))
    run("tenants", "export", "ten_c", str(tmp_path / "c.tar.gz"), code=1)
