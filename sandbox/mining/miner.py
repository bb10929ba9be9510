"""Miner: proposes Tasks from consented Episodes of clients, and takes the decisions about them."""

import hashlib
import json
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

import structlog

from core.config.learner import LearnerSection
from core.config.learner_live import MiningSection
from core.episode import Episode, EpisodeStatus
from core.errors import NotFound, TaskError
from core.feedback import Feedback, FeedbackKind
from core.live_signals import LiveSignal, read_signal, said_about
from core.mined_task import MINED_TRANSITIONS, MinedStatus, MinedTask
from core.noun import now
from core.task import Domain, Limits, Split, Task, ToolSpec, VerifierSpec, make_task
from core.turn import Turn
from sandbox.mining.judging import Judging, judging_of
from sandbox.mining.starting_point import StartingPoint, starting_points
from sandbox.tools.registry import tool_names
from sandbox.verifiers.registry import check_spec
from store.store import Store
from store.unit_of_work import UnitOfWork

log = structlog.get_logger(__name__)

_DAY = 86_400.0
_PAGE = 500
_CLIENT = "client"
BY_POLICY = "policy"


class MiningRefusal(StrEnum):
    """Why nothing was mined from a request."""

    NO_CONSENT = "no_consent"
    NO_JUDGEMENT = "no_judgement"
    """The record tells no way to judge another answer."""
    FOREIGN_TOOLS = "foreign_tools"
    """It needs functions of the client, which the sandbox does not have."""
    TOO_LONG = "too_long"
    UNUSABLE = "unusable"
    """No verifier can be made of it, such as of a schema that is none."""
    KNOWN = "known"
    """A Task like it was proposed before."""


@dataclass(frozen=True)
class MiningReport:
    """What one pass did."""

    episodes: int
    proposed: int
    accepted: int
    """Of the proposed: without review, by configuration."""
    refused: dict[str, int]


async def mine(
    store: Store,
    config: LearnerSection,
    *,
    policy: str,
    domain: str | None = None,
    split: Split = "train",
    limit: int = 1_000,
) -> MiningReport:
    """Propose Tasks from Episodes of clients with ``policy`` that nothing was mined from yet, the newest first.

    The pass ends after the Episode with which ``limit`` Tasks are proposed: Episodes that give none never use it up.

    Mined Tasks are never held out unless ``split`` asks for it: what a policy learned from cannot test it.
    """
    refused: Counter[str] = Counter()
    looked_at = proposed = accepted = 0
    async for episode in _episodes(store, config, policy=policy, domain=domain):
        if proposed >= limit:
            break
        looked_at += 1
        async with store.transaction() as work:
            turns = await work.turns.for_episode(episode.id)
            feedback = (await work.feedback.on_episodes([episode.id])).get(episode.id, [])
            mined, causes = propose(episode, turns, feedback, config=config, split=split)
            refused.update(causes)
            for one in mined:
                if not await work.mined.add_many([one]):
                    refused[MiningRefusal.KNOWN] += 1
                    continue
                proposed += 1
                if _accepted_unseen(one, config.mining):
                    await decide(work, one.id, accept=True, by=BY_POLICY)
                    accepted += 1
    log.info("tasks_mined", policy=policy, episodes=looked_at, proposed=proposed, accepted=accepted)
    return MiningReport(episodes=looked_at, proposed=proposed, accepted=accepted, refused=dict(refused))


def propose(
    episode: Episode,
    turns: Sequence[Turn],
    feedback: Sequence[Feedback],
    *,
    config: LearnerSection,
    split: Split = "train",
) -> tuple[list[MinedTask], Counter[str]]:
    """Proposals from one Episode, and why its other requests gave none. Pure."""
    refused: Counter[str] = Counter()
    allowed = [turn for turn in turns if _may_be_mined(episode, turn)]
    if not allowed:
        return [], Counter({MiningRefusal.NO_CONSENT: 1})
    said = said_about(episode, feedback, judged=episode.reward, config=config.live)
    signal = read_signal(said, allowed, config.live)
    comments = tuple(str(one.value) for one in feedback if one.kind is FeedbackKind.COMMENT and one.training_granted)
    found = []
    for point in starting_points(episode, allowed):
        judging = judging_of(
            point,
            reward=_reward(point, signal),
            demonstration=signal.demonstrations.get(point.turns[-1].id),
            comments=comments,
            config=config.mining,
        )
        if judging is None:
            refused[MiningRefusal.NO_JUDGEMENT] += 1
            continue
        refusal = _obstacle(point, config.mining)
        if refusal is not None:
            refused[refusal] += 1
            continue
        try:
            task = _task(episode, point, judging, config=config, split=split)
            for spec in task.verifiers:
                check_spec(spec)
        except TaskError as error:
            # The client wrote what the verifier is made of: it must not end the pass over the others.
            log.warning("request_not_mined", episode=episode.id, error=error.message)
            refused[MiningRefusal.UNUSABLE] += 1
            continue
        found.append(_mined(episode, task, judging))
    return found, refused


