"""Engine and WeightControl over SGLang's HTTP API.

Routes and forms were read from SGLang 0.5.23: ``srt/entrypoints/http_server.py``, ``srt/managers/io_struct.py``,
``srt/managers/scheduler.py`` and ``srt/observability/metrics_collector.py``. What differs from vLLM:

- A pause in mode ``retract`` takes requests in flight back into the queue, to be recomputed; ``in_place`` would let
  them go on with the keys and values of the old weights. No route says whether the engine is paused.
- Weights from disk go into the target and into a draft model alike, so that an engine with a draft model of its own
  cannot be swapped so; a draft model alone can be replaced only from memory; speculation cannot be switched.
- Once its weights were replaced it calls itself by their folder, and answers to any name but an adapter's.
- It takes a folder that lacks layers or holds others, so the forms are compared here where the files are at hand.
- A cache is not flushed while requests run; in a pause of mode ``retract`` none does.
- ``/health`` samples a token, which a paused engine does not: start it with
  ``SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION=false``.
"""

import asyncio
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import structlog

from core.errors import AdapterRejected, EngineError, EngineUnavailable, EngineUnsupported
from serving.engines.base import EngineMetrics, Generated
from serving.engines.http import HttpEngine, error_message, json_of
from serving.weights.full_folder import check_same_form

log = structlog.get_logger(__name__)

_UNLOAD_SECONDS = 3.0


