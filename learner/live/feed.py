"""LiveFeed: finds the Episodes of clients that a Policy's line has not learned from yet, a step's worth at a time."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import structlog

from core.config.learner_live import LiveSection
from core.episode import Episode, EpisodeStatus
from core.errors import NotFound
from core.live import LiveState
from core.live_signals import Said, said_about
from core.noun import now
from core.run import TrainingRun
from learner.live.intake import LiveBatch, LiveEpisode, LiveRefusal, build_live_batch, take
from learner.live.quota import choose_fairly
from store.store import Store
from store.unit_of_work import UnitOfWork

log = structlog.get_logger(__name__)

_DAY = 86_400.0
_MOST_LOOKED_AT = 20_000
"""Episodes of one look at the store, those with the newest Feedback first."""
_PAGE = 500
_CLIENT = "client"


@dataclass(frozen=True)
class _Waiting:
    """An Episode that was found: what it says is read when it is used, in case it is erased meanwhile."""

    episode_id: str
    tenant_id: str
    created_at: float
    digest: str


class LiveFeed:
    """Hands out each Episode once, and again when something else is said about it: then only that is learned."""

    def __init__(self, *, store: Store, config: LiveSection, run: TrainingRun, tokenizer: Any) -> None:
        self._store = store
        self._config = config
        self._run = run
        self._tokenizer = tokenizer
        self._line: tuple[int, ...] = ()
        self._trained: dict[str, str] = {}
        """Episode → digest of what was said about it when it trained, or was refused by this feed."""
        self._learned: dict[str, str] = {}
        """Lesson → digest, of the whole line."""
        self._waiting: list[_Waiting] = []
        self._refused: Counter[str] = Counter()
        self._taken: Counter[str] = Counter()
        """Episodes of this run by tenant."""
        self._unpublished = LiveState()
        """What was handed out since the newest version: the next one will have learned, or passed over, all of it."""
        self.state = LiveState()
        """As of the newest version of the line and what was handed out since."""

    @property
    def waiting(self) -> int:
        """Episodes found and not handed out yet; some may turn out to be of no use."""
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
                    self._learned |= known.learned
        self._taken = Counter(self.state.taken if self.state.run_id == self._run.id else {})
        await self._look()

    async def next(self, *, shuffle_seed: str | None = None) -> LiveBatch | None:
        """The next step's Episodes; None: there are not enough. Raises LearnerError for a reward not finite."""
        enough = len(self._waiting) >= self._config.episodes_per_step
        chosen = await self._choose() if enough else []
        if len(self._waiting) < self._config.episodes_per_step:
            await self._look()
            chosen = await self._choose()
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
        taken = set(batch.episode_ids)
        self._waiting = [one for one in self._waiting if one.episode_id not in taken]
        self._note(batch.state, chosen)
        return LiveBatch(
            mixture=batch.mixture,
            episode_ids=batch.episode_ids,
            state=self.state,
            reward_mean=batch.reward_mean,
            values={name: causes.get(name, 0.0) + batch.values.get(name, 0.0) for name in causes | batch.values},
        )

    def published(self, version: int) -> None:
        """The step that was handed out last has become ``version``."""
        self._line = (*self._line, version)
        self._unpublished = LiveState()

    def _note(self, state: LiveState, chosen: Iterable[LiveEpisode]) -> None:
        """Take up what a batch adds: its version stands for all batches since the one before."""
        self._taken.update(one.episode.tenant_id for one in chosen)
        self._trained |= state.trained
        self._learned |= state.learned
        self._unpublished = LiveState(
            trained=self._unpublished.trained | state.trained, learned=self._unpublished.learned | state.learned
        )
        own = {"taken": dict(self._taken), "run_id": self._run.id}
        self.state = self._unpublished.model_copy(update={"baselines": state.baselines} | own)

    async def _choose(self) -> list[LiveEpisode]:
        """A fair choice among those that wait, as they are now: erased and changed ones are not among them."""
        read: dict[str, LiveEpisode] = {}
        while True:
            chosen = choose_fairly(
                self._waiting,
                tenant=lambda one: one.tenant_id,
                size=self._config.episodes_per_step,
                share=self._config.tenant_share,
                least=self._config.min_episodes,
                before=self._taken,
            )
            unread = [one for one in chosen if one.episode_id not in read]
            if not unread:
                return [read[one.episode_id] for one in chosen]
            read |= await self._read(unread)
            useless = {one.episode_id for one in unread} - set(read)
            self._waiting = [one for one in self._waiting if one.episode_id not in useless]

    async def _read(self, wanted: Sequence[_Waiting]) -> dict[str, LiveEpisode]:
        """Those of ``wanted`` that still are as they were found and can teach something."""
        found: dict[str, LiveEpisode] = {}
        async with self._store.reading() as work:
            episodes = await work.episodes.get_many([one.episode_id for one in wanted])
            now_said = {said.episode.id: said for said in await self._said(work, episodes)}
            for one in wanted:
                said = now_said.get(one.episode_id)
                if said is None or said.digest != one.digest:
                    self._refused[LiveRefusal.CHANGED] += 1
                    continue
                turns = await work.turns.for_episode(one.episode_id)
                taken = take(said, turns, policy=self._run.policy, config=self._config, learned=self._learned)
                if isinstance(taken, LiveEpisode):
                    found[one.episode_id] = taken
                else:
                    self._refused[taken] += 1
                    self._trained[one.episode_id] = one.digest
        return found

    async def _look(self) -> None:
        """Find what has come since: new Episodes, and new Feedback on old ones. A page at a time."""
        since = now() - self._config.max_age_days * _DAY
        found: dict[str, _Waiting] = {}
        async with self._store.reading() as work:
            ids = await work.feedback.episodes_since(since, limit=_MOST_LOOKED_AT)
        for start in range(0, len(ids), _PAGE):
            async with self._store.reading() as work:
                found |= await self._new_of(work, await work.episodes.get_many(ids[start : start + _PAGE]))
        if self._config.closing_weight > 0:
            found |= await self._closed(since)
        self._waiting = sorted(found.values(), key=lambda one: (one.created_at, one.episode_id))

    async def _closed(self, since: float) -> dict[str, _Waiting]:
        """Episodes that have a reward of their own."""
        found: dict[str, _Waiting] = {}
        before: str | None = None
        for _ in range(_MOST_LOOKED_AT // _PAGE):
            async with self._store.reading() as work:
                page = await work.episodes.list(
                    policy=self._run.policy,
                    purpose=_CLIENT,
                    status=EpisodeStatus.SCORED,
                    limit=_PAGE,
                    before=before,
                )
                found |= await self._new_of(work, [one for one in page if one.created_at >= since])
            if len(page) < _PAGE or page[-1].created_at < since:
                break
            before = page[-1].id
        return found

    async def _new_of(self, work: UnitOfWork, episodes: Sequence[Episode]) -> dict[str, _Waiting]:
        """Those that something is said about that the line does not know."""
        return {
            said.episode.id: _Waiting(
                said.episode.id, said.episode.tenant_id, said.episode.created_at, digest=said.digest
            )
            for said in await self._said(work, episodes)
            if self._trained.get(said.episode.id) != said.digest
        }

    async def _said(self, work: UnitOfWork, episodes: Sequence[Episode]) -> list[Said]:
        """What is said about those that are the run's to learn from and settled."""
        mine = [episode for episode in episodes if self._is_mine(episode)]
        feedback = await work.feedback.on_episodes([episode.id for episode in mine])
        judged = await self._judged(work, mine)
        found = []
        for episode in mine:
            said = said_about(
                episode, feedback.get(episode.id, []), judged=judged.get(episode.id), config=self._config
            )
            settled = episode.status is not EpisodeStatus.RUNNING or (
                now() - said.newest >= self._config.settle_seconds
            )
            if settled and (said.feedback or said.judged is not None):
                found.append(said)
        return found

    async def _judged(self, work: UnitOfWork, episodes: Sequence[Episode]) -> dict[str, float]:
        """Episode → the reward it was closed with, or was judged with since."""
        if self._config.closing_weight <= 0:
            return {}
        closed = {episode.id: episode.reward for episode in episodes if episode.reward is not None}
        rewards = await work.rewards.get_many([episode.id for episode in episodes if episode.id not in closed])
        return closed | {episode_id: reward.value for episode_id, reward in rewards.items()}

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
