"""Puts the gateway together: the only place where its parts meet."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI
from prometheus_client import CollectorRegistry

from core.config.schema import HoneConfig
from gateway import episodes_api, feedback_api
from gateway.admin.routes import admin_router
from gateway.anthropic_api import routes as messages
from gateway.auth import Authenticator
from gateway.capture.journal import journal_root
from gateway.episodes import Episodes
from gateway.erasure.desk import ErasureDesk
from gateway.errors import install_error_handlers
from gateway.experiments.parts import ExperimentParts
from gateway.hosted_tools.tools import SandboxedTools
from gateway.http.bound import hot_protocol
from gateway.http.protocol import HotProtocol
from gateway.idempotency import RecordedAnswers
from gateway.inference.dispatch import Dispatch
from gateway.inference.exact import ExactTurns
from gateway.inference.request import Endpoint
from gateway.inference.service import InferenceService
from gateway.limits.leased import LeasedLimits
from gateway.metrics import GatewayMetrics
from gateway.middleware import GatewayMiddleware
from gateway.openai_api import models, passthrough, stored
from gateway.openai_api.endpoint import InferenceEndpoint
from gateway.openai_api.routes import CHAT_PATH, COMPLETIONS_PATH, inference_routes
from gateway.openapi import DocumentedApp
from gateway.outside.models import OutsideModels
from gateway.probes import router as probes_router
from gateway.recorder import Recorder
from gateway.registry.desk import VersionDesk
from gateway.release import ReleaseDesk
from gateway.responses_api.routes import responses_router
from gateway.responses_api.service import responses_service
from gateway.routing import Routing
from gateway.shadow.parts import ShadowParts
from gateway.sibling_metrics import SiblingMetrics
from gateway.state import Gateway
from gateway.upstream.lean_client import LeanUpstream
from store.store import Store


def create_app(
    config: HoneConfig, store: Store, *, registry: CollectorRegistry, siblings: SiblingMetrics | None = None
) -> FastAPI:
    """The gateway as an ASGI application. The caller opens and closes ``store``; metrics go to ``registry``.

    ``siblings``: the metrics of all processes that share the port, where there are several.
    """
    gateway = _assemble(config, store, registry, siblings)

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        await gateway.start()
        try:
            yield
        finally:
            await gateway.stop()

    app = DocumentedApp(
        title="Hone",
        summary="One gateway that serves a base model, learns from what it serves and releases only what is better.",
        version="1",
        lifespan=lifespan,
        redirect_slashes=False,
    )
    app.state.gateway = gateway
    routes = inference_routes(gateway.hot_handlers)
    app.router.routes.extend(routes)
    for part in (models, messages, stored, passthrough, feedback_api, episodes_api):
        app.include_router(part.router)
    app.include_router(responses_router(responses_service(gateway)))
    app.include_router(probes_router)
    app.include_router(admin_router())
    install_error_handlers(app)
    app.add_middleware(
        GatewayMiddleware,
        metrics=gateway.metrics,
        hot_paths={("POST", route.path): route.app for route in routes},
    )
    return app


def http_protocol(app: FastAPI) -> type[HotProtocol]:
    """The class for ``uvicorn.Config(http=…)`` that answers the hot routes of an app made here past ASGI."""
    gateway: Gateway = app.state.gateway
    return hot_protocol(
        {path.encode(): handler for path, handler in gateway.hot_handlers.items()},
        request_read_seconds=gateway.config.gateway.request_read_seconds,
        on_refused=gateway.metrics.request_refused,
    )


def _assemble(
    config: HoneConfig, store: Store, registry: CollectorRegistry, siblings: SiblingMetrics | None
) -> Gateway:
    metrics = GatewayMetrics(registry)
    routing = Routing(config=config, store=store, metrics=metrics)
    episodes = Episodes(config=config, store=store, metrics=metrics)
    answers = RecordedAnswers()
    recorder = Recorder(config=config, store=store, metrics=metrics)
    upstream = LeanUpstream(config=config)
    outside = OutsideModels(config=config, metrics=metrics)
    limits = LeasedLimits(config=config, store=store, metrics=metrics)
    experiments = ExperimentParts.build(config=config, store=store, routing=routing, gateway_metrics=metrics)
    shadow = ShadowParts.build(
        config=config, store=store, routing=routing, upstream=upstream, gateway_metrics=metrics
    )
    experiments.live.followers.append(shadow.mirror.follow)
    inference = InferenceService(
        limits=limits,
        episodes=episodes,
        answers=answers,
        dispatch=Dispatch(config=config, routing=routing, upstream=upstream, outside=outside, metrics=metrics),
        exact=ExactTurns(config=config, store=store, upstream=upstream, metrics=metrics),
        recorder=recorder,
        metrics=metrics,
        experiments=experiments.live,
        shadows=shadow.mirror,
    )
    authenticator = Authenticator(store=store)
    endpoints: dict[str, Endpoint] = {CHAT_PATH: "chat.completions", COMPLETIONS_PATH: "completions"}
    return Gateway(
        config=config,
        store=store,
        metrics=metrics,
        authenticator=authenticator,
        hot_handlers={
            path: InferenceEndpoint(
                path=path, endpoint=endpoint, authenticator=authenticator, inference=inference, metrics=metrics
            )
            for path, endpoint in endpoints.items()
        },
        routing=routing,
        episodes=episodes,
        answers=answers,
        recorder=recorder,
        upstream=upstream,
        limits=limits,
        outside=outside,
        inference=inference,
        releases=ReleaseDesk(store=store),
        versions=VersionDesk(config=config, store=store),
        erasure=ErasureDesk(
            store=store, recorder=recorder, authenticator=authenticator, journals=journal_root(config)
        ),
        siblings=siblings,
        hosted_tools=SandboxedTools(config=config),
        experiments=experiments,
        shadow=shadow,
    )
