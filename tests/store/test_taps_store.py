"""Taps in the database: how many, for how long, and how records go from node to node."""

from __future__ import annotations

from uuid import UUID, uuid4

import pytest

from headgate.core.tap import MOST_TAPS, Tap
from headgate.store.database import Database
from headgate.store.secrets import Keyring, new_master_key
from headgate.store.taps import Parcel, TapTable

ORDERS = UUID(int=1)


def tap(**more: object) -> Tap:
    return Tap(uuid4(), ORDERS, "source", **more)  # type: ignore[arg-type]


@pytest.fixture
def table(database: Database) -> TapTable:
    """With a master key."""
    return TapTable(database, Keyring.load(new_master_key(), None))


async def expire(database: Database, one: Tap) -> None:
    await database.execute("UPDATE headgate.tap SET expires_at = now() - interval '1 s' WHERE id = $1", one.id)


async def test_a_tap_is_seen_by_everybody_until_it_is_closed(table: TapTable, database: Database) -> None:
    one = tap(where="id > 3", sample=7)
    assert await table.open(one)
    assert await TapTable(database, None).all() == [one]
    await table.close([one.id])
    assert await table.all() == []


async def test_one_that_nobody_renews_ends_with_what_was_on_its_way(table: TapTable, database: Database) -> None:
    old, live = tap(), tap()
    assert await table.open(old)
    assert await table.open(live)
    await table.send([Parcel(old.id, [b"{}"], 0), Parcel(live.id, [b"{}"], 0)])
    await expire(database, old)
    await expire(database, live)
    await table.renew([live])
    assert await table.all() == [live]
    assert [row["id"] for row in await database.fetch("SELECT id FROM headgate.tap")] == [live.id]
    assert [row["tap"] for row in await database.fetch("SELECT tap FROM headgate.tapped")] == [live.id]


async def test_records_for_one_that_has_ended_are_not_kept(table: TapTable, database: Database) -> None:
    old, gone = tap(), tap()
    assert await table.open(old)
    await expire(database, old)
    await table.send([Parcel(old.id, [b"{}"], 0), Parcel(gone.id, [b"{}"], 0)])
    assert await database.fetchval("SELECT count(*) FROM headgate.tapped") == 0


async def test_there_are_only_a_few_at_a_time_and_those_that_ended_make_room(
    table: TapTable, database: Database
) -> None:
    taps = [tap() for _ in range(MOST_TAPS)]
    assert all([await table.open(one) for one in taps])
    assert not await table.open(tap())
    await expire(database, taps[0])
    assert await table.open(tap())
    assert not await table.open(tap())


async def test_what_a_crash_of_the_server_has_lost_is_there_again_when_it_is_renewed(
    table: TapTable, database: Database
) -> None:
    one = tap()
    assert await table.open(one)
    await database.execute("TRUNCATE headgate.tap CASCADE")
    await table.renew([one])
    assert await table.all() == [one]


async def test_records_come_once_in_order_and_only_for_the_tap(table: TapTable) -> None:
    one, other = tap(), tap()
    assert await table.open(one)
    assert await table.open(other)
    await table.send([Parcel(one.id, [b"1", b"2"], 0), Parcel(other.id, [b"x"], 0)])
    await table.send([Parcel(one.id, [b"3"], 5)])
    assert await table.take([one.id]) == [Parcel(one.id, [b"1", b"2"], 0), Parcel(one.id, [b"3"], 5)]
    assert await table.take([one.id]) == []
    assert await table.take([other.id]) == [Parcel(other.id, [b"x"], 0)]


async def test_records_do_not_lie_in_plain_text(table: TapTable, database: Database) -> None:
    one = tap()
    assert await table.open(one)
    await table.send([Parcel(one.id, [b'{"name": "Ada Lovelace"}'], 0)])
    (row,) = await database.fetch("SELECT key_id, body FROM headgate.tapped")
    assert row["key_id"]
    assert b"Ada" not in row["body"]


async def test_records_that_no_key_fits_count_as_dropped(table: TapTable, database: Database) -> None:
    one = tap()
    assert await table.open(one)
    for keyring in (None, Keyring.load(new_master_key(), None)):
        await table.send([Parcel(one.id, [b"1", b"2"], 3)])
        assert await TapTable(database, keyring).take([one.id]) == [Parcel(one.id, (), 5)]


async def test_without_a_master_key_records_are_as_safe_as_the_database(database: Database) -> None:
    table, one = TapTable(database, None), tap()
    assert await table.open(one)
    await table.send([Parcel(one.id, [b"1"], 0)])
    assert await table.take([one.id]) == [Parcel(one.id, [b"1"], 0)]
