"""The inbox table: what is full, and what is cleaned."""

from __future__ import annotations

from uuid import UUID

from headgate.store.database import Database
from headgate.store.datasources import Datasources
from headgate.store.inbox import InboxTable, Limit, Payload


async def make_datasource(database: Database) -> UUID:
    async with Datasources(database).change("tester") as change:
        return (await change.create("hooks", True)).id


async def handle_all(database: Database) -> None:
    """As if the worker had committed everything."""
    await database.execute("UPDATE headgate.stream SET position = (SELECT to_json(max(id)) FROM headgate.inbox)::json")


async def test_an_inbox_is_full_of_what_waits_not_of_what_was_handled(database: Database) -> None:
    datasource, table = await make_datasource(database), InboxTable(database)
    payloads, limits = [Payload(datasource, "{}", b"1")] * 5, {datasource: Limit(rows=5)}
    assert await table.append(payloads, limits) == set()
    assert await table.append(payloads, limits) == {datasource}
    assert await table.size(datasource) == (5, 5)
    await handle_all(database)
    assert await table.append(payloads, limits) == set()
    assert await table.size(datasource) == (5, 5)


async def test_only_what_was_handled_and_kept_long_enough_is_cleaned(database: Database) -> None:
    datasource, table = await make_datasource(database), InboxTable(database)
    limits = {datasource: Limit()}
    await table.append([Payload(datasource, "{}", b"handled")], limits)
    await handle_all(database)
    await table.append([Payload(datasource, "{}", b"waits")], limits)
    assert await table.clean(3600) == 0
    assert await table.clean(0) == 1
    assert [payload.body for payload in await table.after(datasource, 0, 10)] == [b"waits"]
    assert await table.size(datasource) == (1, 5)


async def test_a_replay_is_accepted_and_kept_once(database: Database) -> None:
    datasource, table = await make_datasource(database), InboxTable(database)
    for _ in range(3):
        assert await table.append([Payload(datasource, "{}", b"x", "same")] * 2, {datasource: Limit()}) == set()
    assert await table.size(datasource) == (1, 1)
