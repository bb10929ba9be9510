"""Feedback over HTTP, on SQLite and on PostgreSQL."""

import asyncio

import pytest

from core import ids
from core.access import Scope, Tenant
from core.episode import EpisodeStatus
from core.feedback import FeedbackKind
from gateway import subjects
from store.events import TURNS
from tests import nouns
from tests.client_api_harness import ClientApi, running_client_api


@pytest.fixture
async def api(store, make_config):
    """The client routes with one Episode and its Turn."""
    async with running_client_api(store, make_config) as api:
        async with store.transaction() as work:
            await work.episodes.add(nouns.episode(id="ep_a"))
            await work.turns.add_many([nouns.turn(id="turn_a")])
        yield api


async def give(api: ClientApi, key: str = "user", headers: dict[str, str] | None = None, **body: object):
    return await api.call("POST", "/v1/feedback", {"name": "good"} | body, key, **(headers or {}))


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (True, "boolean"),
        (0, "number"),
        (0.25, "number"),
        ("nice\u0000", "comment"),
        ({"role": "assistant", "content": "5"}, "demonstration"),
    ],
)
async def test_every_kind_comes_back_as_it_was_said(api: ClientApi, value, kind):
    """The kind is inferred, and the list gives value, subject and metadata unchanged."""
    status, said = await give(api, turn_id="turn_a", value=value, metadata={"who": "me"})
    assert (status, said["kind"], said["value"]) == (201, kind, value)
    assert type(said["value"]) is type(value)
    assert (said["episode_id"], said["turn_id"], said["metadata"]) == ("ep_a", "turn_a", {"who": "me"})
    _, listed = await api.call("GET", "/v1/feedback?episode_id=ep_a")
    assert listed["data"] == [said]
    assert not {"tenant_id", "key_id", "idempotency_key"} & said.keys()


async def test_a_text_may_be_a_demonstration(api: ClientApi):
    """An explicit kind makes a text an assistant message; a kind that does not fit is refused."""
    status, said = await give(api, episode_id="ep_a", value="5", kind="demonstration")
    assert (status, said["value"]) == (201, {"role": "assistant", "content": "5"})
    assert said["turn_id"] is None
    status, body = await give(api, episode_id="ep_a", value=True, kind="number")
    assert (status, body["error"]["param"]) == (400, "value")


async def test_feedback_is_taken_after_the_end(api: ClientApi):
    """An Episode that has expired still takes Feedback."""
    ended = nouns.episode(status=EpisodeStatus.EXPIRED)
    async with api.store.transaction() as work:
        await work.episodes.add(ended)
    status, _ = await give(api, episode_id=ended.id, value=1)
    assert status == 201


async def test_a_repeated_request_adds_nothing(api: ClientApi):
    """The same idempotency key gives the first Feedback again, also at the same time; another statement is 409."""
    headers = {"idempotency_key": "once"}
    answers = await asyncio.gather(*(give(api, headers=headers, turn_id="turn_a", value=True) for _ in range(5)))
    assert {status for status, _ in answers} == {201}
    assert len({said["id"] for _, said in answers}) == 1
    status, body = await give(api, headers=headers, turn_id="turn_a", value=False)
    assert (status, body["error"]["param"]) == (409, "idempotency-key")
    status, _ = await give(api, "other", headers=headers, turn_id="turn_a", value=True)
    assert status == 404
    _, listed = await api.call("GET", "/v1/feedback")
    assert len(listed["data"]) == 1


async def test_tenants_are_apart(api: ClientApi):
    """Another tenant can neither say nor read anything about a Turn or Episode, and learns nothing of it."""
    await give(api, turn_id="turn_a", value=True)
    for subject in ({"turn_id": "turn_a"}, {"episode_id": "ep_a"}):
        status, body = await give(api, "other", **subject, value=True)
        assert (status, body["error"]["code"]) == (404, "not_found")
    for query in ("", "?episode_id=ep_a", "?turn_id=turn_a"):
        assert (await api.call("GET", f"/v1/feedback{query}", key="other"))[1]["data"] == []


async def test_scopes(api: ClientApi):
    """The scopes feedback and inference suffice; an administrator's alone does not."""
    assert (await give(api, "rater", turn_id="turn_a", value=True))[0] == 201
    assert (await give(api, "admin", turn_id="turn_a", value=True))[0] == 403
    assert (await give(api, "nobody", turn_id="turn_a", value=True))[0] == 401


