"""Puts the gateway together: the only place where its parts meet."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI
from prometheus_client import CollectorRegistry

from core.config.schema import HoneConfig
from gateway.admin.routes import admin_router
from gateway.auth import Authenticator
from gateway.episodes import Episodes
from gateway.errors import install_error_handlers
from gateway.idempotency import RecordedAnswers
from gateway.metrics import GatewayMetrics
from gateway.middleware import GatewayMiddleware
from gateway.openai_api import models
from gateway.openai_api.inference import InferenceEndpoint
from gateway.openai_api.routes import inference_routes
from gateway.probes import router as probes_router
from gateway.recorder import Recorder
from gateway.release import ReleaseDesk
from gateway.routing import Routing
from gateway.state import Gateway
from gateway.upstream.aiohttp_client import Upstream
from store.store import Store


def create_app(config: HoneConfig, store: Store, *, registry: CollectorRegistry) -> FastAPI:
    """The gateway as an ASGI application. The caller opens and closes ``store``; metrics go to ``registry``."""
    gateway = _assemble(config, store, registry)

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        await gateway.start()
        try:
            yield
        finally:
            await gateway.stop()

    app = FastAPI(
        title="Hone",
        summary="One gateway that serves a base model, learns from what it serves and releases only what is better.",
        version="1",
        lifespan=lifespan,
        redirect_slashes=False,
    )
    app.state.gateway = gateway
    routes = inference_routes(
        chat=InferenceEndpoint(gateway=gateway, endpoint="chat.completions"),
        completions=InferenceEndpoint(gateway=gateway, endpoint="completions"),
    )
    app.router.routes.extend(routes)
    app.include_router(models.router)
    app.include_router(probes_router)
    app.include_router(admin_router())
    install_error_handlers(app)
    app.add_middleware(
        GatewayMiddleware,
        metrics=gateway.metrics,
        hot_paths={("POST", route.path): route.app for route in routes},
    )
    return app


def _assemble(config: HoneConfig, store: Store, registry: CollectorRegistry) -> Gateway:
    metrics = GatewayMetrics(registry)
    return Gateway(
        config=config,
        store=store,
        metrics=metrics,
        authenticator=Authenticator(store=store),
        routing=Routing(config=config, store=store, metrics=metrics),
        episodes=Episodes(config=config, store=store, metrics=metrics),
        answers=RecordedAnswers(),
        recorder=Recorder(config=config, store=store, metrics=metrics),
        upstream=Upstream(config=config),
        releases=ReleaseDesk(store=store),
    )
