"""Sessions and codes in the database."""

from __future__ import annotations

import asyncio
from uuid import UUID

from headgate.store.database import Database
from headgate.store.sessions import MOST_CODES, Sessions
from headgate.store.tokens import Tokens, hash_of


async def _token(database: Database) -> UUID:
    caller, _ = await Tokens(database).create("ada", "viewer")
    assert caller.id is not None
    return caller.id


async def _count(database: Database) -> int:
    return int(await database.fetchval("SELECT count(*) FROM headgate.session"))


async def test_of_many_that_use_a_code_at_once_one_gets_in(database: Database) -> None:
    sessions = Sessions(database)
    code = await sessions.make_code(await _token(database))
    assert code is not None
    texts = await asyncio.gather(*(sessions.redeem(code) for _ in range(8)))
    assert len([text for text in texts if text is not None]) == 1
    assert await _count(database) == 1


async def test_a_token_that_has_ended_begins_no_session_and_redeems_no_code(database: Database) -> None:
    sessions, tokens = Sessions(database), Tokens(database)
    token = await _token(database)
    code, session = await sessions.make_code(token), await sessions.begin(token)
    assert code is not None
    assert session is not None
    await tokens.revoke(token, "test", yes=True)
    assert await sessions.begin(token) is None
    assert await sessions.make_code(token) is None
    assert await sessions.redeem(code) is None
    assert [found.has_ended for found in await tokens.find([hash_of(session)])] == [True]
    await sessions.clean()
    assert await _count(database) == 0


async def test_a_session_that_is_over_is_not_brought_back_by_its_use_and_is_cleaned(database: Database) -> None:
    sessions = Sessions(database)
    token = await _token(database)
    await sessions.begin(token)
    await sessions.begin(token)
    first = await database.fetchval("SELECT id FROM headgate.session LIMIT 1")
    await database.execute("UPDATE headgate.session SET idle_at = now() WHERE id = $1", first)
    await sessions.touch([first])
    await sessions.clean()
    assert await _count(database) == 1
    assert await database.fetchval("SELECT count(*) FROM headgate.session WHERE id = $1", first) == 0


async def test_the_oldest_codes_of_a_token_go_first(database: Database) -> None:
    sessions = Sessions(database)
    token = await _token(database)
    codes = [await sessions.make_code(token) for _ in range(MOST_CODES + 2)]
    assert await _count(database) == MOST_CODES
    assert codes[0] is not None
    assert codes[-1] is not None
    assert await sessions.redeem(codes[0]) is None
    assert await sessions.redeem(codes[-1]) is not None
