"""Runs a Task's verifiers on an attempt. A verifier that crashes gives an invalid Verdict, never a zero."""

from collections.abc import Sequence

import structlog

from core.episode import StopReason
from core.ids import VERDICT, new_id
from core.task import Task, VerifierSpec
from core.verdict import Verdict, VerdictStatus
from sandbox.runtimes.base import Runtime
from sandbox.text import clean_text
from sandbox.verifiers.base import Attempt, Judgement, JudgeModel, Verifier, agent_failed
from sandbox.verifiers.registry import make_verifier

log = structlog.get_logger(__name__)

_EVIDENCE_CHARACTERS = 2_000


def make_verifiers(task: Task, runtime: Runtime, judge: JudgeModel | None = None) -> list[Verifier]:
    """The Task's verifiers in their order; raises TaskError when one is unknown or malformed."""
    return [make_verifier(spec, runtime, judge) for spec in task.verifiers]


async def judge_attempt(attempt: Attempt, verifiers: Sequence[Verifier]) -> list[Verdict]:
    """One Verdict for each verifier of the Task, in its order."""
    return [
        await _verdict(attempt, spec, verifier)
        for spec, verifier in zip(attempt.task.verifiers, verifiers, strict=True)
    ]


async def _verdict(attempt: Attempt, spec: VerifierSpec, verifier: Verifier) -> Verdict:
    judgement = await _judgement(attempt, verifier)
    return Verdict(
        id=new_id(VERDICT),
        episode_id=attempt.episode_id,
        verifier=verifier.name,
        verifier_version=verifier.version,
        status=judgement.status,
        score=judgement.score,
        success=judgement.success,
        weight=spec.weight,
        evidence=judgement.evidence,
    )


async def _judgement(attempt: Attempt, verifier: Verifier) -> Judgement:
    if attempt.stop_reason is StopReason.TIMED_OUT:
        return agent_failed("the attempt ran out of time")
    # Tolerance is the purpose: what a verifier raises says nothing about the policy and voids the attempt.
    try:
        return await verifier.judge(attempt)
    except Exception as error:
        log.exception("verifier_crashed", verifier=verifier.name, episode_id=attempt.episode_id)
        message = clean_text(f"{type(error).__name__}: {error}", _EVIDENCE_CHARACTERS)
        return Judgement(status=VerdictStatus.INVALID, score=0.0, success=False, evidence={"error": message})
