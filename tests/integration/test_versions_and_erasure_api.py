"""Versions, withdrawal, erasure and export over the admin API and the client API, against a running gateway."""

import asyncio
import hashlib
import io
import json
import tarfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from core import ids
from core.access import Scope, Tenant
from core.errors import RequestError
from core.policy import ServingStatus
from core.tombstone import Tombstone, TombstoneSubject, Withdrawal
from gateway.capture.drain import REJECTED
from gateway.capture.frames import frame_parts
from gateway.capture.journal import Journal, journal_root
from gateway.erasure.export import export_tenant
from gateway.erasure.set_aside import remove_set_aside
from gateway.erasure.sweep import SetAsideSweep
from hone.admin_client import AdminClient
from serving.weights.folder import folder_checksum
from serving.weights.signing import KEY_FILE, signer_of
from store.repositories.holdings import Holdings
from tests import nouns
from tests.captured_calls import captured_call
from tests.gateway_harness import POLICY, TENANT, Harness, running_gateway

CHAT = "/v1/chat/completions"


@pytest.fixture
async def harness(fresh_sqlite_url, open_store, make_config) -> AsyncIterator[Harness]:
    """A gateway with signing on, and an engine with versions 1 and 2."""
    store = await open_store(fresh_sqlite_url)
    overrides = {"store.url": fresh_sqlite_url, "registry.signing": True}
    async with running_gateway(store, make_config, overrides) as harness:
        await harness.add_engine()
        await harness.mint()
        await harness.mint()
        await harness.deploy("dep_a", versions=(1, 2))
        await harness.add_key("looker", scopes={Scope.ADMIN_READ})
        yield harness


def chat(model: str, text: str = "hello", **more) -> dict:
    return {"model": model, "messages": [{"role": "user", "content": text}], "max_tokens": 4} | more


async def said(harness: Harness, model: str, key: str = "user", **headers: str) -> tuple[int, dict, str]:
    answer = await harness.post(CHAT, chat(model, store=True), key=key, **headers)
    return answer.status, await answer.json(), answer.headers.get("x-hone-episode-id", "")


async def add_checkpoint(harness: Harness, number: int, folder: Path, episodes: tuple[str, ...] = ()) -> None:
    """A folder with a file, and the Checkpoint of a minted version."""
    folder.mkdir(parents=True)
    (folder / "adapter_config.json").write_text(f'{{"r": {number}}}')
    checkpoint = nouns.checkpoint(
        policy=POLICY, version=number, path=str(folder), checksum=folder_checksum(folder), id=f"ckpt_{number}"
    )
    async with harness.store.transaction() as work:
        version = await work.versions.get(POLICY, number, lock=True)
        await work.versions.update(version.model_copy(update={"checkpoint_id": checkpoint.id}))
        await work.checkpoints.add(checkpoint)
        await work.lineage.add_many(checkpoint.id, episodes)


async def test_an_alias_names_a_version_in_the_openai_api(harness: Harness) -> None:
    """``coder@stable`` answers as the version that it was set to, follows it, and is refused once it is gone."""
    path = f"/policies/{POLICY}/aliases"
    assert (await harness.admin("PUT", f"{path}/stable", {"version": 1}))[0] == 200
    status, body, _ = await said(harness, f"{POLICY}@stable")
    assert (status, body["model"]) == (200, f"{POLICY}@1")
    await harness.admin("PUT", f"{path}/stable", {"version": 2})
    assert (await said(harness, f"{POLICY}@stable"))[1]["model"] == f"{POLICY}@2"
    aliases = (await harness.admin("GET", path, key="looker"))[1]
    assert aliases == {"stable": 2, "promoted": 0}
    for name, sent in (("promoted", {"version": 1}), ("Bad Name", {"version": 1}), ("7", {"version": 1})):
        assert (await harness.admin("PUT", f"{path}/{name}", sent))[0] == 400
    assert (await harness.admin("PUT", f"{path}/stable", {"version": 9}))[0] == 404
    assert (await harness.admin("PUT", f"{path}/stable", {"version": 1}, key="looker"))[0] == 403
    assert (await harness.admin("DELETE", f"{path}/stable"))[0] == 200
    status, body, _ = await said(harness, f"{POLICY}@stable")
    assert (status, body["error"]["code"]) == (404, "model_not_found")


