"""Tokens in the database: what is kept of them, and that each change is an event."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from headgate.core.access import Bounds, Caller
from headgate.errors import ConfigError, NotFound, Refused
from headgate.store.database import Database
from headgate.store.events import Events, Recorded
from headgate.store.tokens import Tokens, hash_of, is_text

SOON = datetime.now(UTC) + timedelta(hours=1)


@pytest.fixture
def tokens(database: Database) -> Tokens:
    return Tokens(database)


async def events(database: Database) -> list[Recorded]:
    return await Events(database).after(None, 0)


def id_of(caller: Caller) -> UUID:
    assert caller.id is not None
    return caller.id


async def expire(database: Database, caller: Caller) -> None:
    await database.execute("UPDATE headgate.token SET expires_at = now() - interval '1 s' WHERE id = $1", caller.id)


async def works(tokens: Tokens, text: str) -> bool:
    return any(not found.has_ended for found in await tokens.find([hash_of(text)]))


async def test_a_token_keeps_its_bounds_and_its_end(tokens: Tokens) -> None:
    bounds = Bounds(("orders-*",), ("invoices/billing",))
    caller, text = await tokens.create("agent", "sender", "ada", bounds, SOON)
    (found,) = await tokens.find([hash_of(text)])
    (listed,) = await tokens.all()
    assert is_text(text)
    assert (found.caller, found.has_ended) == (caller, False)
    assert (listed.bounds, listed.expires_at, listed.author, listed.used_at) == (bounds, SOON, "ada", None)


async def test_every_change_is_an_event(tokens: Tokens, database: Database) -> None:
    first = await tokens.create_first("first", lambda text: None)
    revoked, _ = await tokens.create("ci", "viewer", "first")
    expired, _ = await tokens.create("temp", "viewer", "first", None, SOON)
    await tokens.revoke(id_of(revoked), "first", yes=False)
    await expire(database, expired)
    assert await tokens.end_expired() == 1
    assert await tokens.end_expired() == 0
    found = [(one.type, one.payload["token"], one.actor) for one in await events(database)]
    assert first is not None
    assert found == [
        ("token_created", "first", "headgate"),
        ("token_created", "ci", "first"),
        ("token_created", "temp", "first"),
        ("token_revoked", "ci", "first"),
        ("token_expired", "temp", "headgate"),
    ]
    assert first not in str(await events(database))


async def test_an_expired_token_does_not_work_even_before_it_is_noted(tokens: Tokens, database: Database) -> None:
    caller, text = await tokens.create("temp", "viewer", "ada", None, SOON)
    assert await tokens.live([id_of(caller)]) == [caller.id]
    await expire(database, caller)
    assert not await works(tokens, text)
    assert (await tokens.all(), await tokens.live([id_of(caller)])) == ([], [])


async def test_a_name_is_free_again_when_its_token_has_ended(tokens: Tokens, database: Database) -> None:
    caller, _ = await tokens.create("ci", "viewer", "ada", None, SOON)
    with pytest.raises(Refused, match="called 'ci' already"):
        await tokens.create("ci", "viewer", "ada")
    await expire(database, caller)
    again, _ = await tokens.create("ci", "viewer", "ada")
    await tokens.revoke(id_of(again), "ada", yes=False)
    await tokens.create("ci", "viewer", "ada")


async def test_only_a_database_that_never_had_a_token_gets_a_first_one(tokens: Tokens) -> None:
    kept: list[str] = []
    made = await asyncio.gather(*(tokens.create_first("first", kept.append) for _ in range(5)))
    assert [text for text in made if text is not None] == kept
    assert len(kept) == 1
    (found,) = await tokens.find([hash_of(kept[0])])
    await tokens.revoke(id_of(found.caller), "first", yes=True)
    assert await tokens.create_first("first", kept.append) is None
    assert not await works(tokens, kept[0])


async def test_a_first_token_that_cannot_be_kept_is_not_made(tokens: Tokens) -> None:
    def fail(text: str) -> None:
        raise ConfigError("the disk is full")

    with pytest.raises(ConfigError, match="the disk is full"):
        await tokens.create_first("first", fail)
    assert await tokens.create_first("first", lambda text: None) is not None


async def test_what_ended_long_ago_is_forgotten_but_not_that_there_was_a_token(
    tokens: Tokens, database: Database
) -> None:
    for name in ("first", "second"):
        caller, _ = await tokens.create(name, "admin", "ada")
        await tokens.revoke(id_of(caller), "ada", yes=True)
    await database.execute("UPDATE headgate.token SET ended_at = now() - interval '1 year'")
    await tokens.end_expired()
    assert [row["name"] for row in await database.fetch("SELECT name FROM headgate.token")] == ["first"]
    assert await tokens.create_first("first", lambda text: None) is None


async def test_the_last_admin_is_not_revoked_unasked_nor_by_two_at_once(tokens: Tokens) -> None:
    one, _ = await tokens.create("one", "admin", "ada")
    two, _ = await tokens.create("two", "admin", "ada")
    await tokens.create("ends", "admin", "ada", None, SOON)
    done = await asyncio.gather(
        *(tokens.revoke(id_of(caller), "each other", yes=False) for caller in (one, two)), return_exceptions=True
    )
    (refused,) = [result for result in done if isinstance(result, Refused)]
    assert refused.code == "last_admin"
    left = next(listed for listed in await tokens.all() if listed.name in ("one", "two"))
    await tokens.revoke(left.id, "ada", yes=True)
    with pytest.raises(NotFound):
        await tokens.revoke(left.id, "ada", yes=True)


async def test_the_first_use_from_another_address_is_an_event_and_the_next_is_not(
    tokens: Tokens, database: Database
) -> None:
    caller, _ = await tokens.create("ci", "viewer", "ada")
    id = id_of(caller)
    assert await tokens.note_uses([(id, "10.0.0.1"), (id, "10.0.0.2")]) == 2
    assert await tokens.note_uses([(id, "10.0.0.2"), (id, "10.0.0.3")]) == 1
    assert await tokens.note_uses([(UUID(int=0), "10.0.0.1")]) == 0
    used = [one.payload["address"] for one in await events(database) if one.type == "token_used"]
    assert used == ["10.0.0.1", "10.0.0.2", "10.0.0.3"]
    (listed,) = await tokens.all()
    assert listed.used_at is not None


async def test_a_token_that_is_used_from_everywhere_does_not_fill_the_database(
    tokens: Tokens, database: Database
) -> None:
    caller, _ = await tokens.create("ci", "viewer", "ada")
    for part in range(3):
        await tokens.note_uses([(id_of(caller), f"10.{part}.{n // 250}.{n % 250}") for n in range(1000)])
    assert await database.fetchval("SELECT count(*) FROM headgate.token_address") == 1000
