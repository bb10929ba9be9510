"""A gateway with two live versions of its Policy and what tests of Experiments ask it."""

from typing import Any

from core.arm_outcome import ArmOutcome
from core.experiment import Experiment
from tests.gateway_harness import POLICY, QUESTION, Harness, hone_headers

PATH = "/v1/chat/completions"
CHAT: dict[str, Any] = {"model": POLICY, "messages": QUESTION, "max_tokens": 4, "seed": 1}

NEARLY_ALL = 0.999999
"""Of the keys: what a test draws has the candidate."""


async def with_candidate(harness: Harness) -> int:
    """A replica that holds a live candidate; its number."""
    version = await harness.mint()
    await harness.add_engine(versions=(version.version,))
    return version.version


async def begin(harness: Harness, version: int | None, **fields: Any) -> Experiment:
    """An Experiment begun by the admin API; half of the keys get the candidate."""
    body = {"policy": POLICY, "candidate_version": version, "share": 0.5, "reason": "a test"} | fields
    status, answer = await harness.admin("POST", "/experiments", body)
    assert status == 201, answer
    return Experiment.model_validate(answer)


async def ask(
    harness: Harness, body: dict[str, Any] | None = None, key: str = "user", **headers: str
) -> dict[str, str]:
    """The ``x-hone-`` headers of an answer."""
    response = await harness.post(PATH, CHAT | (body or {}), key, **headers)
    assert response.status == 200, await response.text()
    return hone_headers(response)


async def ask_as(harness: Harness, arm: str, body: dict[str, Any] | None = None, **headers: str) -> dict[str, str]:
    """As ``ask``, until a new conversation gets ``arm``."""
    for _ in range(200):
        found = await ask(harness, body, **headers)
        if found.get("arm-assigned", found.get("arm")) == arm:
            return found
    raise AssertionError(f"no conversation got {arm}")


async def outcomes(harness: Harness, experiment_id: str) -> dict[str, ArmOutcome]:
    """Episode → outcome, once all that was answered or failed is written."""
    assert await harness.gateway.recorder.flush(10.0)
    await harness.gateway.experiments.failures.flush()
    async with harness.store.reading() as work:
        return {one.episode_id: one for one in await work.arm_outcomes.after(experiment_id)}
