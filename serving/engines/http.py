"""What all adapters of engines share: connections, time limits, and how answers and metrics are read."""

from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from core.errors import EngineError, EngineUnavailable

_HEALTH_SECONDS = 5.0
"""Generous: on a machine whose processors are all busy a healthy engine can take seconds."""
_REQUEST_SECONDS = 30.0
_WEIGHTS_SECONDS = 600.0
"""For what reads or digests all weights of a model."""


class HttpEngine:
    """One engine's server. Opens its connections on first use; ``close`` gives them back."""

    def __init__(
        self,
        url: str,
        *,
        base: str = "",
        request_seconds: float = _REQUEST_SECONDS,
        health_seconds: float = _HEALTH_SECONDS,
        weights_seconds: float = _WEIGHTS_SECONDS,
    ) -> None:
        """``base``: the Base's name, for engines that forget it when their weights are replaced."""
        self._base = base
        self._url = url.rstrip("/")
        self._request_seconds = request_seconds
        self._health_seconds = health_seconds
        self._weights_seconds = weights_seconds
        self._session: aiohttp.ClientSession | None = None

    @property
    def url(self) -> str:
        """Address without a trailing slash."""
        return self._url

    async def health(self) -> bool:
        """GET /health: 200 while the engine lives."""
        try:
            async with self._send("GET", "/health", seconds=self._health_seconds) as response:
                return response.status == 200
        except EngineUnavailable:
            return False

    async def models(self) -> list[str]:
        """GET /v1/models: the Base first, then adapters."""
        async with self._send("GET", "/v1/models", seconds=self._health_seconds) as response:
            body = await json_of(response)
        try:
            return [str(card["id"]) for card in body["data"]]
        except (KeyError, TypeError) as error:
            raise EngineError(f"{self._url}/v1/models answered in an unknown form") from error

    async def close(self) -> None:
        """Close all connections."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    @asynccontextmanager
    async def _send(
        self, method: str, path: str, *, json: dict[str, Any] | None = None, seconds: float | None = None
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        if self._session is None:
            # A kept connection may be closed by the server just as a load is sent on it.
            connector = aiohttp.TCPConnector(limit=0, force_close=True)
            self._session = aiohttp.ClientSession(connector=connector)
        timeout = aiohttp.ClientTimeout(total=seconds or self._request_seconds)
        try:
            async with self._session.request(method, self._url + path, json=json, timeout=timeout) as response:
                yield response
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            raise EngineUnavailable(f"{self._url}{path}: {type(error).__name__}: {error}") from error

    async def _failed(self, what: str, message: str) -> EngineError:
        """The error of a step that the engine answered badly: EngineUnavailable when it is not healthy any more."""
        if await self.health():
            return EngineError(f"{self._url} did not {what}: {message}")
        return EngineUnavailable(f"{self._url} failed and is not healthy; it was asked to {what}: {message}")

    async def _samples(self) -> dict[str, float]:
        """GET /metrics, summed over labels but ``position``, which becomes part of the name."""
        async with self._send("GET", "/metrics", seconds=self._health_seconds) as response:
            text = await response.text()
        sums: defaultdict[str, float] = defaultdict(float)
        try:
            for family in text_string_to_metric_families(text):
                for sample in family.samples:
                    position = sample.labels.get("position")
                    sums[sample.name if position is None else f"{sample.name}[{position}]"] += sample.value
        except ValueError as error:
            raise EngineError(f"{self._url}/metrics cannot be parsed: {error}") from error
        return dict(sums)


async def json_of(response: aiohttp.ClientResponse) -> dict[str, Any]:
    """The answer's JSON object; EngineError when it is none."""
    try:
        body = await response.json(content_type=None)
    except ValueError as error:
        raise EngineError(f"{response.url} did not answer with JSON") from error
    if not isinstance(body, dict):
        raise EngineError(f"{response.url} did not answer with a JSON object")
    return body


async def error_message(response: aiohttp.ClientResponse) -> str:
    """What an engine says went wrong: {"error": {"message"}}, {"error": text}, {"message"}, or FastAPI's own."""
    text = await response.text()
    try:
        body = await response.json(content_type=None)
        error = body.get("error") or {}
        found = error if isinstance(error, str) else error.get("message")
        found = found or body.get("message") or body.get("error_message") or body.get("detail")
        return str(found or text)
    except (ValueError, AttributeError):
        return f"HTTP {response.status}: {text[:200]}"