async def decide(work: UnitOfWork, mined_id: str, *, accept: bool, by: str, reason: str | None = None) -> MinedTask:
    """Accept (the Task joins the others, its Domain is made where it is new) or reject a proposal.

    Raises NotFound, and InvalidTransition when it was decided already.
    """
    mined = await work.mined.get(mined_id, lock=True)
    status = MinedStatus.ACCEPTED if accept else MinedStatus.REJECTED
    MINED_TRANSITIONS.check(mined.status, status)
    decided = mined.model_copy(update={"status": status, "decided_by": by, "reason": reason})
    await work.mined.update(decided)
    if accept:
        try:
            await work.domains.get(mined.task.domain)
        except NotFound:
            described = "Tasks from what clients asked"
            await work.domains.put(Domain(name=mined.task.domain, kind="text", description=described))
        await work.tasks.add_many([mined.task])
    return decided


async def _episodes(
    store: Store, config: LearnerSection, *, policy: str, domain: str | None
) -> AsyncIterator[Episode]:
    """Those that may be looked at, the newest first; no transaction is open while one is handed out."""
    since = now() - config.live.max_age_days * _DAY
    before: str | None = None
    while True:
        async with store.reading() as work:
            page = await work.episodes.list(policy=policy, purpose=_CLIENT, limit=_PAGE, before=before)
            known = await work.mined.mined_from([episode.id for episode in page])
        for episode in page:
            if (
                episode.id not in known
                and episode.trainable
                and episode.created_at >= since
                and episode.status is not EpisodeStatus.INVALID
                and domain in (None, episode.domain or config.live.domain)
            ):
                yield episode
        if len(page) < _PAGE or page[-1].created_at < since:
            return
        before = page[-1].id


def _may_be_mined(episode: Episode, turn: Turn) -> bool:
    """By consent to the very call; a redacted Turn trains no more, as its tokens are gone, but its text may stand
    in a Task."""
    return turn.content_kept and (turn.trainable or (turn.redacted and turn.consented and episode.trainable))


def _reward(point: StartingPoint, signal: LiveSignal) -> float | None:
    return signal.rewards.get(point.turns[-1].id, signal.whole)


def _obstacle(point: StartingPoint, config: MiningSection) -> MiningRefusal | None:
    if set(point.tools) - set(tool_names()):
        return MiningRefusal.FOREIGN_TOOLS
    size = len(json.dumps(point.messages, ensure_ascii=False, default=str))
    files = sum(len(text) for text in point.files.values())
    if size > config.prompt_characters or files > config.file_characters:
        return MiningRefusal.TOO_LONG
    return None


def _task(episode: Episode, point: StartingPoint, judging: Judging, *, config: LearnerSection, split: Split) -> Task:
    longest = max((len(turn.output_ids) or turn.usage.completion_tokens for turn in point.turns), default=0)
    limits = Limits(
        max_turns=config.mining.max_turns if point.tools else 1,
        max_tokens=max(config.mining.max_tokens, longest),
    )
    return make_task(
        domain=episode.domain or config.live.domain,
        split=split,
        messages=point.messages,
        tools=tuple(ToolSpec(name=name) for name in point.tools),
        verifiers=judging.verifiers,
        limits=limits,
        files=point.files,
        demonstration=judging.demonstration,
        metadata={"source": "mined", "episode_id": episode.id, "turn_id": point.turns[-1].id},
    )


def _mined(episode: Episode, task: Task, judging: Judging) -> MinedTask:
    return MinedTask(
        id=task.id,
        tenant_id=episode.tenant_id,
        episode_id=episode.id,
        digest=_digest(task),
        judged_by=judging.judged_by,
        task=task,
    )


def _digest(task: Task) -> str:
    """Of what is asked, from what state, judged how: wherever it was recorded."""
    content = [
        [[message.get("role"), _gist(message.get("content"))] for message in task.messages],
        task.files,
        [[spec.name, spec.options] for spec in task.verifiers],
    ]
    return hashlib.sha256(json.dumps(content, sort_keys=True, default=str).encode()).hexdigest()[:32]


def _gist(content: object) -> object:
    return " ".join(content.casefold().split()) if isinstance(content, str) else content


def _accepted_unseen(mined: MinedTask, config: MiningSection) -> bool:
    return config.accept == "all" or (config.accept == "verified" and not _judged_by_model(mined.task.verifiers))


def _judged_by_model(verifiers: Sequence[VerifierSpec]) -> bool:
    return any(spec.name == "rubric" for spec in verifiers)
