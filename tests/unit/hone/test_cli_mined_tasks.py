"""``hone tasks mine``, ``hone tasks review`` and what ``hone train`` asks for."""

import asyncio
import os

import pytest
from typer.testing import CliRunner

from core.config.schema import HoneConfig
from core.feedback import Feedback, FeedbackKind
from core.policy import Base, Policy
from hone.cli import app
from store.migrate import upgrade
from store.store import Store
from tests import nouns


async def _fill(config: HoneConfig) -> None:
    store = await Store.open(config)
    async with store.transaction() as work:
        await work.bases.put(Base(name="base", path="/base", fingerprint="f" * 64))
        await work.policies.add(Policy(name="coder", base="base"))
        for number in range(2):
            name = f"ep_{number}"
            await work.episodes.add(nouns.episode(id=name, trainable=True))
            asked = ({"role": "user", "content": f"{number} + 2?"},)
            turn = nouns.turn(id=f"turn_{number}", episode_id=name, messages=asked, trainable=True)
            await work.turns.add_many([turn])
            said = Feedback(
                id=f"fb_{number}",
                tenant_id="ten_a",
                key_id="key_a",
                episode_id=name,
                name="thumbs_up",
                kind=FeedbackKind.BOOLEAN,
                value=True,
                training_granted=True,
            )
            await work.feedback.add(said)
    await store.close()


@pytest.fixture
def hone(tmp_path, monkeypatch):
    """Runs a command on a store with two rated Episodes."""
    for name in [name for name in os.environ if name.startswith("HONE_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HONE_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("COLUMNS", "200")
    config = HoneConfig(data_dir=tmp_path / "data")
    config.data_dir.mkdir()
    upgrade(config.database_url)
    asyncio.run(_fill(config))
    return lambda *arguments: CliRunner().invoke(app, list(arguments))


def test_tasks_are_mined_listed_and_decided(hone):
    """Proposals wait for a decision; the accepted one is a Task, the rejected one is not, and both are decided."""
    said = hone("tasks", "mine", "coder")
    assert "2 Tasks proposed, 0 accepted unseen" in said.output, said.output
    ids = [word for word in hone("tasks", "review", "list").output.split() if word.startswith("task_")]
    assert len(ids) == 2
    assert hone("tasks", "review", "accept", ids[0]).exit_code == 0
    assert hone("tasks", "review", "reject", ids[1], "--reason", "odd").exit_code == 0
    listed = hone("tasks", "list", "--domain", "live").output
    assert ids[0] in listed
    assert ids[1] not in listed
    assert hone("tasks", "review", "accept", ids[1]).exit_code == 1
    assert "0 Tasks proposed" in hone("tasks", "mine", "coder").output


def test_a_run_needs_domains_unless_it_is_live(hone):
    """GRPO without a Domain is refused with what to do."""
    refused = hone("train", "coder")
    assert refused.exit_code == 1
    assert "--live" in refused.output
