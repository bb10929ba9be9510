"""Who calls: headers, caching, expiry, rotation, outage."""

import pytest

from core.access import ApiKey, Scope, Tenant, hash_key, mint_key, model_allowed
from core.errors import AuthenticationFailed, StoreError
from gateway import auth
from gateway.auth import Authenticator, Caller
from tests.conftest import OpenStore

KEY = mint_key()
BEARER = {b"authorization": b"Bearer " + KEY.encode()}


class Calls:
    """A Store whose lookups are counted, and that can go away."""

    def __init__(self, store) -> None:
        self.store = store
        self.lookups = 0
        self.down = False

    def reading(self):
        self.lookups += 1
        if self.down:
            raise StoreError("away")
        return self.store.reading()


class Clock:
    """Stands in for the module ``time``."""

    def __init__(self) -> None:
        self.seconds = 1_000_000.0

    def monotonic(self) -> float:
        return self.seconds

    time = monotonic


@pytest.fixture
def clock(monkeypatch) -> Clock:
    """Time that the test moves."""
    clock = Clock()
    monkeypatch.setattr(auth, "time", clock)
    return clock


def api_key(**fields) -> ApiKey:
    """The stored form of KEY."""
    values = {
        "id": "key_a",
        "tenant_id": "ten_a",
        "name": "k",
        "key_hash": hash_key(KEY),
        "scopes": frozenset({Scope.INFERENCE}),
    }
    return ApiKey(**(values | fields))


@pytest.fixture
async def store(fresh_sqlite_url: str, open_store: OpenStore):
    """A store with one Tenant and KEY."""
    store = await open_store(fresh_sqlite_url)
    async with store.transaction() as work:
        await work.tenants.add(Tenant(id="ten_a", name="A", training_granted=True))
        await work.api_keys.add(api_key())
    return store


@pytest.mark.parametrize(
    "headers",
    [
        BEARER,
        {b"authorization": b"bearer  " + KEY.encode() + b" "},
        {b"x-api-key": KEY.encode()},
        {b"api-key": KEY.encode()},
        {b"authorization": b"Basic abc", b"x-api-key": KEY.encode()},
    ],
)
async def test_every_usual_header_is_taken(store, headers) -> None:
    """The key of OpenAI's, Anthropic's and Azure's clients; the Tenant comes with it."""
    caller = await Authenticator(store=store).authenticate(headers)
    assert (caller.key.id, caller.tenant.name, caller.training_granted) == ("key_a", "A", True)


@pytest.mark.parametrize("headers", [{}, {b"authorization": b"Basic abc"}, {b"authorization": b"Bearer "}])
async def test_without_a_key_there_is_no_caller(store, headers) -> None:
    """The error says how to send one."""
    with pytest.raises(AuthenticationFailed, match="no API key"):
        await Authenticator(store=store).authenticate(headers)


async def test_a_key_is_looked_up_once_in_a_while(store, clock: Clock) -> None:
    """Within five seconds it is remembered, unknown ones for a second; a change is then seen."""
    calls = Calls(store)
    authenticator = Authenticator(store=calls)
    first = await authenticator.authenticate(BEARER)
    assert await authenticator.authenticate(BEARER) is first
    assert calls.lookups == 1
    clock.seconds += 5
    assert await authenticator.authenticate(BEARER) is first
    assert calls.lookups == 2
    for _ in range(3):
        with pytest.raises(AuthenticationFailed):
            await authenticator.authenticate({b"api-key": b"unknown"})
    assert calls.lookups == 3
    async with store.transaction() as work:
        await work.api_keys.update(api_key(revoked=True))
    clock.seconds += 5
    with pytest.raises(AuthenticationFailed):
        await authenticator.authenticate(BEARER)


