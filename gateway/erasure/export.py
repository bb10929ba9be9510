"""Writes everything that is held about a Tenant into a gzipped tar of JSON lines with a manifest.

One table is in memory at no time: rows go page by page into a temporary file, and that into the archive.
"""

import asyncio
import contextlib
import hashlib
import io
import json
import tarfile
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from core.errors import NotFound
from store.repositories.holdings import Holdings
from store.store import Store
from store.unit_of_work import UnitOfWork

MANIFEST = "manifest.json"


async def export_tenant(store: Store, tenant_id: str, target: Path) -> dict[str, Any]:
    """Write the archive to ``target``; the manifest in it: rows and sha256 of every file. Raises NotFound."""
    async with store.reading() as work:
        await work.tenants.get(tenant_id)
    files: dict[str, dict[str, Any]] = {}
    with _private(target) as raw, tarfile.open(fileobj=raw, mode="w|gz") as archive:
        for table in Holdings.tables():
            with tempfile.TemporaryFile(dir=target.parent) as lines:
                rows, digest = await _write_table(store, table, tenant_id, lines)
                name = f"{table}.jsonl"
                files[name] = {"rows": rows, "sha256": digest}
                await asyncio.to_thread(_add, archive, name, lines)
        manifest = {"tenant_id": tenant_id, "created_at": time.time(), "files": files}
        await asyncio.to_thread(_add, archive, MANIFEST, io.BytesIO(json.dumps(manifest, indent=1).encode()))
    return manifest


async def _write_table(store: Store, table: str, tenant_id: str, lines: IO[bytes]) -> tuple[int, str]:
    digest, number, after = hashlib.sha256(), 0, None
    while True:
        # A transaction for each page: an export of hours holds up nobody.
        async with store.reading() as work:
            rows, after = await work.holdings.page(table, tenant_id, after)
            if table == "turns":
                rows = await _turns(work, [row["id"] for row in rows])
        await asyncio.to_thread(_write_rows, rows, digest, lines)
        number += len(rows)
        if after is None:
            return number, digest.hexdigest()


async def _turns(work: UnitOfWork, turn_ids: list[str]) -> list[dict[str, Any]]:
    found = []
    for turn_id in turn_ids:
        # One may be withdrawn between its page and this.
        with contextlib.suppress(NotFound):
            found.append((await work.turns.get(turn_id)).model_dump(mode="json"))
    return found


def _write_rows(rows: list[dict[str, Any]], digest: "hashlib._Hash", lines: IO[bytes]) -> None:
    for row in rows:
        line = json.dumps(row, separators=(",", ":")).encode() + b"\n"
        digest.update(line)
        lines.write(line)


def _add(archive: tarfile.TarFile, name: str, content: IO[bytes]) -> None:
    entry = tarfile.TarInfo(name)
    entry.size = content.seek(0, io.SEEK_END)
    entry.mode = 0o600
    entry.mtime = int(time.time())
    content.seek(0)
    archive.addfile(entry, content)


@contextlib.contextmanager
def _private(path: Path) -> Iterator[IO[bytes]]:
    path.touch(mode=0o600)
    with path.open("wb") as file:
        yield file
