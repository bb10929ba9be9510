"""Token-exact conversations: what a model said before goes back to it as the ids that were sampled.

For a chat request that continues an answer given here, the engine renders the conversation (``/render``), the ids
of what is new are joined to those of the earlier Turn, and the ordinary chat route is asked with these ids in
``kv_transfer_params.prompt_token_ids``: templating and tokenising are left out, everything else (tool and reasoning
parsers, streams, log-probs, constrained answers, cancellation) is as ever. Whatever does not fit is asked the
ordinary way, and counted by cause.

Routes and fields: vLLM 0.32, ``entrypoints/scale_out/render`` and ``renderers/online_renderer.py``.
"""

import asyncio
from array import array
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import msgspec
import structlog
from msgspec import Raw

from core.config.schema import HoneConfig
from core.errors import EngineError
from core.turn import Turn
from gateway.episodes import HeldEpisode
from gateway.inference.base import Call
from gateway.inference.context import check_prompt
from gateway.inference.request import InferenceRequest, engine_body
from gateway.inference.sampled import answer_of, answers_of
from gateway.inference.splice import Answered, FallbackCause, Misfit, Tokens, common_suffix, continued, spliced
from gateway.inference.target import Target
from gateway.inference.threads import Thread
from gateway.metrics import GatewayMetrics
from gateway.upstream.base import Unreachable, Upstream, UpstreamResponse
from store.store import Store

log = structlog.get_logger(__name__)

_RENDER_PATH = "/v1/chat/completions/render"
_LOOKUP_TIMEOUT_SECONDS = 2.0
_OK = 200
_UNSUPPORTED = (
    "add_generation_prompt",
    "continue_final_message",
    "echo",
    "kv_transfer_params",
    "mm_processor_kwargs",
    "return_prompt_text",
    "truncate_prompt_tokens",
    "use_beam_search",
)
_RENDERED = (
    "add_special_tokens",
    "chat_template",
    "chat_template_kwargs",
    "documents",
    "functions",
    "reasoning_effort",
    "tools",
)
"""Fields that may show in a rendering beside the messages."""
_PROBES = ("b", "7")
"""Two answers that have no token in common: what their renderings share at the end is the template's."""
_FALSE = Raw(b"false")

Key = tuple[str, str]
"""Episode, and the digest of the conversation with an answer."""


class _Rendering(msgspec.Struct):
    token_ids: list[int]
    features: Raw = Raw(b"null")


class _Role(msgspec.Struct):
    role: str | None = None


_decode_rendering = msgspec.json.Decoder(_Rendering).decode
_decode_messages = msgspec.json.Decoder(list[Raw]).decode
_decode_roles = msgspec.json.Decoder(list[_Role]).decode
_encode = msgspec.json.Encoder().encode


