"""Drains a pipe from a box and keeps only its beginning, so that a flood costs no memory."""

import asyncio
import os
from collections.abc import Callable
from types import TracebackType
from typing import Self

_CHUNK = 65_536


class Capture:
    """One pipe: ``write_end`` goes to the box, the first ``keep`` bytes that come out are kept.

    More than ``flood`` bytes call ``on_flood`` once; what comes then is still drained and dropped.
    """

    def __init__(self, *, keep: int, flood: int | None = None, on_flood: Callable[[], None] | None = None) -> None:
        self._keep = keep
        self._flood = flood
        self._on_flood = on_flood
        self._data = bytearray()
        self._total = 0
        self._ended = asyncio.Event()

    def __enter__(self) -> Self:
        self._read_end, self.write_end = os.pipe()
        os.set_blocking(self._read_end, False)
        self._open_write_end = True
        asyncio.get_running_loop().add_reader(self._read_end, self._readable)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.handed_over()
        asyncio.get_running_loop().remove_reader(self._read_end)
        os.close(self._read_end)

    def handed_over(self) -> None:
        """Close this process's copy of the write end, once the box has its own."""
        if self._open_write_end:
            os.close(self.write_end)
            self._open_write_end = False

    async def drain(self, timeout_seconds: float) -> bool:
        """Wait for the end of the pipe; False when somebody still holds it open."""
        try:
            async with asyncio.timeout(timeout_seconds):
                await self._ended.wait()
        except TimeoutError:
            return False
        return True

    @property
    def data(self) -> bytes:
        """The first ``keep`` bytes."""
        return bytes(self._data)

    @property
    def text(self) -> str:
        """The first ``keep`` bytes as text; invalid UTF-8 is replaced."""
        return self._data.decode(errors="replace")

    @property
    def truncated(self) -> bool:
        """Whether more came than was kept."""
        return self._total > self._keep

    def _readable(self) -> None:
        try:
            chunk = os.read(self._read_end, _CHUNK)
        except BlockingIOError:
            return
        if not chunk:
            asyncio.get_running_loop().remove_reader(self._read_end)
            self._ended.set()
            return
        before = self._total
        self._total += len(chunk)
        self._data += chunk[: max(0, self._keep - len(self._data))]
        if self._flood is not None and self._on_flood is not None and before <= self._flood < self._total:
            self._on_flood()
