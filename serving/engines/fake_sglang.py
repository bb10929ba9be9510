"""A stand-in for SGLang: NOT SGLang, but a server that follows its request and response forms, from a toy model.

SGLang's packages are made for CUDA, so that the adapter is tested against this where SGLang is not installed. Forms
were read from SGLang 0.5.23: ``srt/entrypoints/http_server.py``, ``srt/managers/io_struct.py``,
``srt/managers/tokenizer_manager.py`` (``meta_info``) and ``srt/observability/metrics_collector.py``. What is not
asked of an engine by Hone is left out. ``bench/gpu/sglang_contract.py`` runs the same tests against SGLang itself.
"""

import asyncio
import hashlib
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from aiohttp import web

from serving.engines import fake_model
from serving.engines.fake_model import Generation, Sampling, base_identity, encode
from serving.engines.fake_sglang_shapes import (
    Asked,
    chat_chunks,
    chat_whole,
    completion_chunks,
    completion_whole,
    generated,
    metrics_text,
    model_cards,
)

Step = Literal["pause", "resume", "reload", "clear", "checksum"]
_RELEASE = "0.5.23"


class _Refusal(Exception):
    """A request that SGLang answers with an error."""

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.message = message
        self.status = status


@dataclass
class _Running:
    """One request being answered."""

    adapter: str | None
    asked: Asked
    sampling: Sampling
    generations: list[Generation]
    under: str
    retracted: int
    """How often all keys and values had been taken back when it last computed its own."""