class SglangEngine(HttpEngine):
    """One SGLang server."""

    _pausing: bool | None = None

    def __init__(self, url: str, *, unload_seconds: float = _UNLOAD_SECONDS, **settings: Any) -> None:
        """``unload_seconds``: longest wait for an adapter's last request; ``settings`` as HttpEngine takes them."""
        super().__init__(url, **settings)
        self._unload_seconds = unload_seconds
        self._unloads: dict[str, asyncio.Task[None]] = {}
        """Adapter → its unloading, while requests on it still run."""

    async def version(self) -> str:
        """GET /server_info."""
        async with self._send("GET", "/server_info", seconds=self._health_seconds) as response:
            body = await json_of(response)
        return str(body.get("version") or "unknown")

    async def models(self) -> list[str]:
        """GET /v1/models, under the Base's name whatever the weights are."""
        names = await super().models()
        if not names:
            raise EngineError(f"{self.url}/v1/models names no model")
        adapters = names[1:]
        return [self._base or names[0], *adapters]

    async def load_adapter(self, name: str, path: str) -> None:
        """POST /load_lora_adapter; pinned, for SGLang would evict the least recently used one unasked."""
        if self._unloads:
            # SGLang changes adapters one at a time: the load would wait for those last requests.
            await asyncio.wait(self._unloads.values(), timeout=self._unload_seconds)
        if self._unloads:
            draining = ", ".join(self._unloads)
            raise EngineUnavailable(f"{self.url} cannot load '{name}' while requests on {draining} run: try again")
        # A name that is in use would be given to the new weights without a word.
        if name in await self.models():
            raise AdapterRejected(f"the engine refused '{name}': it holds an adapter of that name")
        body = {"lora_name": name, "lora_path": path, "pinned": True}
        async with self._send("POST", "/load_lora_adapter", json=body) as response:
            if response.status == 200 and (await json_of(response)).get("success") is True:
                return
            status, message = response.status, await error_message(response)
        if status >= 500 and not await self.health():
            raise EngineUnavailable(f"{self.url} failed while loading '{name}': {message}")
        raise AdapterRejected(f"the engine refused '{name}': {message}")

    async def unload_adapter(self, name: str) -> None:
        """POST /unload_lora_adapter, which answers when the adapter's last request has ended.

        SGLang refuses new requests on it at once. EngineUnavailable: some still run; unloading goes on meanwhile.
        """
        known = self._unloads.get(name)
        if known is None and name not in await self.models():
            return
        task = self._unloads.get(name)
        if task is None:
            task = self._unloads[name] = asyncio.create_task(self._unload(name), name=f"unload-{name}")
            task.add_done_callback(lambda done: self._unloaded(name, done))
        await asyncio.wait({task}, timeout=self._unload_seconds if known is None else 0)
        if not task.done():
            raise EngineUnavailable(
                f"{self.url} still answers requests on '{name}'; it unloads it after the last one"
            )
        await task

    async def close(self) -> None:
        """Close all connections; what SGLang was told to unload it unloads."""
        unloads = list(self._unloads.values())
        for task in unloads:
            task.cancel()
        await asyncio.gather(*unloads, return_exceptions=True)
        await super().close()

    def _unloaded(self, name: str, task: asyncio.Task[None]) -> None:
        self._unloads.pop(name, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.warning("unload_failed", engine=self.url, engine_model=name, error=str(error))

    async def _unload(self, name: str) -> None:
        body = {"lora_name": name}
        async with self._send("POST", "/unload_lora_adapter", json=body, seconds=self._weights_seconds) as response:
            if response.status != 200:
                raise EngineError(f"{self.url} did not unload '{name}': {await error_message(response)}")

    async def prompt_logprobs(self, model: str, token_ids: Sequence[int]) -> list[float | None]:
        """POST /generate with ``logprob_start_len`` 0, which has the whole prompt computed anew."""
        options = {"max_new_tokens": 1, "temperature": 0}
        answer = await self._generate(model, token_ids, options, prompt_from=0)
        try:
            entries = answer["meta_info"]["input_token_logprobs"]
            return [
                None if index == 0 else _logprob(entry, token)
                for index, (token, entry) in enumerate(zip(token_ids, entries, strict=True))
            ]
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise EngineError(f"{self.url} gave input_token_logprobs in an unknown form: {error!r}") from error

    async def generate(
        self, model: str, token_ids: Sequence[int], *, max_tokens: int, temperature: float = 0.0, seed: int = 0
    ) -> Generated:
        """POST /generate with log-probs. ``seed`` is heeded where the engine runs with deterministic inference."""
        options = {"max_new_tokens": max_tokens, "temperature": temperature, "sampling_seed": seed}
        answer = await self._generate(model, token_ids, options, prompt_from=-1)
        try:
            entries = answer["meta_info"]["output_token_logprobs"]
            return Generated(
                token_ids=tuple(int(entry[1]) for entry in entries),
                logprobs=tuple(float(entry[0]) for entry in entries),
            )
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise EngineError(f"{self.url} gave output_token_logprobs in an unknown form: {error!r}") from error

    async def metrics(self) -> EngineMetrics:
        """GET /metrics (``--enable-metrics``). Speculation is derived: SGLang counts verifications alone."""
        return _metrics(await self._samples())

    async def pause(self) -> None:
        """POST /pause_generation in mode ``retract``."""
        await self._step("pause", "/pause_generation", {"mode": "retract"}, seconds=self._weights_seconds)
        self._pausing = True

    async def resume(self) -> None:
        """POST /continue_generation."""
        await self._step("resume", "/continue_generation", {"torch_empty_cache": False})
        self._pausing = False

    async def paused(self) -> bool:
        """What this adapter did last; before that, whether the engine samples a token in good time."""
        if self._pausing is None:
            self._pausing = not await self._samples_a_token()
        return self._pausing

    async def load_weights(self, path: str, *, label: str) -> None:
        """POST /update_weights_from_disk; SGLang loads its own old weights again when the new ones do not fit."""
        await asyncio.to_thread(check_same_form, Path(path), Path(await self._folder()))
        body = {"model_path": path, "weight_version": label, "flush_cache": False, "abort_all_requests": False}
        send = self._send("POST", "/update_weights_from_disk", json=body, seconds=self._weights_seconds)
        async with send as response:
            if response.status == 200 and (await json_of(response)).get("success") is True:
                return
            status, message = response.status, await error_message(response)
        if status == 404:
            raise EngineUnsupported(f"{self.url} has no /update_weights_from_disk")
        if status >= 500 and not await self.health():
            raise EngineUnavailable(f"{self.url} failed while loading {path}: {message}")
        raise AdapterRejected(f"the engine refused the weights in {path}: {message}")

    async def clear_caches(self) -> None:
        """POST /flush_cache, which refuses while requests run."""
        await self._step("clear its caches", "/flush_cache", None)

    async def weights_label(self) -> str:
        """GET /model_info."""
        return str((await self._model_info()).get("weight_version") or "default")

    async def weight_checksums(self) -> dict[str, str]:
        """POST /weights_checker: names get the prefix ``tpRANK:`` when there are several ranks."""
        body = {"action": "checksum", "selector": "target"}
        answer = await self._step("digest its weights", "/weights_checker", body, seconds=self._weights_seconds)
        try:
            ranks = answer["ranks"]
            return {
                (name if len(ranks) == 1 else f"tp{number}:{name}"): str(digest)
                for number, rank in enumerate(ranks)
                for name, digest in rank["checksums"].items()
            }
        except (KeyError, TypeError, AttributeError) as error:
            raise EngineError(f"{self.url}/weights_checker answered in an unknown form") from error

    async def load_drafter(self, path: str) -> None:
        """EngineUnsupported: SGLang takes a draft model alone only from memory."""
        raise EngineUnsupported(
            f"{self.url} cannot replace its draft model by {path}: SGLang has no route for that from disk",
            hint="restart the engine with the new draft model",
        )

    async def set_speculation(self, on: bool) -> None:
        """EngineUnsupported: SGLang fixes speculation at its start."""
        raise EngineUnsupported(
            f"{self.url} cannot switch speculation {'on' if on else 'off'}: SGLang fixes it at its start",
            hint="send its requests to a standard replica meanwhile",
        )

    async def _folder(self) -> str:
        """Where its present weights lie, on its own machine."""
        return str((await self._model_info()).get("model_path") or "")

    async def _model_info(self) -> dict[str, Any]:
        async with self._send("GET", "/model_info", seconds=self._health_seconds) as response:
            return await json_of(response)

    async def _generate(
        self, model: str, token_ids: Sequence[int], options: dict[str, Any], *, prompt_from: int
    ) -> dict[str, Any]:
        models = await self.models()
        if model not in models:
            raise EngineError(f"{self.url} cannot answer as '{model}': it does not serve that name")
        body: dict[str, Any] = {"input_ids": list(token_ids), "sampling_params": options, "return_logprob": True}
        body |= {"logprob_start_len": prompt_from} | ({} if model == models[0] else {"lora_path": model})
        async with self._send("POST", "/generate", json=body) as response:
            if response.status != 200:
                raise EngineError(f"{self.url} did not answer as '{model}': {await error_message(response)}")
            return await json_of(response)

    async def _samples_a_token(self) -> bool:
        body = {"input_ids": [0], "sampling_params": {"max_new_tokens": 1, "temperature": 0}}
        try:
            async with self._send("POST", "/generate", json=body, seconds=self._health_seconds) as response:
                return response.status == 200
        except EngineUnavailable:
            if not await self.health():
                raise
            return False

    async def _step(
        self, what: str, path: str, body: dict[str, Any] | None, *, seconds: float | None = None
    ) -> dict[str, Any]:
        async with self._send("POST", path, json=body, seconds=seconds) as response:
            if response.status == 200:
                return await json_of(response) if response.content_type == "application/json" else {}
            status, message = response.status, await error_message(response)
        if status == 404:
            raise EngineUnsupported(f"{self.url} cannot {what}: it has no {path}")
        raise await self._failed(what, message)


def _logprob(entry: Sequence[Any], token: int) -> float:
    """An entry is [log-prob, token id, text]."""
    if entry[1] != token:
        raise ValueError(f"token {entry[1]} in place of {token}")
    return float(entry[0])


def _metrics(sums: Mapping[str, float]) -> EngineMetrics:
    """Counters of tokens grow when a request ends. A verification samples one token beside the accepted ones."""
    output = sums.get("sglang:generation_tokens_total", 0.0)
    verifications = sums.get("sglang:spec_verify_calls_total", 0.0)
    first_tokens = sums.get("sglang:num_requests_total", 0.0)
    accepted = max(0.0, output - verifications - first_tokens) if verifications else 0.0
    return EngineMetrics(
        running=int(sums.get("sglang:num_running_reqs", 0)),
        waiting=int(sums.get("sglang:num_queue_reqs", 0)),
        kv_use=min(1.0, sums.get("sglang:token_usage", 0.0)),
        prefix_queries=sums.get("sglang:prompt_tokens_total", 0.0),
        prefix_hits=sums.get("sglang:cached_tokens_total", 0.0),
        output_tokens=output,
        decoded_tokens=max(0.0, output - first_tokens),
        decode_seconds=max(
            0.0,
            sums.get("sglang:e2e_request_latency_seconds_sum", 0.0)
            - sums.get("sglang:time_to_first_token_seconds_sum", 0.0),
        ),
        drafts=verifications,
        draft_tokens=math.floor(verifications * sums.get("sglang:spec_num_steps", 0.0)),
        accepted_tokens=accepted,
        raw=dict(sums),
    )
