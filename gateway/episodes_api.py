"""``/v1/episodes``: clients open an Episode, close it with a reward, and read what is known of it."""

import asyncio
import contextlib
import hashlib
from collections import Counter
from typing import Annotated, Any

import structlog
from fastapi import APIRouter, Depends, Query, Request
from pydantic import BaseModel, ConfigDict, Field

from core import ids
from core.episode import Episode, EpisodeStatus, StopReason, ToolResult
from core.errors import Conflict, EngineUnavailable, PermissionDenied, StoreError
from core.prefix_use import PrefixUse, prefix_use
from core.stored_completion import check_metadata
from core.trajectory import NO_BREAKS, BreakCause, build_trajectory
from core.turn import Turn
from core.variant import ModelName, parse_model_name
from gateway.auth import Caller
from gateway.callers import ID_PATTERN, LONGEST_ID, FeedbackCaller, InferenceCaller, PathId, consent_of
from gateway.capture.redaction import redact_metadata
from gateway.client_reward import ClosingStatement, close_episode
from gateway.dependencies import BEARER, FIND_ERRORS, READ_ERRORS, WRITE_ERRORS, GatewayParts
from gateway.feedback_api import FeedbackView, IdempotencyKey
from gateway.state import Gateway
from gateway.subjects import find_episode, no_episode, own_episode
from store.events import TURNS
from store.unit_of_work import UnitOfWork

log = structlog.get_logger(__name__)

router = APIRouter(prefix="/v1/episodes", tags=["Client Episodes"], dependencies=[Depends(BEARER)])

_FLUSH_SECONDS = 5.0
"""How long closing waits for Turns that are on their way into the store."""
_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"

_Id = Annotated[str, Field(max_length=LONGEST_ID, pattern=ID_PATTERN)]


class NewEpisode(BaseModel):
    """An Episode to open."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    model: _Id
    """What will be asked: `coder`, `coder-fast`, `coder@17` (which pins the version), or a Base's name."""
    task_id: _Id | None = None
    """The Task that is attempted, if it is one that the installation knows."""
    metadata: dict[str, str] | None = None
    """At most 16 pairs of strings."""
    train: bool = True
    """False: nothing of this Episode trains, whatever tenant and key grant."""


class EpisodeClosing(BaseModel):
    """How an Episode ended."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    reward: float | None = Field(default=None, ge=0.0, le=1.0, allow_inf_nan=False)
    """From 0 to 1; left out with `success`: 1 or 0. Left out without it: the Episode is not judged yet."""
    success: bool | None = None
    """Left out with a reward: whether that is 1."""
    metadata: dict[str, str] | None = None
    """Added to what the Episode was opened with."""


class ClientEpisode(BaseModel):
    """An Episode as its client sees it."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    object: str = "episode"
    id: str
    """The value of `x-hone-episode-id`."""
    status: EpisodeStatus
    model: str
    """The Policy or Base."""
    version: int | None
    """The pinned PolicyVersion."""
    task_id: str | None
    trainable: bool
    """Whether it may train once it is judged."""
    stop_reason: StopReason | None
    reward: float | None
    success: bool | None
    metadata: dict[str, Any]
    created_at: float
    finished_at: float | None

    @classmethod
    def of(cls, episode: Episode) -> "ClientEpisode":
        """What its client may see."""
        same = {name: getattr(episode, name) for name in cls.model_fields if name not in ("object", "model")}
        return cls(model=episode.policy, **same)


class EpisodeWithdrawn(BaseModel):
    """Proof that an Episode is gone."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    object: str = "episode.deleted"
    id: str
    deleted: bool = True
    tombstone_id: str
    """What to name when asking whether it was erased."""


class ClientTurn(BaseModel):
    """A Turn as its client sees it, without token ids."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    id: str
    index: int
    choice: int
    model: str
    version: int
    variant: str
    surface: str
    content_kept: bool
    """False: only counters are here."""
    stored: bool
    trainable: bool
    messages: list[dict[str, Any]]
    response: dict[str, Any]
    finish_reason: str | None
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int | None
    """Of the prompt, in the engine's prefix cache; None: the engine does not say."""
    parent_turn_id: str | None
    compacted: bool
    """Older tool results were taken out of the messages of the Turn that this one continues."""
    created_at: float

    @classmethod
    def of(cls, turn: Turn) -> "ClientTurn":
        """What its client may see."""
        given = {"model", "version", "variant", "messages", "prompt_tokens", "completion_tokens", "cached_tokens"}
        return cls(
            model=turn.policy,
            version=turn.version,
            variant=turn.variant.value,
            messages=list(turn.messages),
            prompt_tokens=turn.usage.prompt_tokens,
            completion_tokens=turn.usage.completion_tokens,
            cached_tokens=turn.usage.cached_tokens,
            **{name: getattr(turn, name) for name in cls.model_fields if name not in given},
        )