async def test_pruning_marks_only_what_it_removed(harness: Harness, tmp_path: Path) -> None:
    """A folder on another machine, and one that cannot be moved, leave their versions as they were."""
    for number in (1, 2):
        await add_checkpoint(harness, number, tmp_path / str(number))
        async with harness.store.transaction() as work:
            for serving in (ServingStatus.DRAINING, ServingStatus.UNLOADED):
                version = await work.versions.get(POLICY, number, lock=True)
                await work.versions.update(version.model_copy(update={"serving": serving, "pins": ()}))
    (tmp_path / "1").rename(tmp_path / "elsewhere")
    # In the way of the rename, as a folder that is not empty.
    (tmp_path / ".2.removed" / "x").mkdir(parents=True)
    rule = {"keep": 0, "days": 0, "dry_run": False}
    assert await harness.admin("POST", f"/policies/{POLICY}/prune", rule) == (200, [])
    async with harness.store.reading() as work:
        assert [one.files_removed_at for one in await work.versions.list(POLICY)] == [None, None]


async def test_candidate_is_the_newest_on_its_way(harness: Harness) -> None:
    """Without being set it follows the Releases, and promotion moves ``promoted`` and ``previous``."""
    async with harness.store.transaction() as work:
        await work.releases.add(nouns.release(policy=POLICY, version=2))
    await harness.gateway.routing.refresh()
    assert (await said(harness, f"{POLICY}@candidate"))[1]["model"] == f"{POLICY}@2"
    skip = {"version": 2, "skip": ["evaluation", "shadow", "ramp"], "reason": "test", "expected_promoted": 1}
    assert (await harness.admin("POST", f"/policies/{POLICY}/promote", skip))[0] == 409
    assert (await harness.admin("POST", f"/policies/{POLICY}/promote", skip | {"expected_promoted": 0}))[0] == 200
    assert (await harness.admin("GET", f"/policies/{POLICY}/aliases"))[1] == {"promoted": 2, "previous": 0}


async def test_notes_signatures_and_lineage(harness: Harness, tmp_path: Path) -> None:
    """Notes add up; an unsigned version is signed once and verified; a changed file is noticed; all is audited."""
    await add_checkpoint(harness, 1, tmp_path / "one", ("ep_a", "ep_b"))
    path = f"/policies/{POLICY}/versions/1"
    for text in ("first", "second"):
        assert (await harness.admin("POST", f"{path}/notes", {"text": text}))[0] == 201
    _, view = await harness.admin("GET", path)
    assert [note["text"] for note in view["version"]["notes"]] == ["first", "second"]
    assert (await harness.admin("GET", f"{path}/verify"))[1]["signature"] == "missing"
    assert (await harness.admin("POST", f"{path}/sign"))[0] == 200
    _, verified = await harness.admin("GET", f"{path}/verify")
    assert (verified["checksum_holds"], verified["signature"], verified["reason"]) == (True, "good", None)
    (tmp_path / "one" / "adapter_config.json").write_text("{}")
    _, verified = await harness.admin("GET", f"{path}/verify")
    assert (verified["checksum_holds"], verified["signature"]) == (False, "good")
    assert (await harness.admin("POST", f"{path}/sign"))[0] == 409
    _, lineage = await harness.admin("GET", f"{path}/lineage", key="looker")
    assert (lineage["ancestors"], lineage["episodes"]) == ([1], {"1": ["ep_a", "ep_b"]})
    _, seen = await harness.admin("GET", "/episodes/ep_a/versions")
    assert [(one["version"], one["direct"]) for one in seen] == [(1, True)]
    _, records = await harness.admin("GET", "/audit")
    assert {"version.note", "version.sign"} <= {one["action"] for one in records}


async def test_a_key_that_others_can_read_is_a_conflict(harness: Harness, tmp_path: Path) -> None:
    """Neither signing nor verifying ends in a fault of the server; once it is put right both go on."""
    await add_checkpoint(harness, 1, tmp_path / "one")
    path = f"/policies/{POLICY}/versions/1"
    key_file = harness.config.data_dir / KEY_FILE
    if not key_file.exists():
        signer_of(harness.config)
    key_file.chmod(0o644)
    for method, route in (("GET", "verify"), ("POST", "sign")):
        status, answer = await harness.admin(method, f"{path}/{route}")
        assert (status, "read by others" in answer["error"]["message"]) == (409, True)
    key_file.chmod(0o600)
    assert (await harness.admin("POST", f"{path}/sign"))[0] == 200
    assert (await harness.admin("GET", f"{path}/verify"))[1]["signature"] == "good"


async def test_a_turn_that_is_withdrawn_meanwhile_is_left_out_of_an_export(
    harness: Harness, tmp_path: Path, monkeypatch
) -> None:
    """The export goes on with the others."""
    async with harness.store.transaction() as work:
        await work.tenants.add(Tenant(id="ten_d", name="D"))
        await work.episodes.add(nouns.episode(id="ep_d", tenant_id="ten_d"))
        names = ("turn_d", "turn_e")
        await work.turns.add_many([nouns.turn(id=name, episode_id="ep_d", tenant_id="ten_d") for name in names])
    paged = Holdings.page

    async def page(self, table, tenant_id, after):
        rows, last = await paged(self, table, tenant_id, after)
        return ([{"id": "turn_gone"}, *rows] if table == "turns" else rows), last

    monkeypatch.setattr(Holdings, "page", page)
    manifest = await export_tenant(harness.store, "ten_d", tmp_path / "d.tar.gz")
    assert manifest["files"]["turns.jsonl"]["rows"] == 2


