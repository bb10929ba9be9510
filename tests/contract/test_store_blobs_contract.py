"""The contract of Blobs, on a local folder and on fsspec's memory file system."""

from pathlib import Path

import pytest

from core.errors import NotFound, StoreError
from core.ids import new_id
from store.blobs import Blobs


@pytest.fixture(params=["local", "memory"])
def blobs(request: pytest.FixtureRequest, tmp_path: Path) -> Blobs:
    """Blobs on each file system in turn."""
    return Blobs.open(str(tmp_path / "blobs") if request.param == "local" else f"memory://{new_id('test')}")


async def test_bytes_come_back_and_are_replaced(blobs: Blobs) -> None:
    """What was put last is what is got, empty and binary data included."""
    for data in (b"first", bytes(range(256)) * 1000, b""):
        await blobs.put("turns/ep_a/turn_a", data)
        assert await blobs.get("turns/ep_a/turn_a") == data
    assert await blobs.exists("turns/ep_a/turn_a")


async def test_what_is_absent_is_not_found(blobs: Blobs) -> None:
    """Getting an absent blob raises NotFound; deleting one is no error."""
    assert not await blobs.exists("a/b")
    await blobs.delete("a/b")
    with pytest.raises(NotFound, match="there is no blob a/b"):
        await blobs.get("a/b")
    await blobs.put("a/b", b"x")
    await blobs.delete("a/b")
    assert not await blobs.exists("a/b")


@pytest.mark.parametrize("key", ["", "/etc/passwd", "../x", "a/../../x", "a//b", "a b", "a\x00", "a\n"])
async def test_a_key_cannot_leave_the_root(blobs: Blobs, key: str) -> None:
    """Keys are plain relative names."""
    with pytest.raises(StoreError, match="not a blob key"):
        await blobs.put(key, b"x")