async def test_consent_comes_with_the_key_and_can_be_withdrawn(api: ClientApi):
    """A Feedback may train only by the grant of tenant or key, and a request can withdraw it."""
    _, plain = await give(api, turn_id="turn_a", value="x", kind="demonstration")
    _, granted = await give(api, "trainer", turn_id="turn_a", value="x", kind="demonstration")
    _, narrowed = await give(api, "trainer", {"x_hone_train": "false"}, turn_id="turn_a", value=True)
    assert [said["training_granted"] for said in (plain, granted, narrowed)] == [False, True, False]


async def test_personal_data_is_taken_out_where_the_tenant_asks(api: ClientApi):
    """Comments, demonstrations and metadata of such a tenant are redacted before they are stored."""
    async with api.store.transaction() as work:
        await work.tenants.add(Tenant(id="ten_r", name="R", redact=True))
        await work.episodes.add(nouns.episode(id="ep_r", tenant_id="ten_r"))
    await api.add_key("careful", {Scope.FEEDBACK}, tenant="ten_r")
    mail = "write to jane@example.com"
    bodies = [
        {"value": mail},
        {"value": mail, "kind": "demonstration"},
        {"value": True, "metadata": {"who": "jane@example.com"}},
    ]
    for body in bodies:
        status, said = await give(api, "careful", episode_id="ep_r", **body)
        assert status == 201
        assert "jane" not in str(said)
        assert "<EMAIL_ADDRESS>" in str(said)


async def test_a_turn_on_its_way_is_waited_for(api: ClientApi):
    """A Turn whose id was just given out may come into the store after its Feedback."""
    turn_id = ids.new_id(ids.TURN)

    async def write_later() -> None:
        await asyncio.sleep(0.1)
        async with api.store.transaction() as work:
            await work.turns.add_many([nouns.turn(id=turn_id, index=1)])
        await api.store.events.publish(TURNS, {})

    (status, said), _ = await asyncio.gather(give(api, turn_id=turn_id, value=True), write_later())
    assert (status, said["turn_id"]) == (201, turn_id)


async def test_unknown_subjects_are_404(api: ClientApi, monkeypatch: pytest.MonkeyPatch):
    """Ids that were never given out, or lately and lost, are not found; two subjects or none are refused."""
    monkeypatch.setattr(subjects, "PATIENCE_SECONDS", 0.0)
    for subject in ({"turn_id": "turn_zz"}, {"episode_id": ids.new_id(ids.EPISODE)}):
        assert (await give(api, **subject, value=True))[0] == 404
    assert (await give(api, value=True))[0] == 400
    assert (await give(api, turn_id="turn_a", episode_id="ep_a", value=True))[0] == 400
    assert (await give(api, turn_id="a\u0000b", value=True))[0] == 400


@pytest.mark.parametrize(
    "value",
    [
        b'"\\ud800"',
        b'{"content": "\\ud800"}',
        b'{"content": "x", "y": ' + b"[" * 3000 + b"]" * 3000 + b"}",
        b'"' + b"x" * 1_000_001 + b'"',
        b"null",
        b"[]",
        b"1e999",
        b"NaN",
    ],
)
async def test_odd_values_are_refused(api: ClientApi, value: bytes):
    """What cannot be stored and given back is 400, never 500."""
    body = b'{"turn_id": "turn_a", "name": "good", "value": ' + value + b"}"
    headers = {"authorization": f"Bearer {api.keys['user']}", "content-type": "application/json"}
    async with api.http.post(f"{api.url}/v1/feedback", data=body, headers=headers) as response:
        assert response.status == 400, await response.text()


async def test_lists_page_and_filter(api: ClientApi):
    """Pages joined by ``after`` hold everything once, oldest first; filters restrict."""
    said = [(await give(api, turn_id="turn_a", value=n, name=f"m{n % 2}"))[1] for n in range(5)]
    said.append((await give(api, episode_id="ep_a", value=9))[1])
    seen: list[str] = []
    more = True
    while more:
        after = f"&after={seen[-1]}" if seen else ""
        _, page = await api.call("GET", f"/v1/feedback?episode_id=ep_a&limit=2{after}")
        seen += [one["id"] for one in page["data"]]
        more = page["has_more"]
    assert seen == [one["id"] for one in said]
    _, odd = await api.call("GET", "/v1/feedback?name=m1")
    assert [one["value"] for one in odd["data"]] == [1, 3]
    _, turns = await api.call("GET", "/v1/feedback?turn_id=turn_a")
    assert len(turns["data"]) == 5
    assert {one["kind"] for one in turns["data"]} == {FeedbackKind.NUMBER}
