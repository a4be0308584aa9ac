"""The inbox table: what is full, and what is cleaned."""

from __future__ import annotations

import asyncio
from uuid import UUID

import pytest

from headgate.store import inbox
from headgate.store.database import Database
from headgate.store.datasources import Datasources
from headgate.store.inbox import InboxTable, Limit, Payload

WEBHOOK = "webhook"  # The identity of sources that read the inbox.


async def make_datasource(database: Database) -> UUID:
    async with Datasources(database).change("tester") as change:
        return (await change.create("hooks", True)).id


async def handle_all(database: Database, source: str = WEBHOOK) -> None:
    """As if the worker had committed everything."""
    await database.execute(
        "UPDATE headgate.stream SET position = (SELECT to_json(max(id)) FROM headgate.inbox), source_identity = $1",
        source,
    )


async def test_an_inbox_is_full_of_what_waits_not_of_what_was_handled(database: Database) -> None:
    datasource, table = await make_datasource(database), InboxTable(database, WEBHOOK)
    payloads, limits = [Payload(datasource, "{}", b"1")] * 5, {datasource: Limit(rows=5)}
    assert await table.append(payloads, limits) == set()
    assert await table.append(payloads, limits) == {datasource}
    assert await table.size(datasource) == (5, 5)
    await handle_all(database)
    assert await table.append(payloads, limits) == set()
    assert await table.size(datasource) == (5, 5)


async def test_only_what_was_handled_and_kept_long_enough_is_cleaned(database: Database) -> None:
    datasource, table = await make_datasource(database), InboxTable(database, WEBHOOK)
    limits = {datasource: Limit()}
    await table.append([Payload(datasource, "{}", b"handled")], limits)
    await handle_all(database)
    await table.append([Payload(datasource, "{}", b"waits")], limits)
    assert await table.clean(3600, {}) == 0
    assert await table.clean(0, {}) == 1
    assert [payload.body for payload in await table.after(datasource, 0, 10)] == [b"waits"]
    assert await table.size(datasource) == (1, 5)


async def test_a_replay_is_accepted_and_kept_once(database: Database) -> None:
    datasource, table = await make_datasource(database), InboxTable(database, WEBHOOK)
    for _ in range(3):
        assert await table.append([Payload(datasource, "{}", b"x", "same")] * 2, {datasource: Limit()}) == set()
    assert await table.size(datasource) == (1, 1)


async def test_the_position_of_another_source_cleans_nothing_and_breaks_nothing(database: Database) -> None:
    """The datasource was a webhook and reads something else now."""
    datasource, table = await make_datasource(database), InboxTable(database, WEBHOOK)
    await table.append([Payload(datasource, "{}", b"x")], {datasource: Limit()})
    await handle_all(database, source="another")
    assert await table.clean(0, {}) == 0
    await database.execute("UPDATE headgate.stream SET position = '17.5', source_identity = $1", WEBHOOK)
    assert await table.clean(0, {}) == 0


async def test_a_read_is_bounded_in_bytes_but_always_gets_on(database: Database) -> None:
    datasource, table = await make_datasource(database), InboxTable(database, WEBHOOK)
    large = b"x" * (5 * 1024 * 1024)
    await table.append([Payload(datasource, "{}", large)] * 3, {datasource: Limit()})
    first = await table.after(datasource, 0, 100)
    assert len(first) == 2
    assert len(await table.after(datasource, first[-1].id, 100)) == 1


async def test_cleaning_and_appending_many_inboxes_at_once_deadlock_never(database: Database) -> None:
    table = InboxTable(database, WEBHOOK)
    datasources = []
    for number in range(8):
        async with Datasources(database).change("tester") as change:
            datasources.append((await change.create(f"hooks-{number}", True)).id)
    limits = {datasource: Limit() for datasource in datasources}

    async def append(order: list[UUID]) -> None:
        for _ in range(15):
            await table.append([Payload(datasource, "{}", b"x") for datasource in order], limits)

    async def clean() -> None:
        for _ in range(15):
            await handle_all(database)
            await table.clean(0, {})

    await asyncio.gather(append(datasources), append(datasources[::-1]), clean())
    kept = [await table.size(datasource) for datasource in datasources]
    counted = await database.fetch("SELECT datasource, count(*) AS n FROM headgate.inbox GROUP BY datasource")
    assert sum(rows for rows, _ in kept) == sum(row["n"] for row in counted)


# What waits.


async def test_what_waits_is_what_follows_the_position_or_what_was_acknowledged_here(database: Database) -> None:
    datasource, table = await make_datasource(database), InboxTable(database, WEBHOOK)
    limits = {datasource: Limit()}
    assert await table.unread({}) == {}
    await table.append([Payload(datasource, "{}", b"handled")] * 2, limits)
    await handle_all(database)
    found = (await table.unread({}))[datasource]
    assert (found.records, found.bytes, found.oldest_at_s) == (0, 0, None)
    await table.append([Payload(datasource, "{}", b"waits")] * 3, limits)
    found = (await table.unread({}, datasource))[datasource]
    assert (found.records, found.bytes) == (3, 15)
    waiting = await table.after(datasource, 0, 10)
    assert found.oldest_at_s == pytest.approx(waiting[2].received_at_s)
    found = (await table.unread({datasource: waiting[3].id}))[datasource]
    assert (found.records, found.oldest_at_s) == (1, pytest.approx(waiting[4].received_at_s))


async def test_how_many_wait_in_a_full_inbox_is_estimated(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    datasource, table = await make_datasource(database), InboxTable(database, WEBHOOK)
    limits = {datasource: Limit()}
    await table.append([Payload(datasource, "{}", b"12345")] * 100, limits)
    await handle_all(database)
    await table.append([Payload(datasource, "{}", b"12345")] * 300, limits)
    monkeypatch.setattr(inbox, "COUNTED_ROWS", 10)
    found = (await table.unread({}))[datasource]
    assert (found.records, found.bytes) == (300, 1500)


async def test_an_inbox_that_nobody_reads_any_more_has_no_backlog(database: Database) -> None:
    datasource, table = await make_datasource(database), InboxTable(database, WEBHOOK)
    await table.append([Payload(datasource, "{}", b"1")], {datasource: Limit()})
    await handle_all(database, source="generator")
    assert await table.unread({}) == {}
