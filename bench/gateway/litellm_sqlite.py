"""LiteLLM's own logging, switched on: a success callback that writes request and answer to SQLite in batches."""

import asyncio
import json
import os
import sqlite3
from typing import Any

from litellm.integrations.custom_logger import CustomLogger

FLUSH_SECONDS = 0.05


class SqliteLogger(CustomLogger):  # type: ignore[misc]  # LiteLLM is not installed where types are checked
    """Collects rows and writes them every 50 ms, so that LiteLLM pays as little as batching allows."""

    def __init__(self) -> None:
        super().__init__()
        self._rows: list[tuple[str, str, str]] = []
        self._task: asyncio.Task[None] | None = None
        self._database = sqlite3.connect(os.environ["LITELLM_LOG_DATABASE"], check_same_thread=False)
        self._database.execute("PRAGMA journal_mode=WAL")
        self._database.execute("PRAGMA synchronous=NORMAL")
        self._database.execute("CREATE TABLE IF NOT EXISTS calls (id TEXT, request TEXT, answer TEXT)")

    async def async_log_success_event(
        self, kwargs: dict[str, Any], response_obj: Any, start_time: Any, end_time: Any
    ) -> None:
        """Keep one call."""
        request = json.dumps({"messages": kwargs.get("messages"), "model": kwargs.get("model")})
        self._rows.append((response_obj.id, request, response_obj.model_dump_json()))
        if self._task is None:
            self._task = asyncio.create_task(self._write())

    async def _write(self) -> None:
        while True:
            await asyncio.sleep(FLUSH_SECONDS)
            rows, self._rows = self._rows, []
            if rows:
                with self._database:
                    self._database.executemany("INSERT INTO calls VALUES (?, ?, ?)", rows)


handler = SqliteLogger()
