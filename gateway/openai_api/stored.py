"""Stored completions: list, show, label and delete what was asked with ``store: true``.

Source: OpenAI API reference, chat completions (list, retrieve, update, delete, messages).
"""

import asyncio
import re
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import structlog
from fastapi import APIRouter, Depends, Query, Request
from pydantic import BaseModel, ConfigDict, Field

from core.errors import HoneError, InvalidRequest, NotFound, StoreError
from core.message import Message
from core.stored_completion import StoredCompletion, check_metadata
from gateway.callers import ID_PATTERN, LONGEST_ID, InferenceCaller, PathId
from gateway.capture.redaction import redact_metadata
from gateway.dependencies import BEARER, FIND_ERRORS, READ_ERRORS, GatewayParts
from gateway.state import Gateway
from store.unit_of_work import UnitOfWork

log = structlog.get_logger(__name__)

router = APIRouter(prefix="/v1/chat/completions", tags=["Stored completions"], dependencies=[Depends(BEARER)])

_METADATA = re.compile(r"^metadata\[(.{1,64})\]$", re.DOTALL)
_METADATA_PARAMETER = {
    "name": "metadata",
    "in": "query",
    "required": False,
    "style": "deepObject",
    "explode": True,
    "description": "Pairs that a completion's metadata must have: `metadata[key]=value`.",
    "schema": {"type": "object", "additionalProperties": {"type": "string"}},
}


class CompletionFilter(BaseModel):
    """Which stored completions to list."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    model: str | None = Field(default=None, max_length=LONGEST_ID, pattern=ID_PATTERN)
    """The name that was asked for, or that of what answered."""
    after: str | None = Field(default=None, max_length=LONGEST_ID, pattern=ID_PATTERN)
    """Id of the last completion of the page before."""
    limit: int = Field(default=20, ge=1, le=100)
    """Most completions of one page."""
    order: Literal["asc", "desc"] = "asc"
    """By time."""


class MessageFilter(BaseModel):
    """Which messages to list."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    after: str | None = None
    """Id of the last message of the page before."""
    limit: int = Field(default=20, ge=1, le=100)
    """Most messages of one page."""
    order: Literal["asc", "desc"] = "asc"
    """By their place in the conversation."""


class CompletionUpdate(BaseModel):
    """What may be changed."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    metadata: dict[str, Any] | None
    """At most 16 pairs of strings; they replace all that were there."""


class Page(BaseModel):
    """A page of a list."""

    object: Literal["list"] = "list"
    data: list[dict[str, Any]]
    first_id: str | None
    last_id: str | None
    has_more: bool


class Deleted(BaseModel):
    """What was deleted."""

    object: Literal["chat.completion.deleted"] = "chat.completion.deleted"
    id: str
    deleted: bool = True


@router.get(
    "",
    summary="List stored completions",
    responses=READ_ERRORS,
    openapi_extra={"parameters": [_METADATA_PARAMETER]},
)
async def list_completions(
    wanted: Annotated[CompletionFilter, Query()], request: Request, gateway: GatewayParts, caller: InferenceCaller
) -> Page:
    """The tenant's own, in order of time."""
    async with gateway.store.reading() as work:
        found = await work.stored_completions.list(
            caller.tenant.id,
            model=wanted.model,
            metadata=_metadata_filter(request),
            after=wanted.after,
            limit=wanted.limit + 1,
            newest_first=wanted.order == "desc",
        )
    return page_of([completion.shown() for completion in found], wanted.limit)


@router.get("/{completion_id}", summary="Show a stored completion", responses=FIND_ERRORS)
async def get_completion(completion_id: PathId, gateway: GatewayParts, caller: InferenceCaller) -> dict[str, Any]:
    """The completion as its client saw it, with its metadata."""
    async with gateway.store.reading() as work:
        return (await _find(work, caller.tenant.id, completion_id)).shown()


@router.get("/{completion_id}/messages", summary="List what was asked", responses=FIND_ERRORS)
async def list_messages(
    completion_id: PathId,
    wanted: Annotated[MessageFilter, Query()],
    gateway: GatewayParts,
    caller: InferenceCaller,
) -> Page:
    """The messages of the request; an `id` is the completion's with a number."""
    async with gateway.store.reading() as work:
        await _find(work, caller.tenant.id, completion_id)
        messages = await work.stored_completions.messages(caller.tenant.id, completion_id)
    shown = [_shown_message(f"{completion_id}-{number}", message) for number, message in enumerate(messages)]
    if wanted.order == "desc":
        shown.reverse()
    return page_of(_after(shown, wanted.after)[: wanted.limit + 1], wanted.limit)


