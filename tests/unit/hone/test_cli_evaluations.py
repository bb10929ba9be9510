"""``hone eval``: list, import and compare, with its picture."""

import asyncio
import json
import os

import pytest
from typer.testing import CliRunner

from core.access import Tenant
from core.config.schema import HoneConfig
from core.policy import Base, Policy
from core.suite import Attempt, SuiteResult
from core.suite_summary import compare_results
from hone.cli import app
from hone.forest import forest_page
from hone.suites import store_suite
from sandbox.standard_suites import standard_suite
from store.migrate import upgrade
from store.store import Store


def _result(version, task_ids, wins):
    attempts = tuple(
        Attempt(task_id=task, domain="letters", seed=0, success=at < wins) for at, task in enumerate(task_ids)
    )
    return SuiteResult(
        id=f"sres_{version}", suite="letters", suite_version=1, policy="coder", version=version, attempts=attempts
    )


async def _fill(config):
    store = await Store.open(config)
    suite = await store_suite(store, standard_suite("letters", tasks=10, perturbations=()))
    async with store.transaction() as work:
        await work.bases.put(Base(name="base", path="/base", fingerprint="f" * 64))
        await work.policies.add(Policy(name="coder", base="base"))
        await work.tenants.add(Tenant(id="acme", name="acme"))
        await work.suite_results.put(_result(0, suite.task_ids, 2))
        await work.suite_results.put(_result(1, suite.task_ids, 9))
    await store.close()


@pytest.fixture
def hone(tmp_path, monkeypatch):
    """Runs a command on a store with a Suite and two results."""
    for name in [name for name in os.environ if name.startswith("HONE_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HONE_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("COLUMNS", "200")
    config = HoneConfig(data_dir=tmp_path / "data")
    config.data_dir.mkdir()
    upgrade(config.database_url)
    asyncio.run(_fill(config))

    def run(*arguments):
        done = CliRunner().invoke(app, ["eval", *arguments])
        assert done.exit_code == 0, done.output
        return done.output

    return run


def test_suites_are_listed_imported_and_compared(hone, tmp_path):
    """A tenant's prompts become a Suite that says what it is for; a comparison draws its picture."""
    assert "letters" in hone("list") and "reasoning_gym/chain_sum" in hone("list")
    file = tmp_path / "logged.jsonl"
    file.write_text(json.dumps({"prompt": "Where is my order?"}))
    assert "shadow or judge prompts only" in hone("import", str(file), "--suite", "tickets", "--tenant", "acme")
    assert "tenant/acme/tickets" in hone("list")
    assert "letters" in hone("show", "sres_1")
    page = tmp_path / "compare.html"
    assert "+0.700" in hone("compare", "--policy", "coder", "--version", "1", "--picture", str(page))
    assert "<svg" in page.read_text() and "letters" in page.read_text()


def test_a_picture_escapes_what_it_is_given():
    """The name of a Domain is no HTML."""
    results = [_result(version, ["a", "b"], version).model_copy(update={"suite": "s"}) for version in (0, 1)]
    rows = [row.model_copy(update={"domain": "<script>"}) for row in compare_results(results[1], results[0])]
    page = forest_page([("<b>", rows)], title="t")
    assert "<script>" not in page and "<b>" not in page and "&lt;script&gt;" in page