class ClientBranch(BaseModel):
    """A Branch by its Turns."""

    turn_ids: list[str]
    cause: BreakCause


class ClientEpisodeDetail(ClientEpisode):
    """An Episode with all that its client may see of it."""

    turns: list[ClientTurn]
    branches: list[ClientBranch]
    """Of the Turns whose token ids are kept."""
    breaks: dict[BreakCause, int]
    """How often the conversation did not continue token for token, by cause."""
    prefix: PrefixUse
    """What the engine's prefix cache had of its prompts."""
    tool_results: list[ToolResult]
    feedback: list[FeedbackView]
    """Oldest first, at most 1000."""


class EpisodePage(BaseModel):
    """A page of a list."""

    object: str = "list"
    data: list[ClientEpisode]
    first_id: str | None
    last_id: str | None
    has_more: bool


class EpisodeFilter(BaseModel):
    """Which Episodes to list."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    model: _Id | None = None
    """A Policy's or a Base's name."""
    status: EpisodeStatus | None = None
    after: _Id | None = None
    """Id of the last Episode of the page before."""
    limit: int = Field(default=20, ge=1, le=100)
    """Most Episodes of one page."""


@router.post("", summary="Open an Episode", status_code=201, responses=WRITE_ERRORS)
async def open_episode(
    body: NewEpisode,
    request: Request,
    gateway: GatewayParts,
    caller: InferenceCaller,
    idempotency_key: IdempotencyKey = None,
) -> ClientEpisode:
    """An Episode whose id requests name in `x-hone-episode-id`.

    A repeated request with the same idempotency key answers with the Episode that the first one opened.
    """
    model = parse_model_name(body.model)
    if not caller.may_use(body.model):
        raise PermissionDenied(f"this key may not use the model '{body.model}'", param="model")
    _check_model(gateway, body.model, model)
    if model.alias is not None:
        model = gateway.routing.table.named(model)
    tenant_id = caller.tenant.id
    opened = Episode(
        id=ids.new_id(ids.EPISODE) if idempotency_key is None else _repeatable_id(tenant_id, idempotency_key),
        tenant_id=tenant_id,
        policy=model.name,
        version=model.version,
        task_id=body.task_id,
        trainable=body.train and consent_of(request, caller),
        metadata=await _kept_metadata(body.metadata, caller),
    )
    async with gateway.store.transaction() as work:
        if body.task_id is not None:
            opened = opened.model_copy(update={"domain": (await work.tasks.get(body.task_id)).domain})
        try:
            await work.episodes.add(opened)
        except Conflict:
            earlier = await own_episode(work, opened.id, tenant_id=tenant_id)
            if earlier is None:
                raise
            opened = _check_repeated(earlier, opened)
    return ClientEpisode.of(opened)


@router.get("", summary="List Episodes", responses=READ_ERRORS)
async def list_episodes(
    wanted: Annotated[EpisodeFilter, Query()], gateway: GatewayParts, caller: InferenceCaller
) -> EpisodePage:
    """The tenant's own, newest first."""
    async with gateway.store.reading() as work:
        found = await work.episodes.list(
            tenant_id=caller.tenant.id,
            policy=wanted.model,
            status=wanted.status,
            before=wanted.after,
            limit=wanted.limit + 1,
        )
    data = [ClientEpisode.of(episode) for episode in found[: wanted.limit]]
    return EpisodePage(
        data=data,
        first_id=data[0].id if data else None,
        last_id=data[-1].id if data else None,
        has_more=len(found) > wanted.limit,
    )


@router.get("/{episode_id}", summary="Show an Episode", responses=FIND_ERRORS)
async def get_episode(episode_id: PathId, gateway: GatewayParts, caller: InferenceCaller) -> ClientEpisodeDetail:
    """The Episode with its Turns as far as their content is kept, its Branches, its Feedback and its reward."""
    await find_episode(gateway.store, episode_id, tenant_id=caller.tenant.id)
    async with gateway.store.reading() as work:
        return await _detail(work, episode_id, caller.tenant.id)


