"""Bytes on their way from the task that makes a stream to the one that sends it."""

import asyncio


class Outbox:
    """Joins what waits, and lets the maker wait while more than ``limit`` bytes do."""

    def __init__(self, limit: int = 262_144) -> None:
        self._limit = limit
        self._parts: list[bytes] = []
        self._size = 0
        self._closed = False
        self._filled = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()

    async def put(self, data: bytes) -> None:
        """Hand over; returns at once unless the reader is slow."""
        await self._room.wait()
        self._parts.append(data)
        self._size += len(data)
        if self._size >= self._limit:
            self._room.clear()
        self._filled.set()

    def close(self) -> None:
        """Nothing more comes."""
        self._closed = True
        self._filled.set()

    async def take(self) -> bytes:
        """Everything that waits, waiting for the first; empty: nothing more comes."""
        await self._filled.wait()
        data = b"".join(self._parts)
        self._parts, self._size = [], 0
        if not self._closed:
            self._filled.clear()
        self._room.set()
        return data
