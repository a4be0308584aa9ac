"""Events are kept for a while, and read by name, type and time."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import asyncpg
import pytest

from headgate.store import events as module
from headgate.store.database import Database
from headgate.store.events import Event, Events, Span, Which

DAY_S = 86400.0
LAST = 2**63 - 1


async def record(database: Database, *days_ago: float, name: str = "orders", type: str = "reloaded") -> None:
    """Events that happened so long ago."""
    for days in days_ago:
        at = datetime.now(UTC) - timedelta(days=days)
        await database.execute(
            "INSERT INTO headgate.datasource_events (name, type, actor, at) VALUES ($1, $2, 'me', $3)", name, type, at
        )


async def names(database: Database) -> list[str]:
    return [row["name"] for row in await database.fetch("SELECT name FROM headgate.datasource_events ORDER BY id")]


async def test_old_events_are_forgotten_in_pieces_and_the_others_stay(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "AT_ONCE", 2)
    await record(database, 100, 99, 98, 91, 90.5, name="old")
    await record(database, 89, 1, 0, name="new")
    removed = [await Events(database).forget(90 * DAY_S) for _ in range(4)]
    assert removed == [2, 2, 1, 0]
    assert await names(database) == ["new"] * 3


async def test_housekeeping_alone_removes_events(database: Database) -> None:
    """And leaves no session behind that could."""
    await record(database, 100)
    await Events(database).forget(90 * DAY_S)
    await record(database, 0)
    for _ in range(10):
        with pytest.raises(asyncpg.RaiseError, match="append only"):
            await database.execute("DELETE FROM headgate.datasource_events")
    with pytest.raises(asyncpg.RaiseError, match="append only"):
        async with database.transaction(module._FORGETS) as connection:
            await connection.execute("UPDATE headgate.datasource_events SET actor = 'you'")


async def test_a_page_has_the_latest_before_an_id_since_a_time(database: Database) -> None:
    await record(database, 5, 4, 3, 2, 1)
    events = Events(database)
    found = await events.page(Which(), Span(), LAST, 2)
    ages = [round((datetime.now(UTC) - row.at).total_seconds() / DAY_S) for row in found]
    assert ages == [1, 2]
    before = await events.page(Which(), Span(datetime.now(UTC) - timedelta(days=3.5)), found[-1].id, 100)
    assert [round((datetime.now(UTC) - row.at).total_seconds() / DAY_S) for row in before] == [3]
    assert await events.page(Which(), Span(datetime.now(UTC)), LAST, 100) == []
    until = await events.page(Which(), Span(None, datetime.now(UTC) - timedelta(days=3.5)), LAST, 100)
    assert [round((datetime.now(UTC) - row.at).total_seconds() / DAY_S) for row in until] == [4, 5]


async def test_events_are_found_by_name_and_type_and_both(database: Database) -> None:
    events = Events(database)
    one = Event(None, "one", "created", {}, "me")
    await events.record([one, Event(None, "two", "created", {}, "me"), Event(None, "one", "deleted", {}, "me")])
    assert [row.type for row in await events.page(Which("one"), Span(), LAST, 9)] == ["deleted", "created"]
    assert [row.name for row in await events.page(Which(type="created"), Span(), LAST, 9)] == ["two", "one"]
    (found,) = await events.following(Which("one", "created"), 0)
    assert (found.name, found.type) == ("one", "created")
    assert await events.following(Which("one", "created"), found.id) == []
