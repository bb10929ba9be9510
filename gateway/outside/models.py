"""OutsideModels: models of other providers, asked through LiteLLM and answering like an engine."""

import asyncio
from collections.abc import Coroutine, Mapping
from typing import Any

import structlog

from core.config.outside import OutsideProvider
from core.config.schema import HoneConfig
from core.errors import EngineError, InvalidRequest, MachineError, ModelNotFound, boundary
from gateway.inference.request import Endpoint
from gateway.metrics import GatewayMetrics
from gateway.outside.errors import outside_error
from gateway.outside.library import Library
from gateway.outside.request import completion_arguments, prefix_of
from gateway.outside.response import OutsideStream, OutsideWhole
from gateway.upstream.base import UpstreamResponse

log = structlog.get_logger(__name__)


class OutsideModels:
    """Every model whose name begins with a configured provider: ``openai/…``, ``anthropic/…``."""

    def __init__(self, *, config: HoneConfig, metrics: GatewayMetrics) -> None:
        self._providers = dict(config.outside.providers)
        self._preload = config.outside.preload
        self._metrics = metrics
        self._library = Library()
        self._closing: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Import LiteLLM now if the configuration wants it, and only where there is a provider."""
        if self._preload and self._providers:
            await self._load()

    async def stop(self) -> None:
        """End what is open."""
        await asyncio.gather(*self._closing, return_exceptions=True)
        await self._library.close()

    def knows(self, model: str) -> bool:
        """Whether a configured provider answers to this name. Whether it has such a model is for it to say."""
        return prefix_of(model) in self._providers

    async def send(self, model: str, endpoint: Endpoint, body: bytes, stream: bool) -> UpstreamResponse:
        """Send a client's chat completion request; the answer is OpenAI's JSON or events.

        Without ``stream`` the answer is whole when this returns. Cancelling ends the provider's call. Raises
        Unreachable, InvalidRequest, ModelNotFound, RateLimited (with the provider's ``retry_after_seconds``),
        ProviderRefused, EngineUnavailable, EngineError.
        """
        provider = self._providers.get(prefix_of(model))
        if provider is None:
            raise ModelNotFound(f"the model '{model}' does not exist", param="model")
        if endpoint != "chat.completions":
            raise InvalidRequest(
                f"'{model}' answers chat completions only", hint="use /v1/chat/completions", param="model"
            )
        arguments = completion_arguments(model, body, provider, stream=stream)
        library = await self._load()
        try:
            answer = await library.acompletion(**arguments)
        except Exception as error:  # noqa: BLE001 - whatever a provider's adapter raises is counted, logged, translated
            self._metrics.outside_requests.labels(prefix_of(model), "failed").inc()
            raise self._translated(error, model, provider) from None
        self._metrics.outside_requests.labels(prefix_of(model), "answered").inc()
        if not stream:
            return OutsideWhole(answer)
        return OutsideStream(
            answer,
            translate=lambda error: self._translated(error, model, provider),
            in_background=self._in_background,
        )

    def cost_usd(self, model: str, usage: Mapping[str, Any]) -> float | None:
        """What ``usage`` (OpenAI's object) of ``model`` costs; None where LiteLLM has no price for it."""
        library = self._library.loaded
        if library is None:
            return None
        try:
            prompt, completion = library.cost_per_token(model=model, usage_object=library.Usage(**usage))
        except Exception as error:  # noqa: BLE001 - LiteLLM raises bare Exceptions for models without a price
            log.debug("no_price", model=model, error=type(error).__name__)
            return None
        return float(prompt + completion)

    async def count_tokens(self, model: str, body: bytes) -> int:
        """Tokens of a chat request's prompt, as LiteLLM counts for this model: exact for few providers.

        Raises InvalidRequest, and EngineError for messages that LiteLLM cannot count.
        """
        arguments = completion_arguments(model, body, OutsideProvider(), stream=False)
        library = await self._load()
        with boundary(EngineError, f"counting tokens for '{model}'"):
            counted = await asyncio.to_thread(
                library.token_counter, model=model, messages=arguments["messages"], tools=arguments.get("tools")
            )
        return int(counted)

    async def _load(self) -> Any:
        try:
            return await self._library.load()
        except ImportError as error:
            raise MachineError(
                f"outside models need LiteLLM: {error}", hint="install it, or remove outside.providers"
            ) from error

    def _translated(self, error: Exception, model: str, provider: OutsideProvider) -> Exception:
        secrets = [provider.api_key.get_secret_value(), *(v.get_secret_value() for v in provider.headers.values())]
        found = outside_error(error, model, secrets)
        # What the provider says may quote the conversation.
        status = getattr(error, "status_code", None)
        log.warning("outside_request_failed", model=model, error=type(error).__name__, status=status)
        return found

    def _in_background(self, closing: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(closing)
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)