@router.post("/{completion_id}", summary="Label a stored completion", responses=FIND_ERRORS)
async def update_completion(
    completion_id: PathId, body: CompletionUpdate, gateway: GatewayParts, caller: InferenceCaller
) -> dict[str, Any]:
    """Replace the metadata; nothing else of a completion changes."""
    metadata = check_metadata(body.metadata)
    if caller.tenant.redact:
        metadata = await asyncio.to_thread(redact_metadata, metadata)
    async with gateway.store.transaction() as work:
        found = await _find(work, caller.tenant.id, completion_id, lock=True)
        changed = found.model_copy(update={"metadata": metadata})
        await work.stored_completions.update(changed)
    return changed.shown()


@router.delete("/{completion_id}", summary="Delete a stored completion", responses=FIND_ERRORS)
async def delete_completion(completion_id: PathId, gateway: GatewayParts, caller: InferenceCaller) -> Deleted:
    """The API returns it no more.

    What was said is erased from its Turns too, unless consent to train was granted for them: those stay, for
    training alone.
    """
    async with gateway.store.transaction() as work:
        found = await _find(work, caller.tenant.id, completion_id, lock=True)
        await work.stored_completions.delete(caller.tenant.id, completion_id)
        orphans = await _withdraw_turns(work, found)
    await _delete_blobs(gateway, orphans)
    return Deleted(id=completion_id)


def page_of(items: Sequence[dict[str, Any]], limit: int) -> Page:
    """A page from one item more than it may show."""
    shown = list(items[:limit])
    return Page(
        data=shown,
        first_id=shown[0]["id"] if shown else None,
        last_id=shown[-1]["id"] if shown else None,
        has_more=len(items) > limit,
    )


async def _find(work: UnitOfWork, tenant_id: str, completion_id: str, *, lock: bool = False) -> StoredCompletion:
    try:
        return await work.stored_completions.get(tenant_id, completion_id, lock=lock)
    except NotFound as error:
        raise NotFound(
            f"there is no stored completion '{completion_id}'",
            hint="only requests with 'store': true are stored, a moment after their answer",
            param="completion_id",
        ) from error


async def _withdraw_turns(work: UnitOfWork, completion: StoredCompletion) -> list[str]:
    """Keep from the Turns only what may be kept without ``store``; the blobs that then belong to nobody."""
    orphans = []
    for turn_id in sorted(await work.turns.existing(completion.turn_ids)):
        turn = await work.turns.get(turn_id)
        if turn.tenant_id != completion.tenant_id:
            continue
        kept = turn.model_copy(update={"stored": False})
        orphan = await work.turns.replace(kept if completion.consent else kept.without_content())
        if orphan is not None:
            orphans.append(orphan)
    return orphans


async def _delete_blobs(gateway: Gateway, keys: Sequence[str]) -> None:
    for key in keys:
        try:
            await gateway.store.blobs.delete(key)
        except StoreError as error:
            # Nothing names it any more: the caller's wish is fulfilled, and the log says what is left to sweep.
            log.error("blob_left_behind", key=key, error=str(error))


def _metadata_filter(request: Request) -> dict[str, str]:
    found = {}
    for name, value in request.query_params.multi_items():
        match = _METADATA.match(name)
        if match is not None:
            found[match[1]] = value
    try:
        return check_metadata(found)
    except HoneError as error:
        raise InvalidRequest(error.message, param="metadata") from error


def _shown_message(message_id: str, message: Message) -> dict[str, Any]:
    content = message.get("content")
    parts = content if isinstance(content, list) else None
    return (
        {"name": None}
        | message
        | {
            "id": message_id,
            "content": None if parts is not None else content,
            "content_parts": parts,
        }
    )


def _after(items: Sequence[dict[str, Any]], last_id: str | None) -> Sequence[dict[str, Any]]:
    if last_id is None:
        return items
    place = next((number for number, item in enumerate(items) if item["id"] == last_id), len(items))
    return items[place + 1 :]
