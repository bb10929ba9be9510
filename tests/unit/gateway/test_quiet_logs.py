"""What others answer to a conversation can quote it, and stays out of the log."""

import json
from typing import Any, Self

import pytest
import structlog
from prometheus_client import CollectorRegistry

from core.config.outside import OutsideProvider
from core.config.schema import HoneConfig
from gateway.inference.exact import ExactTurns
from gateway.inference.splice import Misfit
from gateway.metrics import GatewayMetrics
from gateway.outside.models import OutsideModels


class Refusing:
    """An engine that quotes the conversation in its refusal."""

    status = 400

    async def send(self, *_: Any) -> Self:
        """The answer."""
        return self

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        """Nothing to close."""

    async def read(self) -> bytes:
        """Its body."""
        return b"cannot render: my secret"


async def test_a_refusal_to_render_is_logged_without_its_words() -> None:
    """Only the status is logged."""
    metrics = GatewayMetrics(CollectorRegistry())
    exact = ExactTurns(config=HoneConfig(), store=None, upstream=Refusing(), metrics=metrics)  # type: ignore[arg-type]
    with structlog.testing.capture_logs() as logs, pytest.raises(Misfit):
        await exact.render("http://engine", b"{}")
    assert logs[0]["status"] == 400 and "secret" not in json.dumps(logs)


def test_a_providers_error_is_logged_without_its_words() -> None:
    """Only type and status are logged."""

    class BadRequestError(Exception):
        status_code = 400

    models = OutsideModels(config=HoneConfig(), metrics=GatewayMetrics(CollectorRegistry()))
    with structlog.testing.capture_logs() as logs:
        models._translated(BadRequestError("cannot read: my secret"), "openai/gpt", OutsideProvider())
    assert (logs[0]["error"], logs[0]["status"]) == ("BadRequestError", 400) and "secret" not in json.dumps(logs)