class FakeSglangServer:
    """One SGLang server at ``url``. Set the public attributes at any time to script what happens next."""

    def __init__(self, *, base_name: str = "base", max_model_len: int = 2048, port: int = 0) -> None:
        self.base_name = base_name
        self.served_name = base_name
        """What it calls itself: the folder of its weights, once they were replaced."""
        self.max_model_len = max_model_len
        self.adapters: dict[str, tuple[str, str]] = {}
        """Loaded adapter name → identity of its weights, and its folder."""
        self.label = "default"
        self.identity = base_identity(base_name)
        """What stands for its weights."""
        self.paused: str | None = None
        """Mode of the present pause."""
        self.healthy = True
        self.token_delay_seconds = 0.0
        self.fail_next: dict[Step, str] = {}
        """Step → the message with which it fails next time."""
        self.requests: list[dict[str, Any]] = []
        """Bodies of all requests for tokens, in order."""
        self.running = 0
        self.adapters_drained = asyncio.Event()
        """Unset: requests on adapters that are being unloaded still run."""
        self.adapters_drained.set()
        self._retracted = 0
        self._going = asyncio.Event()
        self._going.set()
        self._counts = {"output": 0, "prompt": 0, "requests": 0}
        self._port = port
        self._runner: web.AppRunner | None = None

    @property
    def url(self) -> str:
        """``http://127.0.0.1:PORT``; known once started."""
        return f"http://127.0.0.1:{self._port}"

    async def start(self) -> None:
        """Listen; a started engine holds its Base and no adapters."""
        self.adapters.clear()
        self.served_name = self.base_name
        self.identity, self.label, self.paused = base_identity(self.base_name), "default", None
        self._going.set()
        application = web.Application(client_max_size=64 * 2**20)
        post: dict[str, Callable[[web.Request], Awaitable[web.StreamResponse]]] = {
            "/generate": self._generate,
            "/v1/chat/completions": self._chat,
            "/v1/completions": self._completions,
            "/load_lora_adapter": self._load,
            "/unload_lora_adapter": self._unload,
            "/pause_generation": self._pause,
            "/continue_generation": self._continue,
            "/update_weights_from_disk": self._update_weights,
            "/update_weight_version": self._update_label,
            "/flush_cache": self._flush,
            "/weights_checker": self._check_weights,
        }
        get = {
            "/health": self._health,
            "/ready": self._health,
            "/server_info": self._server_info,
            "/model_info": self._model_info,
            "/v1/models": self._models,
            "/metrics": self._metrics,
        }
        application.add_routes([web.post(path, handler) for path, handler in post.items()])
        application.add_routes([web.get(path, handler) for path, handler in get.items()])
        self._runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.0, handler_cancellation=True)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self._port, reuse_address=True).start()
        self._port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        """Die."""
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def __aenter__(self) -> "FakeSglangServer":
        await self.start()
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.stop()

    async def _health(self, _request: web.Request) -> web.Response:
        # As with SGLANG_ENABLE_HEALTH_ENDPOINT_GENERATION=false: no token is sampled for it.
        return web.Response(status=200 if self.healthy else 503)

    async def _server_info(self, _request: web.Request) -> web.Response:
        return web.json_response({"version": _RELEASE, "frontend": "python", "internal_states": [{}]})

    async def _model_info(self, _request: web.Request) -> web.Response:
        body = {
            "model_path": self.served_name,
            "served_model_name": self.served_name,
            "tokenizer_path": self.base_name,
            "is_generation": True,
            "weight_version": self.label,
            "load_format": "auto",
        }
        return web.json_response(body)

    async def _models(self, _request: web.Request) -> web.Response:
        folders = {name: folder for name, (_, folder) in self.adapters.items()}
        return web.json_response(model_cards(self.served_name, folders, self.max_model_len))

    async def _metrics(self, _request: web.Request) -> web.Response:
        text = metrics_text(self.base_name, running=self.running, paused=self.paused is not None, **self._counts)
        return web.Response(text=text, content_type="text/plain")

    async def _load(self, request: web.Request) -> web.Response:
        body = await request.json()
        name, path = body["lora_name"], body["lora_path"]
        if name in self.adapters:
            return self._lora_answer(f"Failed to load LoRA adapter {name} because it is already loaded")
        try:
            self.adapters[name] = (fake_model.adapter_identity(Path(path)), path)
        except OSError as error:
            return self._lora_answer(f"Failed to load LoRA adapter '{name}': {error}")
        return self._lora_answer(None)

    async def _unload(self, request: web.Request) -> web.Response:
        name = (await request.json())["lora_name"]
        if name not in self.adapters:
            return self._lora_answer(f"LoRA with name {name} does not exist.")
        del self.adapters[name]
        await self.adapters_drained.wait()
        return self._lora_answer(None)

    def _lora_answer(self, error: str | None) -> web.Response:
        loaded = {name: folder for name, (_, folder) in self.adapters.items()}
        body = {"success": error is None, "error_message": error, "loaded_adapters": loaded}
        return web.json_response(body, status=200 if error is None else 400)

    async def _pause(self, request: web.Request) -> web.Response:
        if (message := self.fail_next.pop("pause", None)) is not None:
            return web.Response(status=500, text=message)
        self.paused = (await request.json()).get("mode", "abort")
        self._going.clear()
        if self.paused == "retract":
            self._retracted += 1
        return web.json_response({"message": "Generation paused successfully.", "status": "ok"})

    async def _continue(self, _request: web.Request) -> web.Response:
        if (message := self.fail_next.pop("resume", None)) is not None:
            return web.Response(status=500, text=message)
        self.paused = None
        self._going.set()
        return web.json_response({"message": "Generation continued successfully.", "status": "ok"})

    async def _update_weights(self, request: web.Request) -> web.Response:
        body = await request.json()
        message = self.fail_next.pop("reload", None)
        try:
            identity = fake_model.weights_identity(Path(body["model_path"]))
        except OSError as error:
            message = message or f"Failed to get model path: {error}."
        if message is None and body.get("flush_cache", True) and not self._flushed():
            message = "Weights were updated, but the cache was not flushed because requests are still running."
        if message is not None:
            return web.json_response({"success": False, "message": message, "num_paused_requests": 0}, status=400)
        self.identity = identity
        self.served_name = body["model_path"]
        self.label = body.get("weight_version") or self.label
        text = "Succeeded to update model weights."
        return web.json_response({"success": True, "message": text, "num_paused_requests": 0})

    async def _update_label(self, request: web.Request) -> web.Response:
        self.label = (await request.json())["new_version"]
        body = {"success": True, "message": f"Weight version updated to {self.label}", "new_version": self.label}
        return web.json_response(body)

    async def _flush(self, _request: web.Request) -> web.Response:
        message = self.fail_next.pop("clear", None)
        if message is None and self._flushed():
            return web.Response(text="Cache flushed.\nPlease check backend logs for more details.\n")
        return web.Response(status=400, text=message or "Flush cache failed.\n")

    def _flushed(self) -> bool:
        return self.running == 0 or self.paused == "retract"

    async def _check_weights(self, _request: web.Request) -> web.Response:
        if (message := self.fail_next.pop("checksum", None)) is not None:
            return web.json_response({"success": False, "message": message}, status=400)
        digest = hashlib.sha256(self.identity.encode()).hexdigest()
        rank = {"checksums": {"model.embed_tokens.weight": digest}, "per_gpu_checksum": digest}
        body = {"success": True, "message": "Success.", "ranks": [rank], "per_engine_checksum": digest}
        return web.json_response(body)

    async def _generate(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        ids = body["input_ids"] if body.get("input_ids") is not None else encode(body.get("text") or "")
        options = body.get("sampling_params") or {}
        asked = Asked(
            model=self.base_name,
            prompt_ids=list(ids),
            logprobs=bool(body.get("return_logprob")),
            prompt_from=int(body.get("logprob_start_len", -1)),
        )
        sampling = self._sampling(options, options.get("max_new_tokens", 128), options.get("sampling_seed"))
        try:
            running = self._begin(body, body.get("lora_path"), asked, sampling)
        except _Refusal as refusal:
            return web.json_response({"error": {"message": refusal.message}}, status=refusal.status)
        present = self._present(running.adapter)
        if not body.get("stream"):
            await self._all_tokens(running)
            return web.json_response(generated(asked, running.generations[0], present, self.label))
        response = await _opened(request)
        async for step in self._tokens(running):
            out = generated(asked, running.generations[0], present, self.label, upto=step)
            await _say(response, out)
        return await _closed(response)

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        return await self._openai(request, chat=True)

    async def _completions(self, request: web.Request) -> web.StreamResponse:
        return await self._openai(request, chat=False)

    async def _openai(self, request: web.Request, *, chat: bool) -> web.StreamResponse:
        body = await request.json()
        try:
            running = self._begin_openai(body, chat=chat)
        except _Refusal as refusal:
            error = {"object": "error", "message": refusal.message, "type": "BadRequestError", "param": None}
            return web.json_response({**error, "code": refusal.status}, status=refusal.status)
        whole, chunks = (chat_whole, chat_chunks) if chat else (completion_whole, completion_chunks)
        if not body.get("stream"):
            await self._all_tokens(running)
            return web.json_response(whole(running.asked, running.generations))
        response = await _opened(request)
        pieces = chunks(running.asked, running.generations)
        async for _ in self._tokens(running):
            for piece in next(pieces):
                await _say(response, piece)
        for piece in next(pieces):
            await _say(response, piece)
        return await _closed(response)

    def _begin_openai(self, body: dict[str, Any], *, chat: bool) -> _Running:
        if chat and body.get("stream") and body.get("return_token_ids"):
            raise _Refusal("return_token_ids is not supported with streaming on chat completions.")
        prompt = body.get("prompt")
        if chat:
            ids = fake_model.render_chat(body["messages"])
        else:
            ids = list(prompt) if isinstance(prompt, list) else encode(str(prompt))
        n = int(body.get("n") or 1)
        wanted = body.get("logprobs")
        asked = Asked(
            model=body.get("model") or self.base_name,
            prompt_ids=ids,
            logprobs=bool(wanted) if chat else wanted is not None,
            n=n,
            token_ids=bool(body.get("return_token_ids")),
            sglext_input=bool(body.get("return_input_ids_in_sglext")),
            sglext_output=bool(body.get("return_output_ids_in_sglext")),
            include_usage=bool((body.get("stream_options") or {}).get("include_usage")),
        )
        limit = body.get("max_completion_tokens") or body.get("max_tokens") or (self.max_model_len if chat else 16)
        sampling = self._sampling(body, limit, body.get("seed"))
        _, _, adapter = asked.model.partition(f"{self.served_name}:")
        return self._begin(body, adapter or None, asked, sampling)

    def _sampling(self, options: dict[str, Any], limit: int, seed: int | None) -> Sampling:
        stop = options.get("stop") or ()
        return Sampling(
            max_tokens=int(limit),
            seed=int(seed or 0),
            greedy=options.get("temperature") == 0,
            stop=(stop,) if isinstance(stop, str) else tuple(stop),
            ignore_eos=bool(options.get("ignore_eos")),
        )

    def _begin(self, body: dict[str, Any], adapter: str | None, asked: Asked, sampling: Sampling) -> _Running:
        self.requests.append(body)
        if adapter is not None and adapter not in self.adapters:
            raise _Refusal(f"The following requested LoRA adapters are not loaded: {adapter}")
        total = len(asked.prompt_ids) + sampling.max_tokens
        if total > self.max_model_len:
            raise _Refusal(
                f"Requested token count exceeds the model's maximum context length of {self.max_model_len} tokens. "
                f"You requested a total of {total} tokens."
            )
        own = None if adapter is None else self.adapters[adapter][0]
        under = self._present(own)
        generations = [fake_model.generate(under, asked.prompt_ids, sampling, index) for index in range(asked.n)]
        return _Running(own, asked, sampling, generations, under, self._retracted)

    def _present(self, adapter: str | None) -> str:
        if adapter is None:
            return self.identity
        return adapter if self.identity == base_identity(self.base_name) else f"{adapter}+{self.identity}"

    async def _all_tokens(self, running: _Running) -> None:
        async for _ in self._tokens(running):
            pass

    async def _tokens(self, running: _Running) -> Any:
        """Number of tokens sampled, one by one; frozen by a pause, and sampled on under the weights of then."""
        self.running += 1
        step = 0
        try:
            while step < max(len(one.token_ids) for one in running.generations):
                await asyncio.sleep(self.token_delay_seconds)
                await self._going.wait()
                self._resample(running, step)
                step += 1
                yield step
        finally:
            self.running -= 1
            self._counts["requests"] += 1
            self._counts["prompt"] += len(running.asked.prompt_ids)
            self._counts["output"] += step

    def _resample(self, running: _Running, step: int) -> None:
        present = self._present(running.adapter)
        if running.retracted == self._retracted and present != running.under and step:
            present = f"stale:{running.under}|{present}"
        running.retracted = self._retracted
        if present == running.under:
            return
        running.under = present
        running.generations[:] = [
            fake_model.generate(present, running.asked.prompt_ids, running.sampling, index, begun=one, steps=step)
            for index, one in enumerate(running.generations)
        ]


async def _opened(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse(headers={"content-type": "text/event-stream"})
    await response.prepare(request)
    return response


async def _say(response: web.StreamResponse, body: dict[str, Any]) -> None:
    await response.write(f"data: {json.dumps(body)}\n\n".encode())


async def _closed(response: web.StreamResponse) -> web.StreamResponse:
    await response.write(b"data: [DONE]\n\n")
    await response.write_eof()
    return response