@router.post("/{episode_id}/close", summary="Close an Episode", responses=WRITE_ERRORS)
async def close(
    episode_id: PathId, body: EpisodeClosing, gateway: GatewayParts, caller: FeedbackCaller
) -> ClientEpisode:
    """End an Episode, judged by its client or not judged yet; saying the same twice changes nothing.

    Its Turns are in the store before it is closed; a Turn that comes later is not part of it.
    """
    metadata = await _kept_metadata(body.metadata, caller)
    said = ClosingStatement(reward=body.reward, success=body.success, metadata=metadata, key_id=caller.key.id)
    await _flush(gateway)
    await find_episode(gateway.store, episode_id, tenant_id=caller.tenant.id)
    async with gateway.store.transaction() as work:
        episode = await own_episode(work, episode_id, tenant_id=caller.tenant.id, lock=True)
        if episode is None:
            raise no_episode(episode_id)
        closed = await close_episode(work, episode, said)
    gateway.episodes.ended(episode_id)
    await gateway.store.events.publish(TURNS, {"episode_id": episode_id})
    log.info("episode_closed", episode_id=episode_id, status=closed.status, reward=closed.reward)
    return ClientEpisode.of(closed)


@router.delete("/{episode_id}", summary="Withdraw an Episode", responses=WRITE_ERRORS)
async def withdraw(episode_id: PathId, gateway: GatewayParts, caller: InferenceCaller) -> EpisodeWithdrawn:
    """Erase an Episode of the key's Tenant: its Turns, stored answers, Feedback, and what was made from them.

    It never trains from now on, and the versions that it has trained are marked.
    """
    await find_episode(gateway.store, episode_id, tenant_id=caller.tenant.id)
    tombstone = await gateway.erasure.withdraw(caller.key, episode_id, tenant_id=caller.tenant.id)
    gateway.episodes.ended(episode_id)
    return EpisodeWithdrawn(id=episode_id, tombstone_id=tombstone.id)


def _check_model(gateway: Gateway, text: str, model: ModelName) -> None:
    """Raise ModelNotFound or VersionNotServed for what nothing can answer."""
    if gateway.outside.knows(text) and not gateway.routing.serves(model):
        return
    # What is away at the moment may be back when the first Turn is asked for.
    with contextlib.suppress(EngineUnavailable):
        gateway.routing.resolve(model)


async def _kept_metadata(metadata: dict[str, str] | None, caller: Caller) -> dict[str, str]:
    """What may be kept of a client's labels. Raises InvalidRequest, and PermissionDenied as ``redact_metadata``."""
    checked = check_metadata(metadata)
    return await asyncio.to_thread(redact_metadata, checked) if caller.tenant.redact else checked


async def _flush(gateway: Gateway) -> None:
    if not await gateway.recorder.flush_all(_FLUSH_SECONDS):
        raise StoreError("Turns of this gateway are not durable yet", hint="try again in a few seconds")


async def _detail(work: UnitOfWork, episode_id: str, tenant_id: str) -> ClientEpisodeDetail:
    episode = await own_episode(work, episode_id, tenant_id=tenant_id)
    if episode is None:
        raise no_episode(episode_id)
    turns = await work.turns.for_episode(episode_id)
    feedback = await work.feedback.list(tenant_id, episode_id=episode_id)
    branches = build_trajectory(
        episode_id, [turn for turn in turns if turn.content_kept and turn.prompt_ids]
    ).branches
    return ClientEpisodeDetail(
        **ClientEpisode.of(episode).model_dump(),
        turns=[ClientTurn.of(turn) for turn in turns],
        branches=[
            ClientBranch(turn_ids=[turn.id for turn in branch.turns], cause=branch.cause) for branch in branches
        ],
        breaks=dict(Counter(branch.cause for branch in branches if branch.cause not in NO_BREAKS)),
        prefix=prefix_use(turns),
        tool_results=list(episode.tool_results),
        feedback=[FeedbackView.of(one) for one in feedback],
    )


def _check_repeated(earlier: Episode, opened: Episode) -> Episode:
    asked = ("policy", "version", "task_id")
    if any(getattr(earlier, name) != getattr(opened, name) for name in asked):
        raise Conflict(
            "this idempotency key was used for another Episode",
            hint="send a new idempotency-key with each new Episode",
            param="idempotency-key",
        )
    return earlier


def _repeatable_id(tenant_id: str, idempotency_key: str) -> str:
    """The same id for the same key, in the form of ``core.ids.new_id``: no time, then a hash for randomness."""
    digest = hashlib.sha256(f"{tenant_id}\n{idempotency_key}".encode()).digest()
    tail = "".join(_ALPHABET[byte & 31] for byte in digest[:16])
    return f"{ids.EPISODE}_{'0' * 10}{tail}"
