"""Lineage and era in a real database: who is let in, and what a new era does to the rows."""

from __future__ import annotations

import asyncio
from pathlib import Path
from uuid import UUID, uuid4

import pytest

from headgate.core.lease import Expired
from headgate.core.lineage import first_epoch
from headgate.errors import Displaced
from headgate.store import lineage
from headgate.store.database import Database, connect
from headgate.store.inbox import InboxTable, Limit, Payload
from headgate.store.lineage import Settled, Witness
from headgate.store.notifications import Notifications
from tests.store.conftest import Rows

ELSEWHERE = "UPDATE headgate.registry SET lineage = '1/1/1/1'"


async def settle(url: str, witness: Witness) -> Settled | None:
    session = await connect(url)
    try:
        return await lineage.settle(session, witness)
    finally:
        await session.close()


async def fork(url: str) -> tuple[UUID, UUID]:
    session = await connect(url)
    try:
        return await lineage.fork(session, "tester")
    finally:
        await session.close()


async def witness_of(url: str, home: Path | None = None) -> Witness:
    """Somebody who has worked with this database."""
    witness = Witness(home)
    for _ in range(2):  # The first one makes it at home here, the second one sees it.
        await (await Database.open(url, size=1, check=witness.check)).close()
    return witness


async def test_the_first_who_works_with_a_registry_makes_it_at_home(url: str, database: Database) -> None:
    assert await database.fetchval("SELECT lineage FROM headgate.registry") is None
    witness = await witness_of(url)
    assert await database.fetchval("SELECT lineage = headgate.lineage() FROM headgate.registry")
    assert witness.known()


async def test_a_database_without_a_registry_lets_everyone_in(empty_url: str) -> None:
    database = await Database.open(empty_url, check=Witness().check)
    assert await database.fetchval("SELECT 1") == 1
    await database.close()


async def test_a_registry_that_is_not_at_home_lets_nobody_in(url: str, database: Database) -> None:
    await database.execute(ELSEWHERE)
    with pytest.raises(Displaced, match="went back in time, or is a copy") as refused:
        await Database.open(url, check=Witness().check)
    assert "installation adopt" in refused.value.hint
    assert "installation fork" in refused.value.hint


async def test_a_pool_that_is_open_makes_no_new_session_either(url: str, database: Database) -> None:
    pool = await Database.open(url, size=2, check=(await witness_of(url)).check)
    await database.execute(ELSEWHERE)
    async with pool.transaction() as first:  # The session that is open was let in before.
        assert await first.fetchval("SELECT 1") == 1
        with pytest.raises(Displaced):
            await pool.fetchval("SELECT 1")
    await pool.close()


async def test_behind_a_pooler_every_transaction_is_checked(url: str, database: Database) -> None:
    """One session for us may be several for the server, of which the next may be another's."""
    pool = await Database.open(f"{url}&pooler=transaction", size=1, check=(await witness_of(url)).check)
    assert await pool.fetchval("SELECT 1") == 1
    await database.execute(ELSEWHERE)
    with pytest.raises(Displaced):
        await pool.fetchval("SELECT 1")
    await pool.close()


async def test_a_witness_begins_an_era_above_all_that_was(url: str, rows: Rows) -> None:
    node, (mine, free) = await rows.node(), await rows.many(["orders", "clicks"])
    epoch = await rows.acquire(node, mine)
    await rows.database.execute("UPDATE headgate.stream SET transactional = true")
    inbox = InboxTable(rows.database, "webhook")
    datasource = await rows.datasource()
    await inbox.append([Payload(datasource, "{}", b"{}")], {datasource: Limit()})
    witness = await witness_of(url)
    await rows.database.execute(ELSEWHERE)
    settled = await settle(url, witness)
    assert settled is not None
    assert (settled.era, settled.before) == (1, "1/1/1/1")
    assert (await rows.row(mine)).epoch > max(epoch, first_epoch(1) - 1)
    assert (await rows.row(mine)).owner is None
    assert not (await rows.row(mine)).settled  # Nobody knows what its sink has.
    assert (await rows.row(free)).settled  # It never had one.
    assert all(one.ended for one in await rows.nodes.all())
    assert ("revoked", "left") in await rows.history(mine)
    await inbox.append([Payload(datasource, "{}", b"{}")], {datasource: Limit()})
    ids = [one.id for one in await inbox.after(datasource, 0, 10)]
    assert ids[0] < first_epoch(1) <= ids[1]
    assert await rows.database.fetchval("SELECT max(id) FROM headgate.datasource_events") >= first_epoch(1)
    assert await rows.database.fetchval("SELECT group_epoch FROM headgate.registry") >= first_epoch(1)
    (made,) = await rows.many(["made later"])
    assert (await rows.row(made)).epoch == first_epoch(1)
    assert await settle(url, witness) is None  # Once.


