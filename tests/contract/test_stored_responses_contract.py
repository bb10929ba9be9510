"""What the repository of StoredResponses promises, on SQLite and PostgreSQL."""

import pytest

from core import ids
from core.errors import Conflict, NotFound
from core.stored_response import StoredResponse
from store.store import Store


def stored_response(tenant: str = "ten_a", **fields: object) -> StoredResponse:
    """A response with characters that databases tend to lose."""
    values = {
        "id": ids.new_id(ids.RESPONSE),
        "tenant_id": tenant,
        "episode_id": "ep_a",
        "response": {"output": [{"text": "a\x00b \ud83d\ude00".encode("utf-16", "surrogatepass").decode("utf-16")}]},
        "messages": ({"role": "user", "content": "2 + 2?"},),
    }
    return StoredResponse.model_validate(values | fields)


async def test_a_response_comes_back_as_it_was(store: Store):
    """What was added is read back equal, once."""
    stored = stored_response(ancestors=("resp_1",), turn_ids=("turn_1",))
    async with store.transaction() as work:
        await work.stored_responses.add(stored)
    async with store.reading() as work:
        assert await work.stored_responses.get("ten_a", stored.id) == stored
    with pytest.raises(Conflict):
        async with store.transaction() as work:
            await work.stored_responses.add(stored)


async def test_another_tenants_response_does_not_exist(store: Store):
    """Reading and deleting see only the tenant's own."""
    stored = stored_response()
    async with store.transaction() as work:
        await work.stored_responses.add(stored)
    async with store.transaction() as work:
        with pytest.raises(NotFound):
            await work.stored_responses.get("ten_b", stored.id)
        with pytest.raises(NotFound):
            await work.stored_responses.delete("ten_b", stored.id)
        assert await work.stored_responses.get_many("ten_b", [stored.id]) == {}


async def test_many_are_found_and_deleted_ones_are_gone(store: Store):
    """``get_many`` finds all that there are; a deleted response is missing afterwards."""
    all_of_them = [stored_response() for _ in range(3)]
    async with store.transaction() as work:
        for stored in all_of_them:
            await work.stored_responses.add(stored)
        await work.stored_responses.delete("ten_a", all_of_them[0].id)
    async with store.reading() as work:
        found = await work.stored_responses.get_many("ten_a", [one.id for one in all_of_them])
    assert found == {one.id: one for one in all_of_them[1:]}