async def test_an_outage_is_bridged_for_known_keys(store, clock: Clock) -> None:
    """Known keys go on working for a while, unknown ones are a StoreError."""
    calls = Calls(store)
    authenticator = Authenticator(store=calls)
    caller = await authenticator.authenticate(BEARER)
    calls.down = True
    clock.seconds += 30
    assert await authenticator.authenticate(BEARER) is caller
    with pytest.raises(StoreError):
        await authenticator.authenticate({b"api-key": b"unknown"})
    clock.seconds += auth.OUTAGE_SECONDS
    with pytest.raises(StoreError):
        await authenticator.authenticate(BEARER)


async def test_a_key_expires_to_the_second(store, clock: Clock) -> None:
    """Expiry holds also while the key is remembered."""
    async with store.transaction() as work:
        await work.api_keys.update(api_key(expires_at=clock.seconds + 1))
    authenticator = Authenticator(store=store)
    await authenticator.authenticate(BEARER)
    clock.seconds += 1
    with pytest.raises(AuthenticationFailed):
        await authenticator.authenticate(BEARER)


async def test_a_rotated_key_is_valid_for_its_grace_period(store, clock: Clock) -> None:
    """Both plaintexts are the same key until then; after it only the new one."""
    new = mint_key()
    rotated = api_key(key_hash=hash_key(new), previous_hash=hash_key(KEY), previous_until=clock.seconds + 2)
    async with store.transaction() as work:
        await work.api_keys.update(rotated)
    authenticator = Authenticator(store=store)
    assert (await authenticator.authenticate({b"api-key": new.encode()})).key.id == "key_a"
    assert (await authenticator.authenticate(BEARER)).key.id == "key_a"
    clock.seconds += 2
    with pytest.raises(AuthenticationFailed):
        await authenticator.authenticate(BEARER)
    await authenticator.authenticate({b"api-key": new.encode()})


async def test_a_tenants_change_is_seen_at_once_where_it_was_made(store) -> None:
    """Forgetting a Tenant forgets its keys."""
    authenticator = Authenticator(store=store)
    await authenticator.authenticate(BEARER)
    async with store.transaction() as work:
        await work.tenants.update(Tenant(id="ten_a", name="B"))
    assert (await authenticator.authenticate(BEARER)).tenant.name == "A"
    authenticator.forget_tenant("ten_other")
    assert (await authenticator.authenticate(BEARER)).tenant.name == "A"
    authenticator.forget_tenant("ten_a")
    assert (await authenticator.authenticate(BEARER)).tenant.name == "B"


async def test_a_flood_of_unknown_keys_forgets_no_known_one(store, clock: Clock, monkeypatch) -> None:
    """They are remembered apart, and not without bound."""
    monkeypatch.setattr(auth, "_MOST_REMEMBERED", 3)
    authenticator = Authenticator(store=store)
    await authenticator.authenticate(BEARER)
    for n in range(10):
        with pytest.raises(AuthenticationFailed):
            await authenticator.authenticate({b"api-key": str(n).encode()})
    assert (len(authenticator._known), len(authenticator._unknown)) == (1, 3)


@pytest.mark.parametrize(
    ("patterns", "model", "allowed"),
    [
        (None, "anything", True),
        ((), "anything", False),
        (("coder",), "coder", True),
        (("coder",), "coder-fast@17", True),
        (("coder",), "coder@17", True),
        (("coder@17",), "coder@17", True),
        (("coder@17",), "coder@18", False),
        (("coder",), "coder2", False),
        (("coder*",), "coder2", True),
        (("openai/*",), "openai/gpt-5", True),
        (("openai/*",), "anthropic/claude", False),
        (("*",), "x", True),
    ],
)
def test_allow_lists(patterns, model: str, allowed: bool) -> None:
    """A name allows its variants and versions, a star what begins so."""
    assert model_allowed(patterns, model) is allowed


def test_tenant_and_key_must_both_allow() -> None:
    """The stricter of both lists decides."""
    caller = Caller(key=api_key(models=("coder", "base")), tenant=Tenant(id="ten_a", name="A", models=("cod*",)))
    assert [caller.may_use(name) for name in ("coder", "base", "coda")] == [True, False, False]
