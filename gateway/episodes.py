"""Which Episode a request continues, and on which PolicyVersion it stays."""

import asyncio
import time
from collections import OrderedDict
from dataclasses import dataclass, field

import structlog

from core import ids
from core.access import ApiKey
from core.config.schema import HoneConfig
from core.episode import Episode, EpisodeStatus
from core.errors import Conflict, NotFound
from core.variant import ModelName
from gateway.idempotency import RecordedAnswer
from gateway.inference.threads import Link, Thread, ThreadIndex
from gateway.metrics import GatewayMetrics
from store.store import Store

log = structlog.get_logger(__name__)

IDLE_SECONDS = 3600.0
"""After this time without a Turn an Episode's version is no longer remembered here."""
_MOST_HELD = 10_000
_LOOKUP_TIMEOUT_SECONDS = 2.0
_THREAD_TIMEOUT_SECONDS = 0.25
"""A conversation that nobody named may wait so long to be recognised; then it goes on as a new Episode."""
_ABSENT_SECONDS = 5.0
"""How long a conversation that the store does not know is not asked for again."""


@dataclass(slots=True)
class HeldEpisode:
    """What the gateway remembers of an Episode between its Turns."""

    id: str
    tenant_id: str
    versions: dict[str, int] = field(default_factory=dict)
    """Policy → the version that answered its first Turn here."""
    pinned: tuple[str, int] | None = None
    """Policy and version that the Episode was created for."""
    attempt: bool = False
    """An attempt of this side's own workers, not a client's conversation."""
    may_train: bool = True
    """False: whoever opened it withdrew training, so that nothing said in it is kept for that."""
    next_index: int = 0
    new: bool = False
    """The Episode row is to be written with the first Turn."""
    named_first_turn: bool = False
    """The Turn id that is like the Episode's own has been given out."""
    exposure: object = None
    """Its part in a running A/B Experiment, as ``gateway.experiments`` noted it."""
    last_deployment: str | None = None
    """The replica that answered last: its prefix cache has the conversation."""
    used_at: float = field(default_factory=time.monotonic)

    def take_index(self) -> int:
        """The order of the next Turn."""
        index = self.next_index
        self.next_index += 1
        return index

    def wanted_version(self, model: ModelName) -> int | None:
        """The version that an unpinned ``model`` stays on; None: the promoted one."""
        if self.pinned is not None and self.pinned[0] == model.name:
            return self.pinned[1]
        return self.versions.get(model.name)


