"""Blobs when the disk is full or broken."""

import errno
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fsspec.implementations.local import LocalFileSystem

from core.errors import ConfigurationError, StoreError, StoreFull
from store.blobs import Blobs


class FailingFile:
    """Takes some bytes, then fails as a full disk does."""

    def __init__(self, path: str, number: int) -> None:
        self._path = Path(path)
        self._number = number

    def __enter__(self) -> "FailingFile":
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing is open between writes."""

    def write(self, data: bytes) -> None:
        """Half of it fits."""
        self._path.write_bytes(data[: len(data) // 2])
        raise OSError(self._number, os.strerror(self._number))


class FailingFileSystem(LocalFileSystem):  # type: ignore[misc]
    """A local file system whose writes fail with ``number`` while it is not 0."""

    cachable = False
    number = 0

    def open(self, path: str, mode: str = "rb", **options: Any) -> Any:
        """A failing file for writing, when told so."""
        if "w" in mode and self.number:
            return FailingFile(path, self.number)
        return super().open(path, mode, **options)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
async def test_a_full_disk_keeps_the_previous_blob(tmp_path: Path, number: int) -> None:
    """No room raises StoreFull, leaves what was there whole, and nothing half written behind."""
    filesystem = FailingFileSystem()
    blobs = Blobs(filesystem, str(tmp_path))
    await blobs.put("a/b", b"previous")
    filesystem.number = number
    with pytest.raises(StoreFull, match="no room for blob"):
        await blobs.put("a/b", b"next" * 100)
    with pytest.raises(StoreFull):
        await blobs.put("a/c", b"new")
    filesystem.number = 0
    assert await blobs.get("a/b") == b"previous"
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["b"]
    await blobs.put("a/b", b"next")
    assert await blobs.get("a/b") == b"next"


async def test_another_failure_is_a_store_error(tmp_path: Path) -> None:
    """An input/output error is told apart from a full disk."""
    filesystem = FailingFileSystem()
    filesystem.number = errno.EIO
    with pytest.raises(StoreError, match="cannot be written") as caught:
        await Blobs(filesystem, str(tmp_path)).put("a", b"x")
    assert not isinstance(caught.value, StoreFull)


async def test_a_file_in_the_way_is_a_store_error(tmp_path: Path) -> None:
    """A key below another key's blob cannot be written or read, and says so."""
    blobs = Blobs.open(str(tmp_path))
    await blobs.put("a", b"x")
    with pytest.raises(StoreError, match="cannot be written"):
        await blobs.put("a/b", b"x")


def test_an_unknown_url_is_refused() -> None:
    """A file system that fsspec does not know is a configuration error, by its key."""
    with pytest.raises(ConfigurationError, match=r"store\.blobs_url"):
        Blobs.open("nosuch://bucket/prefix")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A real file system with 1 MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True, check=False).returncode != 0:
        pytest.skip("mounting a tmpfs needs root; the same is tested with a failing file system above")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


async def test_a_really_full_disk_keeps_the_previous_blob(small_disk: Path) -> None:
    """On a file system with no room left the previous blob stays, and room is used again once there is some."""
    blobs = Blobs.open(str(small_disk / "blobs"))
    await blobs.put("a", b"previous" * 1000)
    with pytest.raises(StoreFull):
        await blobs.put("a", bytes(2 << 20))
    assert await blobs.get("a") == b"previous" * 1000
    await blobs.put("a", bytes(500_000))