async def test_pruning_leaves_what_is_needed(harness: Harness, tmp_path: Path) -> None:
    """A dry run deletes nothing; the folder of a version that nobody needs goes, an aliased one's does not."""
    for number in (1, 2):
        await add_checkpoint(harness, number, tmp_path / str(number))
        async with harness.store.transaction() as work:
            for serving in (ServingStatus.DRAINING, ServingStatus.UNLOADED):
                version = await work.versions.get(POLICY, number, lock=True)
                await work.versions.update(version.model_copy(update={"serving": serving, "pins": ()}))
    await harness.admin("PUT", f"/policies/{POLICY}/aliases/golden", {"version": 2})
    rule = {"keep": 0, "days": 0}
    _, would = await harness.admin("POST", f"/policies/{POLICY}/prune", rule)
    assert [one["version"] for one in would] == [1]
    assert (tmp_path / "1").exists()
    _, gone = await harness.admin("POST", f"/policies/{POLICY}/prune", rule | {"dry_run": False})
    assert [one["version"] for one in gone] == [1]
    assert [path.name for path in tmp_path.iterdir() if path.name in "12"] == ["2"]
    assert (await harness.admin("PUT", f"/policies/{POLICY}/aliases/old", {"version": 1}))[0] == 409
    assert (await harness.admin("POST", f"/policies/{POLICY}/prune", rule | {"dry_run": False}))[1] == []


async def test_a_client_withdraws_its_episode(harness: Harness, tmp_path: Path) -> None:
    """Gone from client and admin API; another Tenant's is not found; a late record does not bring it back."""
    _, body, episode_id = await said(harness, f"{POLICY}@1")
    await harness.gateway.recorder.flush_all(20.0)
    await add_checkpoint(harness, 1, tmp_path / "one", (episode_id,))
    url = f"{harness.url}/v1/episodes/{episode_id}"
    async with harness.http.delete(url, headers=harness.headers("other")) as answer:
        assert answer.status == 404
    async with harness.http.delete(url, headers=harness.headers()) as answer:
        assert (answer.status, (await answer.json())["deleted"]) == (200, True)
    for path in (f"/v1/episodes/{episode_id}", f"/v1/chat/completions/{body['id']}"):
        async with harness.http.get(harness.url + path, headers=harness.headers()) as answer:
            assert answer.status == 404, path
    # The same Episode goes on: what it says now is dropped when the journal is drained.
    await said(harness, f"{POLICY}@1", **{"x-hone-episode-id": episode_id})
    await harness.gateway.recorder.flush_all(20.0)
    assert await harness.turns(episode_id) == []
    _, tainted = await harness.admin("GET", f"/policies/{POLICY}/tainted")
    assert [(one["version"], one["saw_withdrawn"]) for one in tainted] == [(1, 1)]
    _, withdrawn = await harness.admin("GET", "/withdrawals", key="looker")
    assert [one["episode_id"] for one in withdrawn] == [episode_id]
    _, (tombstone,) = await harness.admin("GET", "/tombstones", key="looker")
    assert (tombstone["subject_id"], tombstone["versions"]) == (episode_id, [f"{POLICY}@1"])
    assert tombstone["counts"]["turns"] == 1


async def test_what_lies_in_a_dead_journal_does_not_come_back(harness: Harness) -> None:
    """A record that another process left in its journal is dropped when its Episode was withdrawn meanwhile."""
    call = captured_call(1)
    async with harness.store.transaction() as work:
        await work.episodes.add(nouns.episode(id=call.episode_id, tenant_id=TENANT))
    assert (await harness.admin("DELETE", f"/episodes/{call.episode_id}"))[0] == 200
    journal = Journal(journal_root(harness.config), capacity_bytes=2**30, lost=lambda *_: None)
    journal.open()
    for number in (1, 2):
        journal.append(captured_call(number))
    journal.write()
    journal.close()
    assert await harness.gateway.recorder.flush_all(30.0)
    assert await harness.turns(call.episode_id) == []
    assert len(await harness.turns(captured_call(2).episode_id)) == 1


def test_what_was_put_aside_goes_too(tmp_path: Path) -> None:
    """Of the records that a store refused, those of the Episode or the Tenant are deleted."""
    (tmp_path / REJECTED).mkdir()
    for number in (1, 2):
        data = b"".join(frame_parts(captured_call(number)))
        (tmp_path / REJECTED / f"{number}.call").write_bytes(data)
    (tmp_path / REJECTED / "broken.call").write_bytes(b"?")
    assert remove_set_aside(tmp_path, {captured_call(1).episode_id}, set()) == 1
    assert sorted(file.name for file in (tmp_path / REJECTED).iterdir()) == ["2.call", "broken.call"]


