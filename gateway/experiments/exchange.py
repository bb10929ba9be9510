"""ExposedExchange: a call that may be part of an A/B Experiment: as every other call, and which arm answers."""

import asyncio
import time

from core.errors import EngineError, EngineUnavailable, HoneError
from gateway.episodes import HeldEpisode
from gateway.experiments.exposure import Exposure, with_variant
from gateway.experiments.live import LiveExperiments
from gateway.inference.base import Call
from gateway.inference.exchange import EngineExchange
from gateway.inference.request import CapturePlan, InferenceRequest
from gateway.inference.service import InferenceService, OpenExchange
from gateway.inference.target import Sent

_FAILED = 500
"""Status from which on a failure is the arm's and not the client's."""


class ExposedExchange(OpenExchange):
    """The block of one call while an Experiment runs."""

    __slots__ = ("_experiments", "_exposure")

    def __init__(
        self, service: InferenceService, call: Call, request: InferenceRequest, *, experiments: LiveExperiments
    ) -> None:
        super().__init__(service, call, request)
        self._experiments = experiments
        self._exposure: Exposure | None = None

    def _plan(self, held: HeldEpisode) -> CapturePlan:
        exposure = self._exposure = self._experiments.expose(self._call, self._request, held)
        if exposure is not None:
            self._request = with_variant(self._request, exposure)
        return super()._plan(held)

    def _answer(self, sent: Sent, held: HeldEpisode) -> EngineExchange:
        if self._exposure is not None:
            sent.target = self._experiments.answered(self._exposure, sent.target, held)
        return super()._answer(sent, held)

    async def _episode(self) -> HeldEpisode:
        held = self._held = await super()._episode()
        return held

    def finish(self) -> None:
        """See ``OpenExchange``."""
        if self._begun is not None:
            # Its answer never came: only a client that leaves ends such a call.
            self._gave_up()
        super().finish()

    def _gave_up(self) -> None:
        exposure, held = self._exposure, self._held
        if exposure is not None and held is not None:
            waited = time.perf_counter() - self._clock
            self._experiments.given_up(exposure, held, self._call.request_id, waited)

    async def _open(self) -> EngineExchange:
        try:
            return await super()._open()
        except asyncio.CancelledError:
            self._gave_up()
            raise
        except HoneError as error:
            exposure, held = self._exposure, self._held
            if exposure is None or held is None or error.status < _FAILED:
                raise
            self._experiments.failed(exposure, held, self._call.request_id)
            if not isinstance(error, EngineError | EngineUnavailable) or not _may_fall_back(exposure, held):
                raise
            # No answer has been given in this Episode: the client shall have one, and the record says whose it is.
            self._experiments.fall_back(exposure, held, "unavailable")
            held.last_deployment = None
            return await super()._open()


def _may_fall_back(exposure: Exposure, held: HeldEpisode) -> bool:
    """Whether an Episode that has had no answer yet was bound for another version than the promoted one."""
    return not exposure.fell_back and held.next_index == 0 and exposure.experiment.policy in held.versions


class RoutedExperiments(LiveExperiments):
    """Implements ``gateway.inference.service.Experiments``: what runs, and the exchanges while something does."""

    def open(self, service: InferenceService, call: Call, request: InferenceRequest) -> OpenExchange:
        """The block of one call."""
        return ExposedExchange(service, call, request, experiments=self)