async def test_a_stream_that_no_sink_fences_waits_for_a_lease(url: str, rows: Rows) -> None:
    """A node of the time that was lost may still write it, known to this registry or not; only its trust stops it."""
    await rows.node("right")
    stream = await rows.stream()
    witness = await witness_of(url)
    await rows.database.execute(ELSEWHERE)
    await settle(url, witness)
    (ghost,) = [one for one in await rows.nodes.all() if one.name == lineage.GHOST]
    assert (await rows.row(stream)).owner == ghost.id
    assert (ghost.ended, ghost.lease_s) == (True, 5.0)
    await rows.nodes.expire(Expired(ghost.id, ghost.beat))  # As an observer does after a lease.
    assert (await rows.row(stream)).owner is None
    assert (await rows.row(stream)).epoch > first_epoch(1)


async def test_whoever_comes_second_finds_that_it_is_settled(url: str, database: Database) -> None:
    witnesses = [await witness_of(url) for _ in range(5)]
    await database.execute(ELSEWHERE)
    found = await asyncio.gather(*(settle(url, one) for one in witnesses))
    assert len([one for one in found if one is not None]) == 1
    assert await database.fetchval("SELECT era FROM headgate.registry") == 1


async def test_a_stranger_settles_nothing(url: str, database: Database) -> None:
    await database.execute(ELSEWHERE)
    assert await settle(url, Witness()) is None


async def test_a_home_remembers_what_its_processes_have_seen(url: str, database: Database, tmp_path: Path) -> None:
    await witness_of(url, tmp_path)
    await database.execute(ELSEWHERE)
    assert await settle(url, Witness(tmp_path)) is not None


async def test_a_home_whose_file_is_broken_or_hostile_is_no_witness(
    url: str, database: Database, tmp_path: Path
) -> None:
    await witness_of(url)
    await database.execute(ELSEWHERE)
    for text in ("", "[", "{}", "[{}]", '[{"installation": "x", "era": 1, "lineage": "", "flushed": 0}]', "\0"):
        (tmp_path / lineage.FILE).write_text(text)
        assert await settle(url, Witness(tmp_path)) is None
    assert await database.fetchval("SELECT era FROM headgate.registry") == 0


async def test_many_sessions_at_once_do_not_take_each_others_later_view_for_a_loss(url: str) -> None:
    """The log grows between the look of one and the judgement of another."""
    witness = await witness_of(url)
    busy = await Database.open(url)
    await busy.execute("CREATE TABLE filled (text text)")

    async def fill() -> None:
        for _ in range(40):
            await busy.execute("INSERT INTO filled SELECT repeat('x', 1000) FROM generate_series(1, 20)")

    async def look() -> None:
        for _ in range(10):
            await (await Database.open(url, size=1, check=witness.check)).close()

    await asyncio.gather(fill(), *(look() for _ in range(5)))
    await busy.close()


async def test_a_fork_is_another_installation_with_nothing_enabled(url: str, rows: Rows) -> None:
    node, stream = await rows.node(), await rows.stream()
    await rows.acquire(node, stream)
    await rows.database.execute("UPDATE headgate.stream SET transactional = true")
    await rows.database.execute(
        "INSERT INTO headgate.dump (id, source, target, options, actor) VALUES ($1, 'a', 'b', '{}', 'me')", uuid4()
    )
    told = Notifications(rows.database)
    await told.write({"targets": {"ops": {}}}, "ada")
    await witness_of(url)
    await rows.database.execute(ELSEWHERE)
    before, now = await fork(url)
    assert (await told.read()).document is None  # The targets are those of the original.
    assert before != now == await rows.datasources.installation()
    found = await rows.datasources.find("orders")
    assert found is not None
    assert not found.enabled
    assert (await rows.row(stream)).owner is None
    assert [one.ended for one in await rows.nodes.all()] == [True]
    assert await rows.database.fetchval("SELECT status FROM headgate.dump") == "cancelled"
    await (await Database.open(url, check=Witness().check)).close()


async def test_a_user_without_rights_on_the_server_may_ask_for_the_lineage(url: str, database: Database) -> None:
    await database.execute("DROP ROLE IF EXISTS plain_lineage")
    await database.execute("CREATE ROLE plain_lineage LOGIN")
    await database.execute("GRANT USAGE ON SCHEMA headgate TO plain_lineage")
    await database.execute("GRANT SELECT, UPDATE ON headgate.registry TO plain_lineage")
    try:
        plain = await Database.open(url.replace("headgate@", "plain_lineage@"), check=Witness().check)
        system = await plain.fetchval("SELECT split_part(headgate.lineage(), '/', 1)")
        assert system != "0"
        await plain.close()
    finally:
        await database.execute("DROP OWNED BY plain_lineage")
        await database.execute("DROP ROLE plain_lineage")