async def test_another_machine_sweeps_what_it_put_aside(harness: Harness, tmp_path: Path) -> None:
    """Without being told, and as often as it takes: of a withdrawn Episode and of an erased Tenant."""
    (tmp_path / REJECTED).mkdir()
    for number, tenant in ((1, TENANT), (2, "ten_gone"), (3, TENANT)):
        data = b"".join(frame_parts(captured_call(number, tenant_id=tenant)))
        (tmp_path / REJECTED / f"{number}.call").write_bytes(data)
    sweep = SetAsideSweep(store=harness.store, journals=tmp_path)
    assert await sweep.sweep() == 0
    async with harness.store.transaction() as work:
        gone = Withdrawal(episode_id=captured_call(1).episode_id, tenant_id=TENANT, tombstone_id="tomb_1")
        await work.withdrawals.add_many([gone])
        await work.tombstones.add(
            Tombstone(
                id="tomb_2", tenant_id="ten_gone", subject=TombstoneSubject.TENANT, subject_id="ten_gone", by="k"
            )
        )
    assert await sweep.sweep() == 2
    assert await sweep.sweep() == 0
    assert [file.name for file in (tmp_path / REJECTED).iterdir()] == ["3.call"]


async def test_a_tenant_is_exported_and_erased(harness: Harness, tmp_path: Path) -> None:
    """The archive holds all of it and no hash of a key; after the erasure its keys and rows are gone."""
    async with harness.store.transaction() as work:
        await work.tenants.add(Tenant(id="ten_c", name="C"))
        await work.verdicts.add_many([nouns.verdict(episode_id="ep_c")])
        await work.episodes.add(nouns.episode(id="ep_c", tenant_id="ten_c"))
        await work.turns.add_many([nouns.turn(id="turn_c", episode_id="ep_c", tenant_id="ten_c")])
    await harness.add_key("c", scopes={Scope.INFERENCE}, tenant="ten_c")
    async with harness.http.get(
        f"{harness.url}/admin/v1/tenants/ten_c/export", headers=harness.headers("admin")
    ) as answer:
        assert answer.status == 200
        data = await answer.read()
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        files = {entry.name: archive.extractfile(entry).read() for entry in archive.getmembers()}
    manifest = json.loads(files.pop("manifest.json"))
    assert {name: hashlib.sha256(text).hexdigest() for name, text in files.items()} == {
        name: one["sha256"] for name, one in manifest["files"].items()
    }
    assert json.loads(files["turns.jsonl"])["prompt_ids"] == [1, 2, 3]
    assert json.loads(files["verdicts.jsonl"])["episode_id"] == "ep_c"
    assert b"key_hash" not in files["api_keys.jsonl"]
    assert b"ten_c" in files["tenants.jsonl"]
    assert (await harness.admin("DELETE", "/tenants/ten_c?confirm=ten_b"))[0] == 400
    assert (await harness.admin("DELETE", f"/tenants/{TENANT}?confirm={TENANT}"))[0] == 409
    status, tombstone = await harness.admin("DELETE", "/tenants/ten_c?confirm=ten_c")
    assert (status, tombstone["counts"]["turns"], tombstone["counts"]["api_keys"]) == (200, 1, 1)
    assert (await said(harness, POLICY, key="c"))[0] == 401
    assert (await harness.admin("GET", "/tenants/ten_c"))[0] == 404
    assert (await harness.admin("DELETE", "/tenants/ten_c?confirm=ten_c"))[0] == 404
    _, records = await harness.admin("GET", "/audit")
    assert {"tenant.export", "tenant.erase"} <= {one["action"] for one in records}
    assert ids.time_of(tombstone["id"]) is not None


async def test_the_cli_downloads_an_export(harness: Harness, tmp_path: Path) -> None:
    """The file is whole, only its owner can read it, and an unknown Tenant is an error with the server's words."""

    def download(tenant_id: str, target: Path) -> int:
        with AdminClient(gateway_url=harness.url, api_key=harness.keys["admin"]) as admin:
            return admin.download(f"/tenants/{tenant_id}/export", target)

    target = tmp_path / "a.tar.gz"
    assert await asyncio.to_thread(download, TENANT, target) == target.stat().st_size
    assert target.stat().st_mode & 0o077 == 0
    with tarfile.open(target) as archive:
        assert "manifest.json" in archive.getnames()
    with pytest.raises(RequestError, match="ten_nobody"):
        await asyncio.to_thread(download, "ten_nobody", tmp_path / "b.tar.gz")
    assert not (tmp_path / "b.tar.gz").exists()
