"""``/v1/feedback``: what clients say about answers, at once or long after."""

import asyncio
from typing import Annotated

import msgspec
from fastapi import APIRouter, Depends, Header, Query, Request
from pydantic import BaseModel, ConfigDict, Field

from core import ids
from core.errors import Conflict, InvalidRequest
from core.feedback import Feedback, FeedbackKind, FeedbackValue, read_value
from core.noun import Noun
from core.stored_completion import check_metadata
from gateway.auth import Caller
from gateway.callers import ID_PATTERN, LONGEST_ID, FeedbackCaller, consent_of
from gateway.capture.redaction import redact_message, redact_metadata, required_redactor
from gateway.dependencies import BEARER, READ_ERRORS, WRITE_ERRORS, GatewayParts
from gateway.experiments.outcomes import update_reward
from gateway.state import Gateway
from gateway.subjects import Subject, find_episode, find_turn

router = APIRouter(prefix="/v1/feedback", tags=["Feedback"], dependencies=[Depends(BEARER)])

LARGEST_VALUE = 1_000_000
"""Bytes of a value as JSON."""

_Id = Annotated[str, Field(max_length=LONGEST_ID, pattern=ID_PATTERN)]
IdempotencyKey = Annotated[str | None, Header(max_length=LONGEST_ID, pattern=ID_PATTERN)]


class NewFeedback(BaseModel):
    """What to say, about exactly one Turn or Episode."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    turn_id: _Id | None = None
    """From `x-hone-turn-id`."""
    episode_id: _Id | None = None
    """From `x-hone-episode-id`."""
    name: str = Field(min_length=1, max_length=100, pattern=r"^[A-Za-z0-9_.:-]+$")
    """The metric, such as `thumbs_up`; for reading the latest of a name counts."""
    value: FeedbackValue
    """true or false, a number, a comment, or an assistant message: the answer as it should have been."""
    kind: FeedbackKind | None = None
    """Left out: what the value looks like. `demonstration` makes a text an assistant message."""
    metadata: dict[str, str] | None = None
    """At most 16 pairs of strings."""


class FeedbackFilter(BaseModel):
    """Which Feedback to list."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    episode_id: _Id | None = None
    """On the Episode and on its Turns."""
    turn_id: _Id | None = None
    name: _Id | None = None
    after: _Id | None = None
    """Id of the last one of the page before."""
    limit: int = Field(default=100, ge=1, le=1000)
    """Most of one page."""


class FeedbackView(Noun):
    """A Feedback without what only the installation needs to know."""

    object: str = "feedback"
    id: str
    episode_id: str
    turn_id: str | None
    name: str
    kind: FeedbackKind
    value: FeedbackValue
    metadata: dict[str, str]
    training_granted: bool
    created_at: float

    @classmethod
    def of(cls, feedback: Feedback) -> "FeedbackView":
        """What its sender may see."""
        hidden = {"tenant_id", "key_id", "idempotency_key"}
        return cls(**feedback.model_dump(exclude=hidden))


class FeedbackPage(BaseModel):
    """A page of a list."""

    object: str = "list"
    data: list[FeedbackView]
    first_id: str | None
    last_id: str | None
    has_more: bool


@router.post("", summary="Say something about an answer", status_code=201, responses=WRITE_ERRORS)
async def give_feedback(
    body: NewFeedback,
    request: Request,
    gateway: GatewayParts,
    caller: FeedbackCaller,
    idempotency_key: IdempotencyKey = None,
) -> FeedbackView:
    """Add a Feedback; an Episode that has ended takes it as well.

    A repeated request with the same idempotency key answers with what the first one added.
    """
    _check_size(body.value)
    kind, value = read_value(body.value, body.kind)
    metadata = check_metadata(body.metadata)
    if caller.tenant.redact:
        value, metadata = await asyncio.to_thread(_redacted, kind, value, metadata)
    subject = await _find_subject(body, gateway, caller)
    said = Feedback(
        id=ids.new_id(ids.FEEDBACK),
        tenant_id=caller.tenant.id,
        key_id=caller.key.id,
        episode_id=subject.episode_id,
        turn_id=subject.turn_id,
        name=body.name,
        kind=kind,
        value=value,
        metadata=metadata,
        idempotency_key=idempotency_key,
        training_granted=consent_of(request, caller),
    )
    async with gateway.store.transaction() as work:
        kept = await work.feedback.add(said)
        await update_reward(work, kept.episode_id)
    if not kept.says_as(said):
        raise Conflict(
            "this idempotency key was used for another Feedback",
            hint="send a new idempotency-key with each new statement",
            param="idempotency-key",
        )
    return FeedbackView.of(kept)


@router.get("", summary="List Feedback", responses=READ_ERRORS)
async def list_feedback(
    wanted: Annotated[FeedbackFilter, Query()], gateway: GatewayParts, caller: FeedbackCaller
) -> FeedbackPage:
    """The tenant's own, oldest first."""
    filters = wanted.model_dump(exclude={"limit"})
    async with gateway.store.reading() as work:
        found = await work.feedback.list(caller.tenant.id, **filters, limit=wanted.limit + 1)
    data = [FeedbackView.of(one) for one in found[: wanted.limit]]
    return FeedbackPage(
        data=data,
        first_id=data[0].id if data else None,
        last_id=data[-1].id if data else None,
        has_more=len(found) > wanted.limit,
    )


async def _find_subject(body: NewFeedback, gateway: Gateway, caller: Caller) -> Subject:
    if body.turn_id is not None and body.episode_id is None:
        return await find_turn(gateway.store, body.turn_id, tenant_id=caller.tenant.id)
    if body.episode_id is not None and body.turn_id is None:
        episode = await find_episode(gateway.store, body.episode_id, tenant_id=caller.tenant.id)
        return Subject(episode_id=episode.id)
    raise InvalidRequest("name either a turn_id or an episode_id", param="turn_id")


def _redacted(
    kind: FeedbackKind, value: FeedbackValue, metadata: dict[str, str]
) -> tuple[FeedbackValue, dict[str, str]]:
    """Both without personal data. Raises PermissionDenied for texts where redaction is not installed."""
    if kind in (FeedbackKind.COMMENT, FeedbackKind.DEMONSTRATION):
        value = redact_message(value, required_redactor())
    return value, redact_metadata(metadata)


def _check_size(value: FeedbackValue) -> None:
    """Raise InvalidRequest for what is too large, or cannot be said in JSON."""
    try:
        size = len(msgspec.json.encode(value))
    except (ValueError, RecursionError, msgspec.MsgspecError) as error:
        raise InvalidRequest(f"the value cannot be stored: {error}", param="value") from error
    if size > LARGEST_VALUE:
        raise InvalidRequest(f"a value has at most {LARGEST_VALUE} bytes, not {size}", param="value")
