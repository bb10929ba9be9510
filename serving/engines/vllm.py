"""Engine over vLLM's HTTP API (read from 0.32.0; also spoken by the fake)."""

from collections.abc import Mapping, Sequence

from core.errors import AdapterRejected, EngineError, EngineUnavailable
from serving.engines.base import EngineMetrics, Generated
from serving.engines.http import error_message, json_of
from serving.engines.vllm_weights import VllmWeights

_PER_POSITION = "vllm:spec_decode_num_accepted_tokens_per_pos_total"


class VllmEngine(VllmWeights):
    """One vLLM server, as Engine and as WeightControl."""

    async def load_adapter(self, name: str, path: str) -> None:
        """POST /v1/load_lora_adapter, which reads the weights before it answers.

        vLLM answers 500 for an adapter that it cannot take and for a dying engine; health tells which.
        """
        body = {"lora_name": name, "lora_path": path}
        async with self._send("POST", "/v1/load_lora_adapter", json=body) as response:
            if response.status == 200:
                return
            message = await error_message(response)
            status = response.status
        if status >= 500 and not await self.health():
            raise EngineUnavailable(f"{self._url} failed while loading '{name}': {message}")
        hint = "start vLLM with VLLM_ALLOW_RUNTIME_LORA_UPDATING=True" if message == "Not Found" else None
        raise AdapterRejected(f"the engine refused '{name}': {message}", hint=hint)

    async def unload_adapter(self, name: str) -> None:
        """POST /v1/unload_lora_adapter: only the registry entry goes; running requests keep the weights."""
        async with self._send("POST", "/v1/unload_lora_adapter", json={"lora_name": name}) as response:
            if response.status not in (200, 404):
                raise EngineError(f"{self._url} did not unload '{name}': {await error_message(response)}")

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
                raise EngineError(f"{self._url} did not score '{model}': {await error_message(response)}")
            answer = await json_of(response)
        try:
            entries = answer["choices"][0]["prompt_logprobs"]
            return [
                None if entry is None else float(entry[str(token)]["logprob"])
                for token, entry in zip(token_ids, entries, strict=True)
            ]
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise EngineError(f"{self._url} gave prompt_logprobs in an unknown form: {error!r}") from error

    async def generate(
        self, model: str, token_ids: Sequence[int], *, max_tokens: int, temperature: float = 0.0, seed: int = 0
    ) -> Generated:
        """POST /v1/completions with ``return_token_ids`` and the sampled tokens' log-probs."""
        body = {
            "model": model,
            "prompt": list(token_ids),
            "max_tokens": max_tokens,
            "temperature": temperature,
            "seed": seed,
            "logprobs": 0,
            "return_token_ids": True,
        }
        async with self._send("POST", "/v1/completions", json=body) as response:
            if response.status != 200:
                raise EngineError(f"{self._url} did not answer '{model}': {await error_message(response)}")
            answer = await json_of(response)
        try:
            choice = answer["choices"][0]
            logprobs = tuple(float(value) for value in choice["logprobs"]["token_logprobs"])
            return Generated(tuple(choice["token_ids"]), logprobs)
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise EngineError(f"{self._url} gave a completion in an unknown form: {error!r}") from error

    async def version(self) -> str:
        """GET /version."""
        async with self._send("GET", "/version", seconds=self._health_seconds) as response:
            body = await json_of(response)
        return str(body.get("version") or "unknown")

    async def metrics(self) -> EngineMetrics:
        """GET /metrics, summed over labels but ``position``."""
        return _metrics(await self._samples())


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
        decoded_tokens=sums.get("vllm:request_generation_tokens_sum", 0.0),
        decode_seconds=sums.get("vllm:request_decode_time_seconds_sum", 0.0),
        drafts=sums.get("vllm:spec_decode_num_drafts_total", 0.0),
        draft_tokens=sums.get("vllm:spec_decode_num_draft_tokens_total", 0.0),
        accepted_tokens=sums.get("vllm:spec_decode_num_accepted_tokens_total", 0.0),
        accepted_by_position=tuple(positions),
        raw=dict(sums),
    )
