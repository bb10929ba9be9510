"""Webhooks: tells somebody what was decided, by a signed JSON POST; nobody ever waits for it.

The signature is hex HMAC-SHA256 over ``x-hone-timestamp``, a dot and the body, in ``x-hone-signature`` after
``sha256=``; a receiver compares it in constant time and refuses old timestamps.
"""

import asyncio
import contextlib
import hashlib
import hmac
import random
import time
from collections.abc import Mapping
from typing import Any

import aiohttp
import msgspec
import structlog

from core import ids
from core.background import cancelled
from core.config.schema import HoneConfig
from gateway.experiments.metrics import ExperimentMetrics

log = structlog.get_logger(__name__)

_MOST_WAITING = 100
_FIRST_DELAY_SECONDS = 0.5
_LONGEST_DELAY_SECONDS = 60.0
_GOOD = range(200, 300)


def sign(secret: str, timestamp: str, body: bytes) -> str:
    """The value of ``x-hone-signature``."""
    digest = hmac.new(secret.encode(), timestamp.encode() + b"." + body, hashlib.sha256).hexdigest()
    return f"sha256={digest}"


class Webhooks:
    """Sends events to the configured URL, and to those that an Experiment names; retries, and then gives up aloud."""

    def __init__(self, *, config: HoneConfig, metrics: ExperimentMetrics) -> None:
        section = config.experiments
        self._url = section.webhook_url
        self._secret = section.webhook_secret.get_secret_value()
        self._attempts = section.webhook_attempts
        self._timeout = section.webhook_timeout_seconds
        self._metrics = metrics
        self._tasks: set[asyncio.Task[None]] = set()

    def notify(self, event: Mapping[str, Any], *, also: str | None = None) -> None:
        """Tell the configured URL, and ``also``; returns at once and never raises."""
        body = msgspec.json.encode({"id": ids.new_id(ids.REQUEST), **event})
        for url in dict.fromkeys(filter(None, (self._url, also))):
            if len(self._tasks) >= _MOST_WAITING:
                self._metrics.notifications.labels("dropped").inc()
                log.error("webhook_dropped", type=event.get("type"))
                continue
            task = asyncio.create_task(self._deliver(url, body), name="webhook")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def flush(self) -> None:
        """Wait until every POST was delivered or given up."""
        while self._tasks:
            await asyncio.wait(set(self._tasks))

    async def stop(self, timeout_seconds: float = 2.0) -> None:
        """Let what is under way end, for a bounded time."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_seconds):
                await self.flush()
        for task in set(self._tasks):
            await cancelled(task)

    async def _deliver(self, url: str, body: bytes) -> None:
        timeout = aiohttp.ClientTimeout(total=self._timeout)
        async with aiohttp.ClientSession(timeout=timeout) as session:
            for attempt in range(self._attempts):
                if attempt:
                    longest = min(_LONGEST_DELAY_SECONDS, _FIRST_DELAY_SECONDS * 2.0**attempt)
                    await asyncio.sleep(longest * random.uniform(0.5, 1.0))
                if await self._post(session, url, body):
                    self._metrics.notifications.labels("delivered").inc()
                    return
        self._metrics.notifications.labels("failed").inc()
        log.error("webhook_given_up", attempts=self._attempts)

    async def _post(self, session: aiohttp.ClientSession, url: str, body: bytes) -> bool:
        timestamp = str(int(time.time()))
        headers = {"content-type": "application/json", "x-hone-timestamp": timestamp}
        if self._secret:
            headers["x-hone-signature"] = sign(self._secret, timestamp, body)
        try:
            # A redirect would carry the signed body to whoever the first receiver names.
            async with session.post(url, data=body, headers=headers, allow_redirects=False) as response:
                if response.status in _GOOD:
                    return True
                log.warning("webhook_refused", status=response.status)
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            log.warning("webhook_failed", error=type(error).__name__)
        return False
