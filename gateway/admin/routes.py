"""Gathers the admin routes under ``/admin/v1``."""

from fastapi import APIRouter, Depends

from gateway.admin import (
    audit,
    deployments,
    drafters,
    episodes,
    erasure,
    evaluations,
    experiments,
    fleets,
    health,
    jobs,
    keys,
    policies,
    releases,
    runs,
    shadows,
    speculation,
    suites,
    tenants,
    versions,
)
from gateway.dependencies import BEARER

_ROUTERS = (
    policies.router,
    releases.router,
    episodes.router,
    deployments.router,
    drafters.router,
    fleets.router,
    speculation.router,
    jobs.router,
    runs.router,
    evaluations.router,
    suites.router,
    experiments.router,
    shadows.router,
    tenants.router,
    versions.router,
    erasure.router,
    keys.router,
    audit.router,
    health.router,
)


def admin_router() -> APIRouter:
    """All of them; each route checks its scope."""
    router = APIRouter(prefix="/admin/v1", dependencies=[Depends(BEARER)])
    for part in _ROUTERS:
        router.include_router(part)
    return router