class ExactTurns:
    """Knows the ids of the answers of this process, fetches those of others, and joins what is new to them."""

    def __init__(self, *, config: HoneConfig, store: Store, upstream: Upstream, metrics: GatewayMetrics) -> None:
        self._mode = config.gateway.token_exact
        self._most_tokens = config.gateway.token_exact_cache_tokens
        self._store = store
        self._upstream = upstream
        self.metrics = metrics
        self._answered: OrderedDict[Key, Answered] = OrderedDict()
        self._tokens = 0
        self._endings: dict[str, Tokens] = {}
        """Base → what its template writes after an answer."""

    def begin(
        self, call: Call, request: InferenceRequest, held: HeldEpisode, thread: Thread | None
    ) -> "Continuation | None":
        """What keeps a call token-exact; None where it is not to be, or no content may be kept."""
        if thread is None or request.endpoint != "chat.completions" or call.caller.tenant.redact:
            return None
        wanted = self._mode == "all" or (self._mode == "episodes" and held.attempt)
        if call.token_exact is not None and call.caller.training_granted:
            wanted = call.token_exact
        return Continuation(self, request, held, thread) if wanted else None

    def remember(self, continuation: "Continuation", target: Target, payloads: Sequence[bytes]) -> None:
        """Keep the ids of whole answers for the requests that continue them.

        Raises msgspec.DecodeError when the engine's JSON has another shape than OpenAI's.
        """
        if continuation.continues is not None:
            # Its ids are the beginning of this Turn's; a request that goes back to it finds them in the store.
            self._forget(continuation.continues)
        for index, answered in answers_of(payloads, target, continuation.rendered).items():
            digest = continuation.threads[index] if index < len(continuation.threads) else ""
            if digest:
                self._keep((continuation.held.id, digest), answered)

    def known(self, key: Key) -> Answered | None:
        """An answer of this process, unless it has been forgotten."""
        answered = self._answered.get(key)
        if answered is not None:
            self._answered.move_to_end(key)
        return answered

    async def stored(self, held: HeldEpisode, thread: str) -> Turn | None:
        """The Turn of an answer that another process gave, or this one long ago. A failing store finds nothing."""
        try:
            async with asyncio.timeout(_LOOKUP_TIMEOUT_SECONDS), self._store.reading() as work:
                found = await work.turns.by_thread(held.tenant_id, [thread])
                if found is None:
                    return None
                if found[0] == held.id:
                    return await work.turns.get(found[1])
                # Another Episode's answer has the same words and maybe other tokens.
                turns = await work.turns.for_episode(held.id)
                return next((turn for turn in reversed(turns) if turn.thread == thread), None)
        except Exception as error:  # noqa: BLE001 - no failing look-up may break an answer
            self.metrics.capture_failures.labels("exact_lookup").inc()
            log.warning("exact_lookup_failed", episode_id=held.id, error=f"{type(error).__name__}: {error}")
            return None

    async def render(self, url: str, body: bytes) -> Tokens:
        """The ids of a conversation. Raises Misfit when the engine does not render, or is away: asked the ordinary
        way it says more about that."""
        try:
            async with await self._upstream.send(b"POST", url + _RENDER_PATH, body) as response:
                data = await response.read()
                if response.status != _OK:
                    log.debug("render_refused", status=response.status)
                    raise Misfit(FallbackCause.ENGINE_REFUSED)
            rendering = _decode_rendering(data)
        except (Unreachable, EngineError, msgspec.DecodeError) as error:
            log.warning("render_failed", error=repr(error))
            raise Misfit(FallbackCause.ENGINE_REFUSED) from error
        if bytes(rendering.features) != b"null":
            raise Misfit(FallbackCause.MULTIMODAL)
        return array("I", rendering.token_ids)

    async def ending(self, url: str, base: str, engine_model: str) -> Tokens:
        """What the template of a Base writes after an answer; asked for once. Raises as ``render``."""
        ending = self._endings.get(base)
        if ending is None:
            one, other = await asyncio.gather(
                *(self.render(url, _encode(_probe(engine_model, answer))) for answer in _PROBES)
            )
            ending = self._endings[base] = common_suffix(one, other)
        return ending

    def forget_ending(self, base: str) -> None:
        """It did not fit: an engine may have been started with another template."""
        self._endings.pop(base, None)

    async def send_ids(self, target: Target, ids: Tokens, body: bytes) -> UpstreamResponse:
        """Send a chat request with the ids of its prompt."""
        carried = _encode({"prompt_token_ids": ids.tolist()})
        return await target.send(body[:-1] + b',"kv_transfer_params":' + carried + b"}")

    def _keep(self, key: Key, answered: Answered) -> None:
        self._forget(key)
        self._answered[key] = answered
        self._tokens += answered.size
        while self._tokens > self._most_tokens:
            self._forget(next(iter(self._answered)))

    def _forget(self, key: Key) -> None:
        forgotten = self._answered.pop(key, None)
        if forgotten is not None:
            self._tokens -= forgotten.size


