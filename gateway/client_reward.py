"""Closes a client's Episode, with the client's own judgement as Verdict and Reward."""

from dataclasses import dataclass
from typing import Any

from core import ids
from core.episode import Episode, EpisodeStatus, StopReason
from core.errors import Conflict
from core.noun import now
from core.turn import Turn
from core.verdict import Verdict, VerdictStatus, combine_verdicts
from gateway.experiments.outcomes import update_reward
from store.unit_of_work import UnitOfWork

VERIFIER = "client"
"""Name of the verifier in Verdicts that clients gave."""
_VERIFIER_VERSION = "1"
_CUT_OFF = "length"


@dataclass(frozen=True, slots=True)
class ClosingStatement:
    """What a client says when it closes an Episode; neither reward nor success: it does not judge."""

    reward: float | None
    success: bool | None
    metadata: dict[str, str]
    key_id: str

    @property
    def judges(self) -> bool:
        """Whether the Episode is scored by it."""
        return self.reward is not None or self.success is not None

    @property
    def score(self) -> float:
        """From 0 to 1."""
        return float(bool(self.success)) if self.reward is None else self.reward

    @property
    def succeeded(self) -> bool:
        """As said, or whether the score is full."""
        return self.score == 1.0 if self.success is None else self.success


async def close_episode(work: UnitOfWork, episode: Episode, said: ClosingStatement) -> Episode:
    """The Episode as it is afterwards: finished, or scored.

    ``episode`` is locked by this transaction. The Turns that are durable now are those that it names, and only they
    may train. An Episode that is finished may be judged later. Raises Conflict for a second judgement that differs
    from the first, for an Episode that expired or is invalid, and for one that the sandbox runs.
    """
    if episode.purpose != "client":
        raise Conflict(f"Episode '{episode.id}' is run by the installation itself, which judges it")
    if episode.status is EpisodeStatus.SCORED:
        return _repeated(episode, said)
    if episode.status not in (EpisodeStatus.RUNNING, EpisodeStatus.FINISHED):
        raise Conflict(
            f"Episode '{episode.id}' is {episode.status} and can no longer be judged",
            hint="POST /v1/feedback takes what is to be said about it",
        )
    finished = await _finish(work, episode, said)
    return await _score(work, finished, said) if said.judges else finished


async def _finish(work: UnitOfWork, episode: Episode, said: ClosingStatement) -> Episode:
    changes: dict[str, Any] = {"metadata": episode.metadata | said.metadata}
    if episode.status is EpisodeStatus.RUNNING:
        turns = await work.turns.for_episode(episode.id)
        changes |= {
            "status": EpisodeStatus.FINISHED,
            "turn_ids": tuple(turn.id for turn in turns),
            "stop_reason": _stop_reason(turns),
            "finished_at": now(),
        }
    finished = episode.model_copy(update=changes)
    await work.episodes.update(finished)
    return finished


async def _score(work: UnitOfWork, episode: Episode, said: ClosingStatement) -> Episode:
    verdict = Verdict(
        id=ids.new_id(ids.VERDICT),
        episode_id=episode.id,
        verifier=VERIFIER,
        verifier_version=_VERIFIER_VERSION,
        status=VerdictStatus.SCORED,
        score=said.score,
        success=said.succeeded,
        evidence={"key_id": said.key_id},
    )
    await work.verdicts.add_many([verdict])
    reward = combine_verdicts(episode.id, [verdict])
    if reward is not None:
        await work.rewards.put(reward)
    scored = episode.model_copy(
        update={"status": EpisodeStatus.SCORED, "reward": said.score, "success": said.succeeded}
    )
    await work.episodes.update(scored)
    await update_reward(work, scored.id)
    return scored


def _repeated(episode: Episode, said: ClosingStatement) -> Episode:
    same_judgement = not said.judges or (episode.reward, episode.success) == (said.score, said.succeeded)
    if same_judgement and said.metadata.items() <= episode.metadata.items():
        return episode
    raise Conflict(
        f"Episode '{episode.id}' was closed with reward {episode.reward} and success {episode.success}",
        hint="POST /v1/feedback takes what is to be said later",
    )


def _stop_reason(turns: list[Turn]) -> StopReason:
    """An answer that met its token limit leaves the loss and stays in the baseline."""
    cut_off = any(turn.finish_reason == _CUT_OFF for turn in turns)
    return StopReason.TRUNCATED if cut_off else StopReason.ANSWERED
