"""Stored responses: what a request continues, what it refers to, and what the API gives back later."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import structlog

from core.errors import InvalidRequest, NotFound, StoreError
from core.stored_response import StoredResponse
from gateway.capture.redaction import Redactor, is_api_id, redact_message
from gateway.metrics import GatewayMetrics
from gateway.responses_api.request import Item
from gateway.responses_api.writer import item_id, response_of_item
from gateway.subjects import LATELY_SECONDS
from store.store import Store
from store.unit_of_work import UnitOfWork

log = structlog.get_logger(__name__)

_SAVE_SECONDS = 5.0
"""Longest time that an answer waits for its being stored."""
_FLUSH_SECONDS = 5.0
"""How long a deletion waits for Turns that are on their way into the store."""
_TEXT_PARTS = {"assistant": "output_text"}
_NAMES = ("id", "call_id", "approval_request_id", "container_id", "type", "status")
"""Fields of an item that nobody said, as long as they look like it."""
_UNSAID = frozenset(
    {
        "id", "object", "created_at", "completed_at", "status", "background", "incomplete_details",
        "max_output_tokens", "max_tool_calls", "model", "parallel_tool_calls", "previous_response_id", "store",
        "temperature", "top_logprobs", "top_p", "truncation", "usage",
    }
)  # fmt: skip
"""Fields of a response that hold only numbers, words of the API, and ids that were found to exist."""

Flush = Callable[[float], Awaitable[bool]]
"""Waits, at most so many seconds, until the Turns recorded so far are in the store; False: they are not."""


class PreviousResponseNotFound(InvalidRequest):
    """The response to continue does not exist, or not for this tenant."""

    code = "previous_response_not_found"


class Archive:
    """Stored responses of all tenants; every call names the one that asks."""

    def __init__(
        self,
        *,
        store: Store,
        metrics: GatewayMetrics,
        flush: Flush,
        redactor: Callable[[], Redactor | None] = lambda: None,
    ) -> None:
        self._store = store
        self._metrics = metrics
        self._flush = flush
        self._redactor = redactor

    async def chain(self, tenant_id: str, response_id: str | None) -> list[StoredResponse]:
        """A response and all before it, oldest first. Raises PreviousResponseNotFound when one is gone."""
        if response_id is None:
            return []
        async with self._store.reading() as work:
            # What cannot be an id may hold characters that a database refuses.
            named = [response_id] if response_id.isascii() and response_id.isprintable() else []
            found = await work.stored_responses.get_many(tenant_id, named)
            last = found.get(response_id)
            if last is not None:
                found |= await work.stored_responses.get_many(tenant_id, last.ancestors)
        for wanted in (response_id, *(() if last is None else last.ancestors)):
            if wanted not in found:
                raise PreviousResponseNotFound(
                    f"the previous response '{wanted}' does not exist",
                    hint="it was not stored, or it was deleted",
                    param="previous_response_id",
                )
        return [found[one] for one in (*found[response_id].ancestors, response_id)]

    async def resolved(self, tenant_id: str, items: Sequence[Item]) -> list[Item]:
        """Items with every ``item_reference`` replaced by what it means. Raises NotFound."""
        references = {number: item for number, item in enumerate(items) if item.get("type") == "item_reference"}
        if not references:
            return list(items)
        owners = {number: response_of_item(str(item.get("id"))) for number, item in references.items()}
        async with self._store.reading() as work:
            found = await work.stored_responses.get_many(tenant_id, {one for one in owners.values() if one})
        resolved = list(items)
        for number, reference in references.items():
            owner = found.get(owners[number] or "")
            item = None if owner is None else _item_of(owner, str(reference.get("id")))
            if item is None:
                raise NotFound(
                    f"the item '{reference.get('id')}' does not exist",
                    hint="it was not stored, or it was deleted",
                    param=f"input[{number}].id",
                )
            resolved[number] = item
        return resolved

    async def save(self, stored: StoredResponse, *, redact: bool) -> None:
        """Keep a response, with ``redact`` without personal data.

        A failure is counted and logged: the client has its answer all the same. Where data should be taken out and
        cannot be, nothing is kept.
        """
        try:
            if redact:
                redactor = await asyncio.to_thread(self._redactor)
                if redactor is None:
                    self._metrics.capture_failures.labels("redaction_unavailable").inc()
                    return
                stored = await asyncio.to_thread(redacted, stored, redactor)
            async with asyncio.timeout(_SAVE_SECONDS), self._store.transaction() as work:
                await work.stored_responses.add(stored)
        except Exception as error:  # noqa: BLE001 - whatever a store fails with, the answer is still good
            self._metrics.capture_failures.labels("stored_response").inc()
            log.error("response_not_stored", response_id=stored.id, error=repr(error))

    async def get(self, tenant_id: str, response_id: str) -> StoredResponse:
        """One response; raises NotFound."""
        async with self._store.reading() as work:
            return await work.stored_responses.get(tenant_id, response_id)

    async def delete(self, tenant_id: str, response_id: str) -> None:
        """Forget a response, and erase what was said from its Turns unless they may train.

        Raises NotFound, and StoreError as long as Turns of it may still come: nothing could delete those later.
        """
        async with self._store.reading() as work:
            behind = bool(await _awaited(work, await work.stored_responses.get(tenant_id, response_id)))
        if behind and not await self._flush(_FLUSH_SECONDS):
            raise _not_durable(response_id)
        orphans = []
        async with self._store.transaction() as work:
            stored = await work.stored_responses.get(tenant_id, response_id)
            # Another gateway's Turns are waited for, those that were lost are not for ever.
            if await _awaited(work, stored) and time.time() - stored.created_at < LATELY_SECONDS:
                raise _not_durable(response_id)
            await work.stored_responses.delete(tenant_id, response_id)
            for turn_id in sorted(await work.turns.existing(stored.turn_ids)):
                turn = await work.turns.get(turn_id)
                if turn.tenant_id == tenant_id:
                    kept = turn.model_copy(update={"stored": False})
                    orphans.append(await work.turns.replace(kept if stored.consent else kept.without_content()))
        for key in orphans:
            if key is not None:
                await self._delete_blob(key)

    async def _delete_blob(self, key: str) -> None:
        try:
            await self._store.blobs.delete(key)
        except StoreError as error:
            # Nothing names it any more: the caller's wish is fulfilled, and the log says what is left to sweep.
            log.error("blob_left_behind", key=key, error=str(error))


def listed_items(items: Sequence[Item], response_id: str) -> list[Item]:
    """Input items as the API lists them: with ids, and with texts as content parts."""
    listed = []
    for number, item in enumerate(items):
        shown = dict(item)
        shown.setdefault("type", "message")
        if not isinstance(shown.get("id"), str):
            shown["id"] = item_id(shown["type"], response_id, number, given=True)
        content = shown.get("content")
        if shown["type"] == "message":
            if isinstance(content, str):
                kind = _TEXT_PARTS.get(str(shown.get("role")), "input_text")
                shown["content"] = [{"type": kind, "text": content}]
            shown["content"] = [_listed_part(part) for part in shown.get("content") or ()]
        if shown["type"] in ("message", "function_call", "function_call_output"):
            shown.setdefault("status", "completed")
        listed.append(shown)
    return listed


def redacted(stored: StoredResponse, redactor: Redactor) -> StoredResponse:
    """A response without personal data in what was said; ids, numbers and words of the API stay."""
    response = {
        name: value if name in _UNSAID else redact_message(value, redactor)
        for name, value in stored.response.items()
        if name != "output"
    }
    response["output"] = [_redacted_item(item, redactor) for item in stored.response.get("output") or ()]
    return stored.model_copy(
        update={
            "response": response,
            "input_items": tuple(_redacted_item(item, redactor) for item in stored.input_items),
            "messages": tuple(redact_message(message, redactor) for message in stored.messages),
        }
    )


def last_container(chain: Sequence[StoredResponse]) -> str | None:
    """The container that the last hosted call of a conversation ran in."""
    for stored in reversed(chain):
        for item in reversed(stored.response.get("output") or ()):
            container = item.get("container_id") or (item.get("environment") or {}).get("container_id")
            if container:
                return str(container)
    return None


def listed_servers(chain: Sequence[StoredResponse], items: Sequence[Item]) -> frozenset[str]:
    """Labels of the MCP servers whose tools the conversation lists already."""
    outputs = [item for stored in chain for item in stored.response.get("output") or ()]
    return frozenset(
        str(item.get("server_label"))
        for item in (*outputs, *items)
        if item.get("type") == "mcp_list_tools" and not item.get("error")
    )


def _redacted_item(item: Item, redactor: Redactor) -> Item:
    return dict(redact_message(item, redactor)) | {name: item[name] for name in _NAMES if is_api_id(item.get(name))}


async def _awaited(work: UnitOfWork, stored: StoredResponse) -> set[str]:
    """Turns of a response that are not in the store."""
    return set(stored.turn_ids) - await work.turns.existing(stored.turn_ids)


def _not_durable(response_id: str) -> StoreError:
    return StoreError(
        f"Turns of the response '{response_id}' are not durable yet", hint="delete it again in a few seconds"
    )


def _item_of(stored: StoredResponse, identifier: str) -> Item | None:
    for item in (*(stored.response.get("output") or ()), *stored.input_items):
        if item.get("id") == identifier:
            return dict(item)
    return None


def _listed_part(part: Any) -> Any:
    if isinstance(part, dict) and part.get("type") == "output_text":
        return {"annotations": []} | part
    if isinstance(part, dict) and part.get("type") == "input_image":
        return {"detail": "auto"} | part
    return part