class Episodes:
    """Episodes in flight. Gateway processes that share a store agree through it: it is read at every Turn."""

    def __init__(self, *, config: HoneConfig, store: Store, metrics: GatewayMetrics) -> None:
        self._store = store
        self._metrics = metrics
        self._shared = config.gateway.workers > 1 or not config.database_url.startswith("sqlite")
        self._grace_seconds = 2 * config.gateway.recorder_flush_seconds + 0.1
        self._held: OrderedDict[str, HeldEpisode] = OrderedDict()
        self._threads = ThreadIndex()
        self._absent: OrderedDict[bytes, float] = OrderedDict()
        """Conversations that the store did not know, and when it said so."""
        self._asking: dict[bytes, asyncio.Future[Link | None]] = {}
        """Conversations that the store is being asked for."""
        self._renewed: OrderedDict[str, str] = OrderedDict()
        """Expired conversation → the Episode as which it went on."""

    async def find(self, key: ApiKey, episode_id: str | None) -> HeldEpisode:
        """The Episode named by a request's header, or a new one where none is named.

        Raises NotFound for an Episode that does not exist for this tenant, and Conflict for one that has ended. A
        conversation that expired in silence goes on as a new Episode.
        A store that is away breaks no answer: the Turn then opens an Episode of its own, and that is counted.
        """
        if episode_id is None:
            return self.open(key)
        held = self._held.get(self._renewed.get(episode_id, episode_id))
        if held is not None and held.tenant_id != key.tenant_id:
            held = None
        if held is not None and not self._shared:
            return self._touch(held)
        try:
            async with asyncio.timeout(_LOOKUP_TIMEOUT_SECONDS):
                stored = await self._read(key, episode_id, patient=held is None)
        except Conflict:
            raise
        except NotFound:
            if held is None:
                raise
            # Its first Turn was answered here and is not written yet.
            return self._touch(held)
        except Exception as error:  # noqa: BLE001 - no failing look-up may break an answer
            if held is not None:
                return self._touch(held)
            self._metrics.capture_failures.labels("episode_lookup").inc()
            log.warning("episode_lookup_failed", episode_id=episode_id, error=f"{type(error).__name__}: {error}")
            return self.open(key)
        if stored.new:
            return self._renew(episode_id, stored)
        if held is not None:
            # Turns that this process answered may not be written yet: the larger index is the true one.
            stored.next_index = max(stored.next_index, held.next_index)
            stored.versions = {**held.versions, **stored.versions}
            stored.exposure = held.exposure
            stored.last_deployment = held.last_deployment or stored.last_deployment
        self._held[episode_id] = stored
        return self._touch(stored)

    def _renew(self, episode_id: str, fresh: HeldEpisode) -> HeldEpisode:
        """The Episode as which an expired conversation goes on: the same one at each of its Turns."""
        known = self._held.get(self._renewed.get(episode_id, ""))
        if known is not None:
            return self._touch(known)
        self._renewed[episode_id] = fresh.id
        while len(self._renewed) > _MOST_HELD:
            self._renewed.popitem(last=False)
        self._held[fresh.id] = fresh
        return self._touch(fresh)

    async def continued(self, key: ApiKey, thread: Thread) -> tuple[HeldEpisode, Link | None]:
        """The Episode whose conversation a request's messages continue, and the Turn there; else a new one.

        Unlike a named Episode, one that is found by its messages breaks nothing: if it has ended, or the store is
        away, the conversation goes on as a new Episode.
        """
        link = await self.link_of(key, thread)
        if link is None:
            return self.open(key), None
        try:
            return await self.find(key, link.episode_id), link
        except (Conflict, NotFound):
            return self.open(key), None

    def recall(self, key: ApiKey, thread: Thread) -> tuple[HeldEpisode, Link | None] | None:
        """As ``continued``, where this process knows it by itself; None: the store has to be asked."""
        link = self._threads.find(thread)
        if link is None:
            return (self.open(key), None) if self._is_absent(thread.answered[0]) else None
        held = None if self._shared else self._held.get(self._renewed.get(link.episode_id, link.episode_id))
        if held is None or held.tenant_id != key.tenant_id:
            return None
        return self._touch(held), link

    async def link_of(self, key: ApiKey, thread: Thread) -> Link | None:
        """The Turn whose answer is the last one in a conversation that was given here, or by another process."""
        if not thread.answered:
            return None
        link = self._threads.find(thread)
        if link is not None:
            return link
        longest = thread.answered[0]
        if self._is_absent(longest):
            return None
        # Requests of one conversation come together, such as the attempts of a task: one of them asks for all.
        asking = self._asking.get(longest)
        if asking is None:
            asking = self._asking[longest] = asyncio.ensure_future(self._ask_for_link(key.tenant_id, thread))
            asking.add_done_callback(lambda _: self._asking.pop(longest, None))
        return await asyncio.shield(asking)

    def _is_absent(self, longest: bytes) -> bool:
        return time.monotonic() - self._absent.get(longest, -_ABSENT_SECONDS) < _ABSENT_SECONDS

    async def _ask_for_link(self, tenant_id: str, thread: Thread) -> Link | None:
        now, longest = time.monotonic(), thread.answered[0]
        digests = [digest.hex() for digest in thread.answered]
        try:
            async with asyncio.timeout(_THREAD_TIMEOUT_SECONDS), self._store.reading() as work:
                found = await work.turns.by_thread(tenant_id, digests)
        except Exception as error:  # noqa: BLE001 - no failing look-up may break an answer
            self._metrics.capture_failures.labels("thread_lookup").inc()
            log.warning("thread_lookup_failed", error=f"{type(error).__name__}: {error}")
            return None
        if found is not None:
            return Link(*found)
        self._absent[longest] = now
        while len(self._absent) > _MOST_HELD:
            self._absent.popitem(last=False)
        return None

    async def answered_under(self, tenant_id: str, key: str, choices: int) -> RecordedAnswer | None:
        """Where another process recorded its answer to a request with this idempotency key."""
        try:
            async with asyncio.timeout(_LOOKUP_TIMEOUT_SECONDS), self._store.reading() as work:
                found = await work.turns.under_key(tenant_id, key)
        except Exception as error:  # noqa: BLE001 - no failing look-up may break an answer
            self._metrics.capture_failures.labels("idempotency_lookup").inc()
            log.warning("idempotency_lookup_failed", error=f"{type(error).__name__}: {error}")
            return None
        if len(found) != choices:
            return None
        turn_ids = tuple(turn_id for turn_id, _, _ in found)
        return RecordedAnswer(found[0][1], found[0][2], turn_ids, time.monotonic())

    def answered(self, held: HeldEpisode, digest: bytes, turn_id: str) -> None:
        """Remember by which conversation an answer will be recognised."""
        self._threads.add(digest, Link(held.id, turn_id))

    def began(self, held: HeldEpisode, policy: str, version: int) -> None:
        """Note which version answered; the first one stays."""
        held.versions.setdefault(policy, version)

    def ended(self, episode_id: str) -> None:
        """An Episode takes no more Turns: the store is asked at the next use of its id."""
        self._held.pop(episode_id, None)

    def open(self, key: ApiKey) -> HeldEpisode:
        """A new Episode; its row is written with its first Turn."""
        held = HeldEpisode(id=ids.new_id(ids.EPISODE), tenant_id=key.tenant_id, new=True)
        self._held[held.id] = held
        self._forget_idle(held.used_at)
        return held

    def _touch(self, held: HeldEpisode) -> HeldEpisode:
        now = time.monotonic()
        held.used_at = now
        self._held.move_to_end(held.id)
        self._forget_idle(now)
        return held

    def _forget_idle(self, now: float) -> None:
        while self._held:
            oldest = next(iter(self._held.values()))
            if len(self._held) <= _MOST_HELD and now - oldest.used_at < IDLE_SECONDS:
                break
            del self._held[oldest.id]

    async def _read(self, key: ApiKey, episode_id: str, *, patient: bool) -> HeldEpisode:
        try:
            return await self._read_once(key, episode_id)
        except NotFound:
            if not patient:
                raise
        # Its first Turn may have been answered, here or by another process, and not be written yet.
        await asyncio.sleep(self._grace_seconds)
        return await self._read_once(key, episode_id)

    async def _read_once(self, key: ApiKey, episode_id: str) -> HeldEpisode:
        async with self._store.reading() as work:
            try:
                episode = await work.episodes.get(episode_id)
            except NotFound as error:
                raise _unknown(episode_id) from error
            if episode.tenant_id == key.tenant_id and _expired_conversation(episode):
                return HeldEpisode(id=ids.new_id(ids.EPISODE), tenant_id=key.tenant_id, new=True)
            _check_continuable(episode, key)
            next_index, versions, last_deployment = await work.turns.progress(episode_id)
        return HeldEpisode(
            id=episode_id,
            tenant_id=episode.tenant_id,
            versions=versions,
            pinned=None if episode.version is None else (episode.policy, episode.version),
            attempt=episode.purpose != "client" or episode.task_id is not None,
            may_train=episode.trainable or episode.purpose != "client",
            next_index=next_index,
            last_deployment=last_deployment,
        )


def _expired_conversation(episode: Episode) -> bool:
    """A client that comes back after a long silence gets its answer, recorded as a new Episode."""
    return episode.status is EpisodeStatus.EXPIRED and episode.task_id is None


def _check_continuable(episode: Episode, key: ApiKey) -> None:
    if episode.tenant_id != key.tenant_id:
        raise _unknown(episode.id)
    if episode.status is not EpisodeStatus.RUNNING:
        raise Conflict(
            f"Episode '{episode.id}' is {episode.status} and takes no more Turns",
            hint="leave x-hone-episode-id out to begin a new one",
            param="x-hone-episode-id",
        )


def _unknown(episode_id: str) -> NotFound:
    # One answer for what does not exist and for what another tenant has.
    return NotFound(f"there is no Episode '{episode_id}'", param="x-hone-episode-id")
