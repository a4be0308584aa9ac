"""What a database of an older Headgate has stays, under its new names."""

from __future__ import annotations

from uuid import UUID

import pytest

from headgate.store import migrate as migrating
from headgate.store.database import Database
from headgate.store.migrate import migrate, migrations

DATASOURCE, STREAM = UUID(int=1), UUID(int=2)
BEFORE_WORDS = 7  # The last migration that knows the old names.
OLD = f"""
INSERT INTO headgate.datasource (id, name, revision, mark, published_version, partitions)
VALUES ('{DATASOURCE}', 'orders', 1, 9, 1, 4);
INSERT INTO headgate.datasource_version (datasource, number, status, source, sink, options, hash, author)
VALUES ('{DATASOURCE}', 1, 'published', '{{"type": "generator"}}', '{{"type": "blackhole"}}',
        '{{"description": "all", "partitions": 4, "assignment": "modulo"}}', 'h', 'ada');
INSERT INTO headgate.stream (id, datasource, index, epoch, edits, n, position, home)
VALUES ('{STREAM}', '{DATASOURCE}', 0, 3, 2, 7, '70', false)
"""


async def test_names_change_and_nothing_is_lost(empty_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    database = await Database.open(empty_url)
    try:
        with monkeypatch.context() as patched:
            patched.setattr(migrating, "migrations", lambda: [one for one in migrations() if one[0] <= BEFORE_WORDS])
            await migrate(database)
        await database.execute(OLD)
        await migrate(database)
        (stream,) = await database.fetch("SELECT generation, commits, position, settled FROM headgate.stream")
        assert tuple(stream.values()) == (2, 7, "70", False)
        (found,) = await database.fetch("SELECT restarts, streams, is_to_run FROM headgate.datasource")
        assert tuple(found.values()) == (9, 4, True)
        (version,) = await database.fetch(
            "SELECT options::text AS options, headgate.streams_of(datasource, number) AS n"
            " FROM headgate.datasource_version"
        )
        assert version["n"] == 4
        assert version["options"].replace(" ", "") == '{"description":"all","streams":4,"assignment":"modulo"}'
    finally:
        await database.close()


BEFORE_OWN_SCHEMA = 10  # The last migration before which tables of others may lie in Headgate's schema.


async def test_tables_of_others_leave_headgates_schema_and_its_own_stay(
    empty_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A user called `headgate` used to make tables in the schema of that name."""
    database = await Database.open(empty_url)
    try:
        with monkeypatch.context() as patched:
            patched.setattr(
                migrating, "migrations", lambda: [one for one in migrations() if one[0] <= BEFORE_OWN_SCHEMA]
            )
            await migrate(database)
        await database.execute(
            "CREATE TABLE headgate.orders (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY);"
            "CREATE TABLE headgate.headgate_position (epoch bigint); CREATE TABLE headgate.kept ();"
            "CREATE TABLE public.kept ();"
            "INSERT INTO headgate.headgate_position VALUES (7)"
        )
        await migrate(database)
        query = "SELECT relname FROM pg_class WHERE relnamespace = 'public'::regnamespace AND relkind = 'r' ORDER BY 1"
        assert [row["relname"] for row in await database.fetch(query)] == ["headgate_position", "kept", "orders"]
        (row,) = await database.fetch("SELECT epoch FROM public.headgate_position")
        assert row["epoch"] == 7
    finally:
        await database.close()


BEFORE_MARKS = 23  # The last migration before which there are sequences that are not logged.


async def test_no_sequence_is_lost_when_a_standby_is_promoted(empty_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    database = await Database.open(empty_url)
    values = "gen_random_uuid(), now(), '', '', '{}'"
    line = f"INSERT INTO headgate.log_line (stream, at, level, text, fields) VALUES ({values}) RETURNING id"
    try:
        with monkeypatch.context() as patched:
            patched.setattr(migrating, "migrations", lambda: [one for one in migrations() if one[0] <= BEFORE_MARKS])
            await migrate(database)
        first = await database.fetchval(line)
        await migrate(database)
        assert await database.fetchval(line) > first
        query = "SELECT relname FROM pg_class WHERE relkind = 'S' AND relpersistence <> 'p'"
        assert await database.fetch(query) == []
    finally:
        await database.close()


BEFORE_BOUNDS = 11  # The last migration before which tokens may share a name.


async def test_tokens_that_share_a_name_work_on_under_names_of_their_own(
    empty_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = await Database.open(empty_url)
    try:
        with monkeypatch.context() as patched:
            patched.setattr(migrating, "migrations", lambda: [one for one in migrations() if one[0] <= BEFORE_BOUNDS])
            await migrate(database)
        for number in range(3):
            await database.execute(
                "INSERT INTO headgate.token (id, name, role, hash) VALUES ($1, 'ci', 'operator', $2)",
                UUID(int=number),
                bytes([number]),
            )
        await migrate(database)
        rows = await database.fetch("SELECT name, role, ended_at, datasources FROM headgate.token ORDER BY id")
        names = [row["name"] for row in rows]
        assert (names[0], len(set(names)), all(name.startswith("ci") for name in names)) == ("ci", 3, True)
        assert {tuple(row.values())[1:] for row in rows} == {("operator", None, None)}
    finally:
        await database.close()


BEFORE_RECORDS = 14  # The last migration that knows `on_error` as a part of the mapping.
MAPPINGS = (
    ("""'{"set": {"id": "id"}, "on_error": "skip", "key": "id"}'""", '{"set":{"id":"id"},"key":"id"}', "skip"),
    ("""'{"on_error": "fail"}'""", None, "fail"),
    ("""'{"set": {"on_error": "x"}}'""", '{"set":{"on_error":"x"}}', None),
    ("NULL", None, None),
)


async def test_on_error_moves_to_the_top_of_every_version(empty_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    database = await Database.open(empty_url)
    try:
        with monkeypatch.context() as patched:
            patched.setattr(migrating, "migrations", lambda: [one for one in migrations() if one[0] <= BEFORE_RECORDS])
            await migrate(database)
        await database.execute(
            f"INSERT INTO headgate.datasource (id, name, revision) VALUES ('{DATASOURCE}', 'orders', 1)"
        )
        for number, (mapping, _, _) in enumerate(MAPPINGS, 1):
            await database.execute(
                "INSERT INTO headgate.datasource_version"
                " (datasource, number, status, source, sink, mapping, options, hash, author)"
                f" VALUES ('{DATASOURCE}', {number}, 'superseded', '{{}}', '{{}}', {mapping},"
                " '{\"x\": 1}', 'h', 'ada')"
            )
        await migrate(database)
        rows = await database.fetch(
            "SELECT mapping::text AS mapping, options::text AS options FROM headgate.datasource_version ORDER BY number"
        )
        for row, (_, mapping, on_error) in zip(rows, MAPPINGS, strict=True):
            assert (row["mapping"] or "").replace(" ", "") == (mapping or "")
            moved = "" if on_error is None else f',"on_error":"{on_error}"'
            assert row["options"].replace(" ", "") == f'{{"x":1{moved}}}'
        assert (await database.fetch("SELECT count(*) AS n FROM headgate.dead_letter"))[0]["n"] == 0
    finally:
        await database.close()