@dataclass(slots=True)
class Continuation:
    """One call of a token-exact conversation."""

    parts: ExactTurns
    request: InferenceRequest
    held: HeldEpisode
    thread: Thread
    rendered: "array[int] | None" = None
    """The rendering of the request, where the engine was given other ids."""
    continues: Key | None = None
    """The answer that the engine was given ids of."""
    threads: list[str] = field(default_factory=list)
    """Per choice: digest of the conversation with its answer, once it is known."""

    async def applied_to(self, target: Target, *, url: str, base: str, room: int | None = None) -> Target:
        """The target, asked with ids; the same one where that cannot be.

        Raises ContextLengthExceeded where the ids and the answer are more than ``room`` tokens.
        """
        self.rendered = self.continues = None
        if not self.thread.answered:
            return target
        try:
            ids = await self._ids(target, url, base)
        except Misfit as misfit:
            self.fell_back(misfit.cause)
            if misfit.cause is FallbackCause.ENDING:
                self.parts.forget_ending(base)
            return target
        except Exception as error:
            # An answer matters more than its tokens.
            self.fell_back(FallbackCause.FAILED)
            log.exception("exact_failed", episode_id=self.held.id, error=repr(error))
            return target
        if room is not None:
            check_prompt(self.request, len(ids), room)
        return replace(target, send=partial(self.parts.send_ids, target, ids))

    def fell_back(self, cause: FallbackCause) -> None:
        """The request is asked the ordinary way."""
        self.rendered = self.continues = None
        self.parts.metrics.exact_fallbacks.labels(cause.value).inc()
        log.debug("exact_fallback", cause=cause.value, episode_id=self.held.id)

    async def _ids(self, target: Target, url: str, base: str) -> Tokens:
        fields = self.request.fields
        if any(name in fields for name in _UNSUPPORTED):
            raise Misfit(FallbackCause.UNSUPPORTED_FIELD)
        messages, last = _split(fields["messages"])
        digest = self.thread.answered[0].hex()
        answered = self.parts.known((self.held.id, digest))
        body = engine_body(self.request, target.engine_model_json)
        if answered is not None:
            _check_model(answered, target)
            full = await self.parts.render(url, body)
            rendered = answered.prompt if answered.rendered is None else answered.rendered
        else:
            turn = await self.parts.stored(self.held, digest)
            answered = None if turn is None else answer_of(turn)
            if turn is None or answered is None:
                raise Misfit(FallbackCause.UNKNOWN_ANSWER)
            _check_model(answered, target)
            earlier = self._body(target, messages[:last])
            full, rendered = await asyncio.gather(self.parts.render(url, body), self.parts.render(url, earlier))
            if rendered != answered.prompt and not _rendered_alike(turn.sampling, fields):
                raise Misfit(FallbackCause.TEMPLATE)
        ids = continued(answered, rendered, full)
        if ids is None:
            closed, ending = await asyncio.gather(
                self.parts.render(url, self._body(target, messages[: last + 1], add_generation_prompt=_FALSE)),
                self.parts.ending(url, base, target.engine_model),
            )
            ids = spliced(answered, rendered, full, closed, ending, keep_stop_text=self.held.attempt)
        self.rendered, self.continues = (None if ids == full else full), (self.held.id, digest)
        self.parts.metrics.exact_turns.labels("as_rendered" if self.rendered is None else "kept").inc()
        return ids

    def _body(self, target: Target, messages: Sequence[Raw], **more: Raw) -> bytes:
        """The request with a part of its messages."""
        return _encode({**self.request.fields, "model": target.engine_model_json, "messages": messages, **more})


def _split(raw: Raw) -> tuple[list[Raw], int]:
    """The messages, and the index of the last one of the assistant."""
    messages, roles = _decode_messages(raw), _decode_roles(raw)
    return messages, max(index for index, message in enumerate(roles) if message.role == "assistant")


def _check_model(answered: Answered, target: Target) -> None:
    if (answered.policy, answered.version) != (target.policy, target.version):
        raise Misfit(FallbackCause.OTHER_MODEL)


def _rendered_alike(sampling: Mapping[str, Any], fields: Mapping[str, Raw]) -> bool:
    """Whether two requests agree in whatever shows in a rendering beside the messages."""
    none = (None, "none")
    if (sampling.get("tool_choice") in none) != (_value(fields, "tool_choice") in none):
        return False
    return all(sampling.get(name) == _value(fields, name) for name in _RENDERED)


def _value(fields: Mapping[str, Raw], name: str) -> Any:
    raw = fields.get(name)
    return None if raw is None else msgspec.json.decode(raw)


def _probe(engine_model: str, answer: str) -> dict[str, Any]:
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": answer}]
    return {"model": engine_model, "messages": messages, "add_generation_prompt": False}
