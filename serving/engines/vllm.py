"""Engine over vLLM's HTTP API (read from 0.32.0; also spoken by the fake)."""

from collections import defaultdict
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from core.errors import AdapterRejected, EngineError, EngineUnavailable
from serving.engines.base import EngineMetrics

_HEALTH_SECONDS = 5.0
"""Generous: on a machine whose processors are all busy a healthy engine can take seconds."""
_REQUEST_SECONDS = 30.0
_PER_POSITION = "vllm:spec_decode_num_accepted_tokens_per_pos_total"


class VllmEngine:
    """One vLLM server. Opens its connections on first use; ``close`` gives them back."""

    def __init__(
        self,
        url: str,
        *,
        request_seconds: float = _REQUEST_SECONDS,
        health_seconds: float = _HEALTH_SECONDS,
    ) -> None:
        self._url = url.rstrip("/")
        self._request_seconds = request_seconds
        self._health_seconds = health_seconds
        self._session: aiohttp.ClientSession | None = None

    @property
    def url(self) -> str:
        """Address without a trailing slash."""
        return self._url

    async def health(self) -> bool:
        """GET /health: 200 while the engine core lives."""
        try:
            async with self._send("GET", "/health", seconds=self._health_seconds) as response:
                return response.status == 200
        except EngineUnavailable:
            return False

    async def models(self) -> list[str]:
        """GET /v1/models: the Base first, then adapters."""
        async with self._send("GET", "/v1/models", seconds=self._health_seconds) as response:
            body = await _json(response)
        try:
            return [str(card["id"]) for card in body["data"]]
        except (KeyError, TypeError) as error:
            raise EngineError(f"{self._url}/v1/models answered in an unknown form") from error

    async def load_adapter(self, name: str, path: str) -> None:
        """POST /v1/load_lora_adapter, which reads the weights before it answers.

        vLLM answers 500 for an adapter that it cannot take and for a dying engine; health tells which.
        """
        body = {"lora_name": name, "lora_path": path}
        async with self._send("POST", "/v1/load_lora_adapter", json=body) as response:
            if response.status == 200:
                return
            message = await _error_message(response)
            status = response.status
        if status >= 500 and not await self.health():
            raise EngineUnavailable(f"{self._url} failed while loading '{name}': {message}")
        hint = "start vLLM with VLLM_ALLOW_RUNTIME_LORA_UPDATING=True" if message == "Not Found" else None
        raise AdapterRejected(f"the engine refused '{name}': {message}", hint=hint)

    async def unload_adapter(self, name: str) -> None:
        """POST /v1/unload_lora_adapter: only the registry entry goes; running requests keep the weights."""
        async with self._send("POST", "/v1/unload_lora_adapter", json={"lora_name": name}) as response:
            if response.status not in (200, 404):
                raise EngineError(f"{self._url} did not unload '{name}': {await _error_message(response)}")

    async def prompt_logprobs(self, model: str, token_ids: Sequence[int]) -> list[float | None]:
        """POST /v1/completions with ``prompt_logprobs``: vLLM recomputes them whatever its prefix cache holds."""
        body = {
            "model": model,
            "prompt": list(token_ids),
            "max_tokens": 1,
            "temperature": 0,
            "prompt_logprobs": 0,
        }
        async with self._send("POST", "/v1/completions", json=body) as response:
            if response.status != 200:
                raise EngineError(f"{self._url} did not score '{model}': {await _error_message(response)}")
            answer = await _json(response)
        try:
            entries = answer["choices"][0]["prompt_logprobs"]
            return [
                None if entry is None else float(entry[str(token)]["logprob"])
                for token, entry in zip(token_ids, entries, strict=True)
            ]
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise EngineError(f"{self._url} gave prompt_logprobs in an unknown form: {error!r}") from error

    async def version(self) -> str:
        """GET /version."""
        async with self._send("GET", "/version", seconds=self._health_seconds) as response:
            body = await _json(response)
        return str(body.get("version") or "unknown")

    async def metrics(self) -> EngineMetrics:
        """GET /metrics, summed over labels but ``position``."""
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
        return _metrics(sums)

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


def _metrics(sums: Mapping[str, float]) -> EngineMetrics:
    positions: list[float] = []
    while (name := f"{_PER_POSITION}[{len(positions)}]") in sums:
        positions.append(sums[name])
    return EngineMetrics(
        running=int(sums.get("vllm:num_requests_running", 0)),
        waiting=int(sums.get("vllm:num_requests_waiting", 0)),
        kv_use=sums.get("vllm:kv_cache_usage_perc", 0.0),
        prefix_queries=sums.get("vllm:prefix_cache_queries_total", 0.0),
        prefix_hits=sums.get("vllm:prefix_cache_hits_total", 0.0),
        output_tokens=sums.get("vllm:generation_tokens_total", 0.0),
        drafts=sums.get("vllm:spec_decode_num_drafts_total", 0.0),
        draft_tokens=sums.get("vllm:spec_decode_num_draft_tokens_total", 0.0),
        accepted_tokens=sums.get("vllm:spec_decode_num_accepted_tokens_total", 0.0),
        accepted_by_position=tuple(positions),
        raw=dict(sums),
    )


async def _json(response: aiohttp.ClientResponse) -> dict[str, Any]:
    try:
        body = await response.json(content_type=None)
    except ValueError as error:
        raise EngineError(f"{response.url} did not answer with JSON") from error
    if not isinstance(body, dict):
        raise EngineError(f"{response.url} did not answer with a JSON object")
    return body


async def _error_message(response: aiohttp.ClientResponse) -> str:
    """vLLM: {"error": {"message"}}; FastAPI's own errors: {"detail"}."""
    text = await response.text()
    try:
        body = await response.json(content_type=None)
        error = body.get("error") or {}
        return str(error.get("message") or body.get("detail") or text)
    except (ValueError, AttributeError):
        return f"HTTP {response.status}: {text[:200]}"
