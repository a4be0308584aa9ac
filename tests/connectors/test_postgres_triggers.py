"""What a target's triggers and rules may do to a copy: nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from headgate.connectors.api.bulk import Language, Mode, Piece, Pieces, StorageError
from headgate.core.chunks import Range
from headgate.errors import Refused
from headgate.store.embedded import EmbeddedServer
from tests.connectors.postgres_copy import (
    Side,
    copy,
    copy_chunks,
    emptied,
    job_for,
    make_databases,
    pieces_of,
    writing,
)

ALL = Range(None, ("10",))
# It changes each row, and doubles it somewhere else.
TRIGGER = """
CREATE TABLE log (id int);
CREATE FUNCTION spoil() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN INSERT INTO log VALUES (NEW.id); NEW.v := upper(NEW.v); RETURN NEW; END $$;
CREATE TRIGGER spoils BEFORE INSERT OR UPDATE ON t FOR EACH ROW EXECUTE FUNCTION spoil();
"""


@pytest.fixture(scope="module")
def urls(server: EmbeddedServer) -> list[str]:
    return asyncio.run(make_databases(server.url))


@pytest.fixture
async def source(urls: list[str]) -> AsyncIterator[Side]:
    async with emptied(urls[0]) as side:
        await side.sql.execute(
            "CREATE TABLE t (id int PRIMARY KEY, v text); INSERT INTO t SELECT i, 'v' || i FROM generate_series(1, 3) i"
        )
        yield side


@pytest.fixture
async def target(urls: list[str]) -> AsyncIterator[Side]:
    async with emptied(urls[1]) as side:
        await side.sql.execute("CREATE TABLE t (id int PRIMARY KEY, v text)")
        yield side


async def rows_of(side: Side) -> list[tuple[object, ...]]:
    return await side.rows("SELECT id, v FROM t ORDER BY 1")


@pytest.mark.parametrize("mode", [Mode.APPEND, Mode.UPSERT])
async def test_a_trigger_of_the_target_does_not_touch_a_copy(source: Side, target: Side, mode: Mode) -> None:
    await target.sql.execute(TRIGGER)
    await copy(source, "t", target, mode=mode)
    assert await rows_of(target) == await rows_of(source)
    assert await target.values("SELECT count(*) FROM log") == [0]
    await target.sql.execute("INSERT INTO t VALUES (9, 'x')")
    assert await target.values("SELECT v FROM t WHERE id = 9") == ["X"], "the trigger fires for everybody else"


async def test_rows_that_were_built_apart_come_in_past_the_trigger_and_the_rule(source: Side, target: Side) -> None:
    await source.sql.execute("ALTER TABLE t DROP CONSTRAINT t_pkey")
    await target.sql.execute(TRIGGER + "CREATE RULE nothing AS ON INSERT TO t DO INSTEAD NOTHING")
    await copy(source, "t", target)
    assert await rows_of(target) == await rows_of(source)


async def test_a_trigger_of_a_partition_counts(source: Side, target: Side) -> None:
    await target.sql.execute(
        "DROP TABLE t; CREATE TABLE t (id int PRIMARY KEY, v text) PARTITION BY RANGE (id);"
        "CREATE TABLE t1 PARTITION OF t FOR VALUES FROM (0) TO (9);" + TRIGGER.replace("ON t ", "ON t1 ")
    )
    await copy(source, "t", target)
    assert await rows_of(target) == await rows_of(source)


@pytest.mark.parametrize("kind", ["ALWAYS", "REPLICA"])
async def test_a_trigger_that_fires_in_every_role_is_refused_before_a_row_is_written(
    source: Side, target: Side, kind: str
) -> None:
    await target.sql.execute(TRIGGER + f"ALTER TABLE t ENABLE {kind} TRIGGER spoils")
    if kind == "REPLICA":  # Alone it does not fire; with another one, which must be kept from it, it would.
        await copy(source, "t", target)
        assert await rows_of(target) == await rows_of(source)
        await target.sql.execute(
            "TRUNCATE t; CREATE TRIGGER other AFTER INSERT ON t FOR EACH ROW EXECUTE FUNCTION spoil()"
        )
    job = await job_for(source, "t", target)
    async with writing(target) as writer:
        with pytest.raises(Refused, match="t has trigger spoils, which would change what is copied") as refused:
            await writer.prepare(job)
    assert "DISABLE TRIGGER USER" in refused.value.hint
    assert await rows_of(target) == []


async def test_who_may_not_silence_a_trigger_is_told_before_a_row_is_written(source: Side, target: Side) -> None:
    await target.sql.execute(TRIGGER + "DROP ROLE IF EXISTS plain; CREATE ROLE plain LOGIN PASSWORD 'p'")
    await target.sql.execute("GRANT ALL ON SCHEMA public TO plain; ALTER TABLE t OWNER TO plain")
    try:
        plain = Side(target.url.replace("headgate@", "plain:p@"), target.sql)
        job = await job_for(source, "t", plain)
        async with writing(plain) as writer:
            with pytest.raises(Refused, match=r'trigger spoils.*"plain" may not') as refused:
                await writer.prepare(job)
        assert "GRANT SET ON PARAMETER session_replication_role" in refused.value.hint
        await target.sql.execute("GRANT SET ON PARAMETER session_replication_role TO plain")
        await copy_chunks(job, source, plain)
        assert await rows_of(target) == await rows_of(source)
    finally:
        await target.sql.execute("DROP OWNED BY plain CASCADE; DROP ROLE plain")


async def test_a_foreign_key_that_rests_with_the_triggers_is_asked_at_the_end(source: Side, target: Side) -> None:
    await target.sql.execute(
        "CREATE TABLE kinds (v text PRIMARY KEY); INSERT INTO kinds VALUES ('v1'), ('v2');"
        "ALTER TABLE t ADD CONSTRAINT of_kind FOREIGN KEY (v) REFERENCES kinds;" + TRIGGER
    )
    job = await job_for(source, "t", target)
    await copy_chunks(job, source, target)
    async with writing(target) as writer:
        with pytest.raises(StorageError, match="t has rows that the foreign key of_kind refuses") as refused:
            await writer.finish(job)
        assert refused.value.hint == "copy kinds first, or with it"
        await target.sql.execute("INSERT INTO kinds VALUES ('v3')")
        await writer.finish(job)


async def test_a_foreign_key_of_a_table_without_triggers_judges_each_row(source: Side, target: Side) -> None:
    await target.sql.execute(
        "CREATE TABLE kinds (v text PRIMARY KEY); ALTER TABLE t ADD CONSTRAINT k FOREIGN KEY (v) REFERENCES kinds"
    )
    job = await job_for(source, "t", target)
    with pytest.raises(StorageError, match='violates foreign key constraint "k"'):
        await copy_chunks(job, source, target)


async def test_a_retried_chunk_ends_its_predecessor_and_no_chunk_of_another_table(source: Side, target: Side) -> None:
    """Chunks of two tables of one dump may have the same bounds."""
    await target.sql.execute("CREATE TABLE u (id int PRIMARY KEY, v text)")
    first = await job_for(source, "t", target)
    other = replace(first, target="u")
    asleep, awake = asyncio.Event(), asyncio.Event()

    async def slow() -> Pieces:
        yield Piece(b"1,x\n", 4)
        asleep.set()
        await awake.wait()
        yield Piece(b"2,y\n", 4, 2)

    async with writing(target) as slowly, writing(target) as again:
        into = await slowly.prepare(other)
        slowly.attempt, again.attempt = 1, 2
        copying = asyncio.ensure_future(slowly.write(other, into, ALL, Language.CSV, slow()))
        await asleep.wait()
        await again.write(first, await again.prepare(first), ALL, Language.CSV, pieces_of([b"1,x\n"], 1))
        await again.finish(first)
        awake.set()
        assert await copying == 2
