"""What a node knows of tokens: lookups that gather, connections that end, uses and failures in numbers."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import pytest

from headgate.core.access import Caller
from headgate.errors import NotFound, StoreError
from headgate.runtime import access as module
from headgate.runtime.access import Access, network_of
from headgate.store.database import Database
from headgate.store.events import Events
from headgate.store.sessions import Sessions
from headgate.store.tokens import Found, Tokens
from tests.waiting import LONG_S


class Counting(Tokens):
    """Counts its queries, and can be away."""

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self.queries = 0
        self.is_away = False

    async def find(self, hashes: Any) -> list[Found]:
        self.queries += 1
        if self.is_away:
            raise StoreError("the database is away")
        return await super().find(hashes)


@pytest.fixture
def tokens(database: Database) -> Counting:
    return Counting(database)


@pytest.fixture
def access(tokens: Counting, database: Database) -> Access:
    return Access(tokens, Sessions(database), "here")


def wrong() -> str:
    return "hg_" + secrets.token_urlsafe(32)


async def until(read: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(LONG_S):
        while not await read():
            await asyncio.sleep(0.02)


async def test_a_flood_of_wrong_tokens_costs_a_few_queries_and_pushes_no_right_one_out(
    tokens: Counting, access: Access, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "KNOWN_S", 3600.0)
    monkeypatch.setattr(module, "MOST_KNOWN", 100)
    _, text = await tokens.create("ci", "viewer")
    assert await access.find(text) is not None
    before = tokens.queries
    assert set(await asyncio.gather(*(access.find(wrong()) for _ in range(3000)))) == {None}
    assert tokens.queries - before <= 4  # A thousand each, and what came before the first gathered.
    before = tokens.queries
    assert await access.find(text) is not None
    assert tokens.queries == before
    assert len(access._wrong) <= 100


async def test_the_same_wrong_token_and_what_is_no_token_cost_no_query(tokens: Counting, access: Access) -> None:
    text = wrong()
    assert await access.find(text) is None
    before = tokens.queries
    for one in (text, "", "hg_", "wrong", text + "x", text[:-1], "hg_" + "é" * 43, "\0" * 46, "x" * 100_000):
        assert await access.find(one) is None
    assert tokens.queries == before


async def test_a_database_that_is_away_is_no_wrong_token(tokens: Counting, access: Access) -> None:
    _, text = await tokens.create("ci", "viewer")
    tokens.is_away = True
    with pytest.raises(StoreError):
        await access.find(text)
    tokens.is_away = False
    assert await access.find(text) is not None


async def test_a_caller_that_gives_up_takes_no_other_with_it(tokens: Counting, access: Access) -> None:
    _, text = await tokens.create("ci", "viewer")
    first, second = (asyncio.create_task(access.find(text)) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    assert await second is not None
    with suppress(asyncio.CancelledError):
        await first


async def test_a_token_that_was_revoked_elsewhere_is_forgotten_in_a_moment(
    tokens: Counting, access: Access, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "KNOWN_S", 0.1)
    caller, text = await tokens.create("ci", "viewer")
    assert caller.id is not None
    assert await access.find(text) is not None
    await tokens.revoke(caller.id, "ada", yes=False)

    async def has_ended() -> bool:
        found = await access.find(text)
        return found is not None and found.has_ended

    await until(has_ended)


async def test_a_lookup_that_began_before_a_revocation_is_not_remembered(
    tokens: Counting, access: Access, monkeypatch: pytest.MonkeyPatch
) -> None:
    caller, text = await tokens.create("ci", "viewer")
    assert caller.id is not None
    found = Tokens.find

    async def late(self: Tokens, hashes: Any) -> list[Found]:
        before = await found(self, hashes)
        assert caller.id is not None
        with suppress(NotFound):
            await tokens.revoke(caller.id, "ada", yes=False)
            access.forget()
        return before

    monkeypatch.setattr(Tokens, "find", late)
    await access.find(text)
    again = await access.find(text)
    assert again is not None
    assert again.has_ended


async def test_failures_that_could_not_be_written_down_are_not_forgotten(
    tokens: Counting, access: Access, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    noted, attempts = Tokens.note_failures, 0

    async def fails_once(self: Tokens, *args: Any) -> None:
        nonlocal attempts
        attempts += 1
        if attempts == 1:
            raise StoreError("the database is away")
        await noted(self, *args)

    monkeypatch.setattr(Tokens, "note_failures", fails_once)
    monkeypatch.setattr(module, "LOOK_S", 0.1)
    access.failed("unknown", "10.0.0.1")
    running = asyncio.create_task(access.run(lambda: None))

    async def recorded() -> bool:
        return [one.payload["count"] for one in await Events(database).after(None, 0)] == [1]

    await until(recorded)
    running.cancel()


async def test_open_connections_end_with_their_token_and_others_stay(
    tokens: Counting, access: Access, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LOOK_S", 0.1)
    one, _ = await tokens.create("one", "viewer")
    two, _ = await tokens.create("two", "viewer")
    assert one.id is not None
    ended: list[str] = []
    running = asyncio.create_task(access.run(lambda: None))
    with (
        access.hold(one, lambda: ended.append("one")),
        access.hold(one, lambda: ended.append("one again")),
        access.hold(two, lambda: ended.append("two")),
        access.hold(Caller(None, "anyone", "admin"), lambda: ended.append("anyone")),
    ):
        await tokens.revoke(one.id, "ada", yes=False)
        async with asyncio.timeout(LONG_S):
            while len(ended) < 2:
                await asyncio.sleep(0.02)
        await asyncio.sleep(0.3)  # Long enough for several looks: nobody else ends, and nobody twice.
        assert ended == ["one", "one again"]
    running.cancel()


async def test_a_flood_of_failures_is_one_event_with_the_number(
    tokens: Counting, access: Access, database: Database
) -> None:
    for number in range(5000):
        access.failed("unknown", f"10.0.{number % 7}.1")
    access.failed("forbidden", "10.0.0.1")
    running = asyncio.create_task(access.run(lambda: None))

    async def recorded() -> bool:
        return any(one.type == "tokens_refused" for one in await Events(database).after(None, 0))

    await until(recorded)
    running.cancel()
    (event,) = [one for one in await Events(database).after(None, 0) if one.type == "tokens_refused"]
    assert (event.payload["count"], event.payload["unknown"], event.payload["forbidden"]) == (5001, 5000, 1)
    addresses = event.payload["addresses"]
    assert isinstance(addresses, dict)
    assert len(addresses) == 5


@pytest.mark.parametrize(
    ("address", "network"),
    [
        ("10.0.0.1", "10.0.0.1"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("fe80::1%eth0", "fe80::/64"),
        ("", "unknown"),
        ("hostile\n", "unknown"),
    ],
)
def test_an_address_is_one_place_however_it_is_written(address: str, network: str) -> None:
    assert network_of(address) == network


async def test_a_session_that_is_used_or_open_does_not_become_idle(
    tokens: Counting, access: Access, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page that stays open uses its session; one that nobody has open is left to end."""
    sessions = Sessions(database)
    caller, _ = await tokens.create("ada", "viewer")
    assert caller.id is not None
    texts = [await sessions.begin(caller.id) for _ in range(3)]
    await database.execute("UPDATE headgate.session SET idle_at = now() + interval '1 minute'")
    used, opened, _ = [await access.find(text) for text in texts if text is not None]
    assert used is not None
    assert opened is not None
    access.used(used.caller, "127.0.0.1")

    async def far() -> set[object]:
        rows = await database.fetch("SELECT id FROM headgate.session WHERE idle_at > now() + interval '1 hour'")
        return {row["id"] for row in rows}

    monkeypatch.setattr(module, "USED_EVERY_S", 0.0)
    running = asyncio.create_task(access.run(lambda: None))
    with access.hold(opened.caller, lambda: None):
        async with asyncio.timeout(LONG_S):
            while await far() != {used.caller.session, opened.caller.session}:
                await asyncio.sleep(0.02)
    running.cancel()
