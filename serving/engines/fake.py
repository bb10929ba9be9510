"""A real HTTP server that answers as vLLM 0.32 does, from a toy model, and fails on request.

For tests of the gateway and the fleet: ids and log-probs are deterministic, adapters are told apart by the
bytes of their weights file, and every failure that a replica can show can be scripted.
"""

import asyncio
import json
from pathlib import Path
from typing import Any

from aiohttp import web

from serving.engines import fake_model, fake_shapes
from serving.engines.fake_model import Generation, Sampling
from serving.engines.fake_script import ScriptedAnswer, scripted
from serving.engines.fake_shapes import Call, error_body


def _compact(body: object) -> str:
    """JSON without spaces, as vLLM writes it."""
    return json.dumps(body, separators=(",", ":"), ensure_ascii=False)


class _Refusal(Exception):
    """A request that gets an error answer in vLLM's shape."""

    def __init__(self, status: int, message: str, type_: str, param: str | None = None) -> None:
        super().__init__(message)
        self.response = web.json_response(error_body(message, type_=type_, code=status, param=param), status=status)


class FakeEngineServer:
    """One engine replica at ``url``. Set the public attributes at any time to script what happens next."""

    def __init__(
        self, *, base_name: str = "base", max_model_len: int = 2048, speculative: bool = False, port: int = 0
    ) -> None:
        self.base_name = base_name
        self.max_model_len = max_model_len
        self.speculative = speculative
        """Report draft tokens in ``/metrics``: four drafted and three accepted per four sampled tokens."""
        self.adapters: dict[str, str] = {}
        """Loaded adapter name → identity of its weights."""
        self.requests: list[dict[str, Any]] = []
        """Bodies of all completion requests so far, in order."""
        self.loads: list[str] = []
        """Names of all adapters that were asked for, in order."""
        self.running = 0
        """Completion requests being answered now."""
        self.healthy = True
        self.token_delay_seconds = 0.0
        """Pause before each token of a stream, and as often before a whole answer."""
        self.load_delay_seconds = 0.0
        self.fail_requests = 0
        """How many of the next completion requests get a 500."""
        self.die_after_tokens: int | None = None
        """Cut the connection of each stream after this many chunks with tokens."""
        self.refuse_loads: str | None = None
        """Refuse to load adapters, with this message."""
        self.script: list[ScriptedAnswer] = []
        """What the next chat completions say, in order; afterwards the toy model speaks again."""
        self.refuse_renders: int | None = None
        """Answer requests to render with this status: 403 as without ``--enable-scale-out``, 404 as other engines."""
        self.render_prefix = ""
        """What a changed template writes before every conversation; renderings alone show it."""
        self.twins = False
        """Sample tokens that a rendering of their text does not have."""
        self.refuse_ids: str | None = None
        """Refuse chat requests that carry the ids of their prompt, with this message."""
        self.renders: list[dict[str, Any]] = []
        """Bodies of all requests to render, in order."""
        self.wrong_content: str | None = None
        """Identity that newly loaded adapters get instead of their own (see ``fake_model``)."""
        self._port = port
        self._runner: web.AppRunner | None = None
        self._generated = 0

    @property
    def url(self) -> str:
        """``http://127.0.0.1:PORT``; known once started, and kept over ``stop`` and ``start``."""
        return f"http://127.0.0.1:{self._port}"

    async def start(self) -> None:
        """Listen, on the same port as before if there was one; a started engine holds no adapters."""
        self.adapters.clear()
        application = web.Application(client_max_size=64 * 2**20)
        application.add_routes(
            [
                web.get("/health", self._health),
                web.get("/version", self._version),
                web.get("/v1/models", self._models),
                web.get("/metrics", self._metrics),
                web.post("/v1/chat/completions", self._chat),
                web.post("/v1/chat/completions/render", self._render),
                web.post("/v1/completions", self._completions),
                web.post("/v1/load_lora_adapter", self._load),
                web.post("/v1/unload_lora_adapter", self._unload),
            ]
        )
        # As vLLM does: a client that leaves ends its request.
        self._runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.0, handler_cancellation=True)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self._port, reuse_address=True)
        await site.start()
        self._port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        """Die: connections are cut and nothing listens any more."""
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None

    async def __aenter__(self) -> "FakeEngineServer":
        await self.start()
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.stop()

    def identity(self, model: str) -> str:
        """What stands for the weights that answer under ``model``; KeyError: not served."""
        return fake_model.base_identity(self.base_name) if model == self.base_name else self.adapters[model]

    async def _version(self, _request: web.Request) -> web.Response:
        return web.json_response({"version": "0.32.0"})

    async def _health(self, request: web.Request) -> web.Response:
        return web.Response(status=200 if self.healthy else 503)

    async def _models(self, request: web.Request) -> web.Response:
        cards: list[dict[str, Any]] = [_card(self.base_name, max_model_len=self.max_model_len)]
        cards += [_card(name, parent=self.base_name) for name in self.adapters]
        return web.json_response({"object": "list", "data": cards})

    async def _metrics(self, request: web.Request) -> web.Response:
        labels = f'{{engine="0",model_name="{self.base_name}"}}'
        lines = [
            "# TYPE vllm:num_requests_running gauge",
            f"vllm:num_requests_running{labels} {float(self.running)}",
            "# TYPE vllm:generation_tokens_total counter",
            f"vllm:generation_tokens_total{labels} {float(self._generated)}",
        ]
        if self.speculative:
            drafts = self._generated // 4
            for name, value in (
                ("drafts", drafts),
                ("draft_tokens", 4 * drafts),
                ("accepted_tokens", 3 * drafts),
            ):
                metric = f"vllm:spec_decode_num_{name}_total"
                lines += [f"# TYPE {metric} counter", f"{metric}{labels} {float(value)}"]
            metric = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
            lines.append(f"# TYPE {metric} counter")
            for position, share in enumerate((1, 1, 1, 0)):
                positioned = f'{labels[:-1]},position="{position}"}}'
                lines.append(f"{metric}{positioned} {float(share * drafts)}")
        return web.Response(text="\n".join(lines) + "\n", content_type="text/plain")

    async def _load(self, request: web.Request) -> web.Response:
        body = await request.json()
        name, path = body["lora_name"], body["lora_path"]
        self.loads.append(name)
        await asyncio.sleep(self.load_delay_seconds)
        try:
            if self.refuse_loads is not None:
                raise _Refusal(500, self.refuse_loads, "InternalServerError")
            if name in self.adapters or name == self.base_name:
                raise _Refusal(
                    400,
                    f"The lora adapter '{name}' has already been loaded. If you want to load the adapter "
                    "in place, set 'load_inplace' to True.",
                    "InvalidUserInput",
                )
            try:
                identity = fake_model.adapter_identity(Path(path))
            except OSError as error:
                message = f"No adapter found for {path}"
                raise _Refusal(404, message, "NotFoundError") from error
        except _Refusal as refusal:
            return refusal.response
        self.adapters[name] = self.wrong_content or identity
        return web.Response(text=f"Success: LoRA adapter '{name}' added successfully.")

    async def _unload(self, request: web.Request) -> web.Response:
        name = (await request.json())["lora_name"]
        if name not in self.adapters:
            message = f"The lora adapter '{name}' cannot be found."
            return _Refusal(404, message, "NotFoundError").response
        del self.adapters[name]
        return web.Response(text=f"Success: LoRA adapter '{name}' removed successfully.")

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        return await self._answer(request, chat=True)

    async def _render(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.renders.append(body)
        try:
            if self.refuse_renders is not None:
                raise _Refusal(self.refuse_renders, "Scale-out endpoints are disabled.", "PermissionDeniedError")
            if body.get("model") != self.base_name and body.get("model") not in self.adapters:
                raise _Refusal(404, "The model does not exist.", "NotFoundError", "model")
            token_ids = _prompt_ids(body, chat=True)
        except _Refusal as refusal:
            return refusal.response
        if self.render_prefix:
            token_ids = fake_model.encode(self.render_prefix) + token_ids
        return web.json_response({"request_id": "chatcmpl-fake", "token_ids": token_ids, "features": None})

    async def _completions(self, request: web.Request) -> web.StreamResponse:
        return await self._answer(request, chat=False)

    async def _answer(self, request: web.Request, *, chat: bool) -> web.StreamResponse:
        try:
            body = await request.json()
            self.requests.append(body)
            if self.fail_requests > 0:
                self.fail_requests -= 1
                raise _Refusal(500, "EngineCore encountered an issue.", "InternalServerError")
            if self.refuse_ids is not None and body.get("kv_transfer_params"):
                raise _Refusal(400, self.refuse_ids, "BadRequestError")
            call, generations = self._generate(body, chat=chat)
        except _Refusal as refusal:
            return refusal.response
        except json.JSONDecodeError as error:
            return _Refusal(400, f"Invalid JSON: {error}", "Bad Request").response
        self.running += 1
        try:
            if body.get("stream"):
                return await self._stream(request, call, generations)
            await asyncio.sleep(self.token_delay_seconds * max(len(one.token_ids) for one in generations))
            self._generated += sum(len(one.token_ids) for one in generations)
            return web.json_response(fake_shapes.whole(call, generations), dumps=_compact)
        finally:
            self.running -= 1

    async def _stream(self, request: web.Request, call: Call, generations: list[Generation]) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream; charset=utf-8"})
        await response.prepare(request)
        sent = 0
        for chunk in fake_shapes.stream(call, generations):
            if chunk["choices"] and "role" not in chunk["choices"][0].get("delta", {}):
                sent += 1
            if self.die_after_tokens is not None and sent > self.die_after_tokens:
                if request.transport is not None:
                    request.transport.close()
                return response
            await asyncio.sleep(self.token_delay_seconds)
            await response.write(f"data: {_compact(chunk)}\n\n".encode())
        self._generated += sum(len(one.token_ids) for one in generations)
        await response.write(b"data: [DONE]\n\n")
        await response.write_eof()
        return response

    def _generate(self, body: dict[str, Any], *, chat: bool) -> tuple[Call, list[Generation]]:
        model = body.get("model") or self.base_name
        if model != self.base_name and model not in self.adapters:
            names = ", ".join([self.base_name, *self.adapters])
            message = f"The model `{model}` does not exist. Valid aliases: {names}."
            raise _Refusal(404, message, "NotFoundError", "model")
        identity = self.identity(model)
        prompt_ids = _prompt_ids(body, chat=chat)
        sampling = self._sampling(body, len(prompt_ids), chat=chat)
        n = int(body.get("n") or 1)
        if n > 1 and sampling.greedy:
            message = f"n must be 1 when using greedy sampling, got {n}."
            raise _Refusal(400, message, "BadRequestError")
        entries = None
        if body.get("prompt_logprobs") is not None:
            values = fake_model.prompt_logprobs(identity, prompt_ids)
            entries = fake_shapes.prompt_logprob_entries(prompt_ids, values)
        call = Call(
            model=model,
            chat=chat,
            prompt_ids=prompt_ids,
            n=n,
            logprobs=_logprobs_wanted(body, chat=chat),
            return_token_ids=bool(body.get("return_token_ids")),
            include_usage=bool((body.get("stream_options") or {}).get("include_usage")),
            prompt_logprobs=entries,
        )
        if chat and self.script:
            generations = [scripted(identity, prompt_ids, self.script.pop(0), sampling.max_tokens)] * n
        else:
            generations = [fake_model.generate(identity, prompt_ids, sampling, choice) for choice in range(n)]
        return call, [fake_model.twinned(one) for one in generations] if self.twins else generations

    def _sampling(self, body: dict[str, Any], prompt_tokens: int, *, chat: bool) -> Sampling:
        limit = body.get("max_completion_tokens") if chat else None
        param = "max_tokens" if limit is None else "max_completion_tokens"
        limit = body.get("max_tokens") if limit is None else limit
        if limit is not None and limit > self.max_model_len:
            raise _Refusal(
                400,
                f"{param}={limit} cannot be greater than max_model_len={self.max_model_len}. "
                f"Please request fewer output tokens. (parameter={param}, value={limit})",
                "BadRequestError",
                param,
            )
        if prompt_tokens > self.max_model_len:
            raise _Refusal(
                400,
                f"This model's maximum context length is {self.max_model_len} tokens. However, your prompt "
                f"contains {prompt_tokens} input tokens, which exceeds this limit even without any output "
                "tokens. Please reduce the length of the input prompt.",
                "BadRequestError",
                "input_tokens",
            )
        room = self.max_model_len - prompt_tokens
        stop = body.get("stop") or ()
        temperature = body.get("temperature")
        return Sampling(
            max_tokens=max(1, min(room, limit if limit is not None else (room if chat else 16))),
            seed=int(body.get("seed") or 0),
            greedy=temperature is not None and temperature == 0,
            stop=(stop,) if isinstance(stop, str) else tuple(stop),
            ignore_eos=bool(body.get("ignore_eos")),
        )


def _prompt_ids(body: dict[str, Any], *, chat: bool) -> list[int]:
    if chat:
        messages = body.get("messages")
        if not isinstance(messages, list) or not messages:
            raise _Refusal(400, "1 validation error:\n  messages: Field required", "Bad Request", "messages")
        given = (body.get("kv_transfer_params") or {}).get("prompt_token_ids")
        if given is not None:
            return list(given)
        return fake_model.render_chat(messages, opening=body.get("add_generation_prompt") is not False)
    prompt = body.get("prompt")
    if isinstance(prompt, str) and prompt:
        return fake_model.encode(prompt)
    if isinstance(prompt, list) and prompt and all(isinstance(token, int) for token in prompt):
        return list(prompt)
    raise _Refusal(400, "the prompt must be text or a list of token ids", "BadRequestError", "prompt")


def _logprobs_wanted(body: dict[str, Any], *, chat: bool) -> int | None:
    if chat:
        return int(body.get("top_logprobs") or 0) if body.get("logprobs") else None
    wanted = body.get("logprobs")
    return None if wanted is None else int(wanted)


def _card(name: str, *, parent: str | None = None, max_model_len: int | None = None) -> dict[str, Any]:
    return {
        "id": name,
        "object": "model",
        "created": 0,
        "owned_by": "vllm",
        "root": name,
        "parent": parent,
        "max_model_len": max_model_len,
        "permission": [],
    }
