"""LiveFeed: finds the Episodes of clients that a Policy's line has not learned from yet, a step's worth at a time."""

from collections import Counter
from typing import Any

import structlog

from core.config.learner_live import LiveSection
from core.episode import Episode, EpisodeStatus
from core.errors import NotFound
from core.live import LiveState
from core.live_signals import Said, said_about
from core.noun import now
from core.run import TrainingRun
from learner.live.intake import LiveBatch, LiveEpisode, build_live_batch, take
from learner.live.quota import choose_fairly
from store.store import Store
from store.unit_of_work import UnitOfWork

log = structlog.get_logger(__name__)

_DAY = 86_400.0
_MOST_LOOKED_AT = 20_000
"""Episodes of one look at the store, those with the newest Feedback first."""
_PAGE = 500
_CLIENT = "client"


class LiveFeed:
    """Hands out each Episode once: what was said is a part of it, so an Episode comes again when that changes."""

    def __init__(self, *, store: Store, config: LiveSection, run: TrainingRun, tokenizer: Any) -> None:
        self._store = store
        self._config = config
        self._run = run
        self._tokenizer = tokenizer
        self._line: tuple[int, ...] = ()
        self._trained: dict[str, str] = {}
        """Episode → digest of what was said about it when it trained, or was refused by this feed."""
        self._waiting: list[LiveEpisode] = []
        self._refused: Counter[str] = Counter()
        self._tenants: set[str] = set()
        """All that have said something lately, about Episodes that have trained too."""
        self._taken: Counter[str] = Counter()
        """Episodes of this run by tenant."""
        self.state = LiveState()
        """As of the newest version of the line."""

    @property
    def waiting(self) -> int:
        """Episodes found and not handed out yet."""
        return len(self._waiting)

    async def open(self, version: int) -> None:
        """Learn what the line of PolicyVersions up to ``version`` knows, and look for Episodes."""
        async with self._store.reading() as work:
            self._line = await line_of(work, self._run.policy, version)
            for one in self._line[1:]:
                try:
                    known = (await work.checkpoints.for_version(self._run.policy, one)).provenance.live
                except NotFound:
                    log.warning("live_state_unknown", policy=self._run.policy, version=one)
                    continue
                if known is not None:
                    self.state = known
                    self._trained |= known.trained
        await self._look()

    async def next(self, *, shuffle_seed: str | None = None) -> LiveBatch | None:
        """The next step's Episodes; None: there are not enough. Raises LearnerError for a reward not finite."""
        if len(self._waiting) < self._config.episodes_per_step:
            await self._look()
        chosen = choose_fairly(
            self._waiting,
            tenant=lambda one: one.episode.tenant_id,
            size=self._config.episodes_per_step,
            share=self._config.tenant_share if len(self._tenants) > 1 else 1.0,
            before=self._taken,
        )
        if len(chosen) < self._config.min_episodes:
            return None
        batch = build_live_batch(
            chosen,
            baselines=self.state.baselines,
            line=self._line,
            config=self._config,
            tokenizer=self._tokenizer,
            shuffle_seed=shuffle_seed,
        )
        causes = {f"refused_{cause}": float(number) for cause, number in self._refused.items()}
        self._refused.clear()
        self._taken.update(one.episode.tenant_id for one in chosen)
        taken = set(batch.episode_ids)
        self._waiting = [one for one in self._waiting if one.episode.id not in taken]
        self._trained |= batch.state.trained
        self.state = batch.state
        return LiveBatch(
            mixture=batch.mixture,
            episode_ids=batch.episode_ids,
            state=batch.state,
            reward_mean=batch.reward_mean,
            values={name: causes.get(name, 0.0) + batch.values.get(name, 0.0) for name in causes | batch.values},
        )

    def published(self, version: int) -> None:
        """The step that was handed out last has become ``version``."""
        self._line = (*self._line, version)

    async def _look(self) -> None:
        """Find what has come since: new Episodes, and new Feedback on old ones."""
        async with self._store.reading() as work:
            candidates = await self._candidates(work)
            self._tenants = {said.episode.tenant_id for said in candidates}
            candidates = [said for said in candidates if self._trained.get(said.episode.id) != said.digest]
            known = {one.episode.id: one for one in self._waiting}
            found = []
            for said in candidates:
                waiting = known.get(said.episode.id)
                if waiting is not None and waiting.said.digest == said.digest:
                    found.append(waiting)
                    continue
                turns = await work.turns.for_episode(said.episode.id)
                taken = take(said, turns, policy=self._run.policy, config=self._config)
                if isinstance(taken, LiveEpisode):
                    found.append(taken)
                else:
                    self._refused[taken] += 1
                    self._trained[said.episode.id] = said.digest
        self._waiting = found

    async def _candidates(self, work: UnitOfWork) -> list[Said]:
        """Settled Episodes that something was said about, oldest first."""
        since = now() - self._config.max_age_days * _DAY
        ids = await work.feedback.episodes_since(since, limit=_MOST_LOOKED_AT)
        episodes = {episode.id: episode for episode in await work.episodes.get_many(ids)}
        episodes |= {episode.id: episode for episode in await self._closed(work, since)}
        mine = [episode for episode in episodes.values() if self._is_mine(episode)]
        feedback = await work.feedback.on_episodes([episode.id for episode in mine])
        found = []
        for episode in mine:
            judged = await self._judged(work, episode)
            said = said_about(episode, feedback.get(episode.id, []), judged=judged, config=self._config)
            settled = episode.status is not EpisodeStatus.RUNNING or (
                now() - said.newest >= self._config.settle_seconds
            )
            if settled and (said.feedback or said.judged is not None):
                found.append(said)
        return sorted(found, key=lambda said: (said.episode.created_at, said.episode.id))

    async def _closed(self, work: UnitOfWork, since: float) -> list[Episode]:
        """Episodes that have a reward of their own."""
        if self._config.closing_weight <= 0:
            return []
        found: list[Episode] = []
        before: str | None = None
        while len(found) < _MOST_LOOKED_AT:
            page = await work.episodes.list(
                policy=self._run.policy,
                purpose=_CLIENT,
                status=EpisodeStatus.SCORED,
                limit=_PAGE,
                before=before,
            )
            found += [episode for episode in page if episode.created_at >= since]
            if len(page) < _PAGE or page[-1].created_at < since:
                break
            before = page[-1].id
        return found

    async def _judged(self, work: UnitOfWork, episode: Episode) -> float | None:
        if episode.reward is not None or self._config.closing_weight <= 0:
            return episode.reward
        try:
            return (await work.rewards.get(episode.id)).value
        except NotFound:
            return None

    def _is_mine(self, episode: Episode) -> bool:
        wanted = self._run.domains
        return (
            episode.purpose == _CLIENT
            and episode.policy == self._run.policy
            and episode.status is not EpisodeStatus.INVALID
            and (not wanted or (episode.domain or self._config.domain) in wanted)
        )


async def line_of(work: UnitOfWork, policy: str, version: int) -> tuple[int, ...]:
    """The PolicyVersions that ``version`` comes from, oldest first (version 0, the Base), itself last."""
    parents = {one.version: one.parent_version for one in await work.versions.list(policy)}
    line: list[int] = []
    at: int | None = version
    while at and at not in line:
        line.append(at)
        at = parents.get(at)
    return (0, *reversed(line))
