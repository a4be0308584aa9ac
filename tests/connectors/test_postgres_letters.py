"""Dead letters next to the data: they commit with the position, and a replay and a newer write never cross."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID, uuid4, uuid5

import asyncpg
import pytest

from headgate.connectors.api import Grant, Letter, Outgoing, Progress, Totals
from headgate.connectors.postgres import at_once, letters
from headgate.connectors.postgres.sink import PostgresOptions, PostgresSink
from headgate.core.letter_keys import key_hash
from headgate.errors import BadRecords, ConnectorError, Fenced
from headgate.testing.contract import LetterSinkContract
from headgate.testing.factories import INSTALLATION, make_context, make_grant
from tests.waiting import until

DATASOURCE = UUID(int=7)
TOTALS = Totals(10, 6, 1, 3, 1)


async def rows(url: str, query: str, *values: Any) -> list[Any]:
    connection = await asyncpg.connect(url)
    try:
        return [tuple(row) for row in await connection.fetch(query, *values)]
    finally:
        await connection.close()


def grant_of(stream: str = "one", epoch: int = 1, progress: Progress | None = None) -> Grant:
    return replace(make_grant(stream, epoch=epoch, progress=progress), datasource=DATASOURCE)


async def opened(url: str, stream: str = "one", epoch: int = 1, **options: Any) -> PostgresSink:
    sink = PostgresSink(PostgresOptions(url=url, table="target", mode="upsert", **options), make_context())
    await sink.open(grant_of(stream, epoch))
    return sink


def key(record: dict[str, Any]) -> bytes | None:
    return None if record.get("id") is None else str(record["id"]).encode()


def letter(name: str, id: object = None, **options: Any) -> Letter:
    key = None if id is None else str(id).encode()
    return Letter(uuid5(INSTALLATION, name), name.encode(), key, **{"remains": b"remains", **options})


def batch(*records: dict[str, Any], commits: int = 1, **options: Any) -> Outgoing:
    progress = Progress(0, commits, commits, TOTALS)
    return Outgoing(list(records), progress, key=("id",), supersedes=key, **options)


@pytest.fixture
async def url(empty_url: str) -> str:
    await rows(empty_url, "CREATE TABLE target (id int PRIMARY KEY, v text CHECK (v <> 'bad'))")
    return empty_url


class TestPostgresLetters(LetterSinkContract):
    """The public contract, for a table without a key."""

    mode = "insert"
    ddl = "CREATE TABLE contract (id bigint NOT NULL, text text NOT NULL)"

    @pytest.fixture(autouse=True)
    async def table(self, empty_url: str) -> None:
        self.url = empty_url
        await rows(empty_url, self.ddl)

    def make_sink(self) -> PostgresSink:
        return PostgresSink(PostgresOptions(url=self.url, table="contract", mode=self.mode), make_context())

    def make_refused_record(self, id: int) -> dict[str, Any]:
        return {"id": id, "text": None}

    async def read_back(self) -> list[dict[str, Any]]:
        return [{"id": id, "text": text} for id, text in await rows(self.url, "SELECT * FROM contract ORDER BY id")]


class TestPostgresLettersByKey(TestPostgresLetters):
    """The same for one with a key."""

    by_key = deletes = True
    mode = "upsert"
    ddl = "CREATE TABLE contract (id bigint PRIMARY KEY, text text NOT NULL)"


# Totals.


@pytest.mark.parametrize("number", [0, 1, 3, 200])
async def test_totals_are_kept_with_the_position_and_read_when_a_run_opens(url: str, number: int) -> None:
    sink = await opened(url)
    await sink.write(batch(*({"id": id} for id in range(number)), commits=1))
    await sink.close()
    successor = PostgresSink(PostgresOptions(url=url, table="target"), make_context())
    assert await successor.open(grant_of(epoch=2)) == Progress(0, 1, 1, TOTALS)
    await successor.close()


async def test_a_table_of_an_older_release_gets_the_totals_and_keeps_its_rows(url: str) -> None:
    await older_table(url)
    sink = PostgresSink(PostgresOptions(url=url, table="target"), make_context())
    grant = grant_of(epoch=5, progress=Progress(0, 0, None, Totals(4, 4)))
    found = await sink.open(grant)
    assert found == Progress(3, 9, "here", Totals(4, 4))  # Until it has counted, the registry's are the best there are.
    await sink.write(batch(commits=10))
    await sink.close()
    assert await rows(url, "SELECT n, totals FROM headgate_position WHERE epoch > 0") == [(10, [10, 6, 1, 3, 1])]


@pytest.mark.parametrize("has_letters", [False, True])
async def test_a_user_who_may_not_change_the_table_works_without_totals_and_without_letters(
    url: str, has_letters: bool
) -> None:
    """Somebody else may have made the table of letters, and this user has no right on it."""
    await older_table(url)
    if has_letters:
        await rows(url, letters.create("")[0])
    await rows(url, "CREATE ROLE plain LOGIN")
    try:
        for statement in ("REVOKE CREATE ON SCHEMA public FROM PUBLIC",
                          "GRANT SELECT, INSERT, UPDATE ON headgate_position, target TO plain"):  # fmt: skip
            await rows(url, statement)
        sink = PostgresSink(
            PostgresOptions(url=url.replace("headgate@", "plain@"), table="target", mode="upsert"), make_context()
        )
        assert await sink.open(grant_of(epoch=5)) == Progress(3, 9, "here")
        await sink.write(batch({"id": 1}, commits=10))
        await sink.write(batch(*({"id": id} for id in range(80)), commits=11))
        assert await sink.outcomes() == {}
        with pytest.raises(ConnectorError, match="headgate_dead_letter is missing"):
            await sink.write(batch(commits=12, letters=[letter("a")]))
        await sink.close()
        assert await rows(url, "SELECT n FROM headgate_position WHERE epoch > 0") == [(11,)]
    finally:
        await rows(url, "DROP OWNED BY plain CASCADE")
        await rows(url, "DROP ROLE plain")


async def older_table(url: str) -> None:
    await rows(
        url,
        "CREATE TABLE headgate_position (installation uuid NOT NULL, stream uuid NOT NULL, epoch bigint NOT NULL,"
        " edits integer NOT NULL, n bigint NOT NULL, position json, PRIMARY KEY (installation, stream))",
    )
    stream = grant_of().stream
    await rows(url, "INSERT INTO headgate_position VALUES ($1, $2, 4, 3, 9, '\"here\"')", INSTALLATION, stream)


async def test_forty_streams_that_open_on_an_older_table_all_succeed(url: str) -> None:
    await older_table(url)
    sinks = await asyncio.gather(*(opened(url, f"stream {number}") for number in range(40)))
    for sink in sinks:
        await sink.close()
    assert len(await rows(url, "SELECT FROM headgate_position WHERE epoch > 0")) == 41


# Letters.


async def test_letters_are_kept_with_the_batch_or_not_at_all(url: str) -> None:
    sink = await opened(url)
    with pytest.raises(BadRecords):
        await sink.write(batch({"id": 1, "v": "bad"}, letters=[letter("a", 5)]))
    assert await sink.outcomes() == {}
    await sink.write(batch({"id": 1, "v": "x"}, letters=[letter("a", 5), letter("b", outcome="superseded")]))
    assert await sink.outcomes() == {letter("a").id: "open", letter("b").id: "superseded"}
    found = {one.id: one for one in await sink.letters([letter("a").id, letter("b").id, uuid4()])}
    assert found[letter("a").id] == letter("a", 5)
    assert found[letter("b").id].content == b"remains"
    await sink.close()


async def test_a_fenced_run_keeps_no_letter_and_resolves_none(url: str) -> None:
    older = await opened(url)
    await older.write(batch(letters=[letter("a", 1)]))
    newer = await opened(url, epoch=2)
    with pytest.raises(Fenced):
        await older.write(batch(commits=2, letters=[letter("b")]))
    with pytest.raises(Fenced):
        await older.resolve([letter("a").id], "discarded")
    assert await newer.outcomes() == {letter("a").id: "open"}
    await newer.resolve([letter("a").id, uuid4()], "discarded")
    assert await newer.outcomes() == {letter("a").id: "discarded"}
    await older.close()
    await newer.close()


async def test_a_letter_that_is_resolved_loses_its_content_at_once_and_its_row_after_a_month(url: str) -> None:
    sink = await opened(url)
    await sink.write(batch(letters=[letter("a"), letter("b"), letter("c")]))
    await sink.resolve([letter("a").id, letter("b").id], "expired")
    contents = await rows(url, "SELECT content FROM headgate_dead_letter ORDER BY content")
    assert contents == [(b"c",), (b"remains",), (b"remains",)]
    late = "UPDATE headgate_dead_letter SET created_at = now() - interval '40 days', resolved_at = resolved_at - {}"
    await rows(url, late.format("interval '31 days'"))
    await sink.write(batch(commits=2, letters=[letter("d")]))
    assert await sink.outcomes() == {letter("c").id: "open", letter("d").id: "open"}
    await sink.resolve([letter("d").id], "replayed")
    await rows(url, late.format("interval '31 days'"))
    await sink.close()
    again = await opened(url, epoch=2)
    assert await again.outcomes() == {letter("c").id: "open"}
    await again.close()


async def test_letters_of_other_datasources_and_streams_are_not_touched(url: str) -> None:
    sink = await opened(url)
    other = PostgresSink(PostgresOptions(url=url, table="target", mode="upsert"), make_context())
    await other.open(replace(grant_of("other"), datasource=UUID(int=8)))
    await other.write(batch(letters=[letter("theirs", 1)]))
    await sink.write(batch({"id": 1, "v": "new"}, {"id": 2, "v": "new"}))
    await sink.resolve([letter("theirs").id], "discarded")
    assert await sink.letters([letter("theirs").id]) == []
    assert await sink.outcomes() == {}
    assert await other.outcomes() == {letter("theirs").id: "open"}
    await sink.close()
    await other.close()


# Superseded.


@pytest.mark.parametrize("number", [1, 3, 200])
async def test_a_later_write_of_its_key_supersedes_a_letter_in_the_same_transaction(url: str, number: int) -> None:
    sink, second = await opened(url), await opened(url, "second")
    await sink.write(batch(letters=[letter("a", 0), letter("b", 1_000), letter("c")]))
    await second.write(batch(*({"id": id, "v": "new"} for id in range(number))))
    assert await sink.outcomes() == {letter("a").id: "superseded", letter("b").id: "open", letter("c").id: "open"}
    await second.write(batch({"id": 1_000}, commits=2, deletes=[0]))
    assert (await sink.outcomes())[letter("b").id] == "superseded"
    await sink.close()
    await second.close()


async def test_a_refused_write_supersedes_nothing(url: str) -> None:
    sink = await opened(url)
    await sink.write(batch(letters=[letter("a", 1)]))
    with pytest.raises(BadRecords):
        await sink.write(batch({"id": 1, "v": "x"}, {"id": 2, "v": "bad"}, commits=2))
    assert await sink.outcomes() == {letter("a").id: "open"}
    await sink.close()


async def test_a_small_batch_is_one_statement_as_long_as_no_letter_has_a_key(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    real = at_once.write

    async def counted(*args: Any, **options: Any) -> bool:
        asked.append(await real(*args, **options))
        return asked[-1]

    monkeypatch.setattr(at_once, "write", counted)
    sink = await opened(url)
    await sink.write(batch(letters=[letter("a")]))
    await sink.write(batch({"id": 1}, commits=2))
    await sink.write(batch(commits=3, letters=[letter("b", 5)]))
    await sink.write(batch({"id": 1}, commits=4))
    assert asked == [True, False]
    await sink.close()


SPELLINGS: list[tuple[str, list[Any]]] = [
    ("integer", [17, "017", " +17", 17.0, "18", -17, True, "1"]),
    ("numeric", [1.5, "1.50", Decimal("1.500"), "15e-1", 17, "017.0", "1e2", 100]),
    ("double precision", [0.1, "0.1", "1e-1", 17, "17.0", Decimal("0.5"), 0.5]),
    ("text", ["17", 17, "017", 17.0, "17 ", True, "true", 1]),
    ("character(4)", ["a", "a  ", " a", 17, "17"]),
    ("boolean", [True, "true", "T", "yes", 1, False, "off", 0, "f"]),
    ("uuid", [str(UUID(int=10)), str(UUID(int=10)).upper(), f"{{{UUID(int=10)}}}", UUID(int=10), str(UUID(int=11))]),
    ("date", [date(2026, 7, 1), "2026-07-01", "20260701", datetime(2026, 7, 1, 12), "2026-07-02"]),
    ("timestamp", ["2026-07-01T12:00:00", datetime(2026, 7, 1, 12), "2026-07-01 12:00:00+05", date(2026, 7, 1)]),
    ("timestamptz", ["2026-07-01T12:00:00Z", datetime(2026, 7, 1, 12, tzinfo=UTC), "2026-07-01 14:00:00+02:00",
                     "2026-07-01T13:00:00Z", "2026-07-01T00:00:00Z", date(2026, 7, 1)]),
]  # fmt: skip


@pytest.mark.parametrize(("type", "values"), SPELLINGS)
async def test_records_have_one_key_if_the_table_stores_one_value_for_them(
    empty_url: str, type: str, values: list[Any]
) -> None:
    """Each is written alone, and the server says which are the same."""
    await rows(empty_url, f"CREATE TABLE target (id {type} PRIMARY KEY)")
    sink = await opened(empty_url)
    kinds = await sink.key_kinds(("id",))
    stored, hashed = [], []
    for commits, value in enumerate(values, 1):
        await sink.write(Outgoing([{"id": value}], Progress(0, commits, None), ("id",)))
        ((found,),) = await rows(empty_url, "DELETE FROM target RETURNING id")
        stored.append(found)
        hashed.append(key_hash([value], INSTALLATION, kinds))
    await sink.close()
    assert [hashed.index(one) for one in hashed] == [stored.index(one) for one in stored]


# Replays.


async def test_a_replay_and_its_outcome_commit_together_once(url: str) -> None:
    sink = await opened(url)
    await sink.write(batch(letters=[letter("a", 1), letter("b", 2), letter("c", 3)]))
    await sink.resolve([letter("b").id], "discarded")
    replay = batch(
        {"id": 1, "v": "first"}, {"id": 2, "v": "gone"}, {"id": 3, "v": "x"}, {"id": 33, "v": "y"}, commits=2,
        replays=[letter("a").id, letter("b").id, letter("c").id, letter("c").id],
    )  # fmt: skip
    await sink.write(replay)
    assert await rows(url, "SELECT id, v FROM target ORDER BY id") == [(1, "first"), (3, "x"), (33, "y")]
    assert set((await sink.outcomes()).values()) == {"replayed", "discarded"}
    await rows(url, "DELETE FROM target")
    await sink.write(replace(replay, progress=Progress(0, 3, 1)))
    assert await rows(url, "SELECT FROM target") == []
    await sink.close()


async def test_a_letter_with_a_record_that_is_refused_stays_open_with_all_its_records(url: str) -> None:
    sink = await opened(url)
    await sink.write(batch(letters=[letter("a", 1)]))
    with pytest.raises(BadRecords) as caught:
        await sink.write(batch({"id": 1, "v": "x"}, {"id": 2, "v": "bad"}, commits=2, replays=[letter("a").id] * 2))
    assert [bad.index for bad in caught.value.bad] == [1]
    assert await sink.outcomes() == {letter("a").id: "open"}
    assert await rows(url, "SELECT FROM target") == []
    await sink.close()


async def test_in_an_insert_a_letter_that_is_no_longer_open_writes_nothing_either(url: str) -> None:
    sink = PostgresSink(PostgresOptions(url=url, table="target"), make_context())
    await sink.open(grant_of())
    await sink.write(Outgoing([], Progress(0, 1, 1), letters=[letter("a")]))
    replay = Outgoing([{"id": 1, "v": "x"}], Progress(0, 2, 1), replays=[letter("a").id])
    await sink.write(replay)
    await sink.write(replace(replay, records=[{"id": 2, "v": "x"}]))
    assert await rows(url, "SELECT id FROM target") == [(1,)]
    await sink.close()


async def test_a_replay_supersedes_older_letters_of_its_key_and_no_newer_ones(url: str) -> None:
    sink = await opened(url)
    for commits, name in enumerate(("old", "mid", "new"), 1):
        await sink.write(batch(commits=commits, letters=[letter(name, 1)]))
    await sink.write(batch({"id": 1, "v": "mid"}, commits=4, replays=[letter("mid").id]))
    assert await sink.outcomes() == {
        letter("old").id: "superseded", letter("mid").id: "replayed", letter("new").id: "open",
    }  # fmt: skip
    await sink.close()


async def test_a_letter_of_another_database_supersedes_nothing(url: str) -> None:
    """Nobody knows here how old it is."""
    sink = await opened(url)
    await sink.write(batch(letters=[letter("newer", 1)]))
    await sink.write(
        batch({"id": 1, "v": "older"}, commits=2, letters=[letter("strange", 1)], replays=[letter("strange").id])
    )
    assert await sink.outcomes() == {letter("newer").id: "open", letter("strange").id: "replayed"}
    await sink.close()


async def test_what_the_registry_may_have_forgotten_is_not_named_any_more(url: str) -> None:
    sink = await opened(url)
    await sink.write(batch(letters=[letter("old", 1), letter("new", 2), letter("open", 3)]))
    await sink.resolve([letter("old").id, letter("new").id], "discarded")
    age = "UPDATE headgate_dead_letter SET resolved_at = now() - interval '29 days 1 minute' WHERE id = $1 RETURNING id"
    await rows(url, age, letter("old").id)
    assert set(await sink.outcomes()) == {letter("new").id, letter("open").id}
    await sink.close()


async def test_a_replay_that_waits_for_a_newer_write_of_its_key_is_superseded(url: str) -> None:
    """And the other way round: a write that waits for a replay comes after it."""
    for first in ("write", "replay"):
        await rows(url, "INSERT INTO target VALUES (1, 'x') ON CONFLICT DO NOTHING")
        name = f"letter {first}"
        one, other = await opened(url, f"one {first}"), await opened(url, f"other {first}")
        await one.write(batch(letters=[letter(name, 1)]))
        replay = batch({"id": 1, "v": "old"}, commits=2, replays=[letter(name).id])
        write = batch({"id": 1, "v": "new"})
        async with held(url, "SELECT FROM target WHERE id = 1 FOR UPDATE") as blocked:
            calls = [one.write(replay), other.write(write)]
            tasks = [asyncio.ensure_future(calls.pop(1 if first == "write" else 0))]
            await until(lambda: blocked(1))
            tasks.append(asyncio.ensure_future(calls.pop()))
            await until(lambda: blocked(2))
        await asyncio.gather(*tasks)
        assert await rows(url, "SELECT v FROM target") == [("new",)]
        outcome = (await one.outcomes())[letter(name).id]
        assert outcome == ("superseded" if first == "write" else "replayed")
        await one.close()
        await other.close()


class held:
    """Somebody holds a lock, and sees how many wait."""

    def __init__(self, url: str, statement: str) -> None:
        self._url, self._statement = url, statement

    async def __aenter__(self) -> Any:
        self._holder = await asyncpg.connect(self._url)
        await self._holder.execute(f"BEGIN; {self._statement}")
        return self._blocked

    async def __aexit__(self, *error: object) -> None:
        await self._holder.execute("ROLLBACK")
        await self._holder.close()

    async def _blocked(self, number: int) -> bool:
        query = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
        return await self._holder.fetchval(query) >= number  # type: ignore[no-any-return]


async def test_two_streams_that_supersede_and_replay_the_same_letters_do_not_deadlock(url: str) -> None:
    """The keys come in opposite orders; the letters are locked in the order of their ids."""
    sinks = [await opened(url, name) for name in ("one", "two")]
    for turn in range(10):
        names = [f"{turn} {number}" for number in range(60)]
        letters = [letter(name, number) for number, name in enumerate(names)]
        await sinks[0].write(batch(commits=turn, letters=letters))
        records = [{"id": number, "v": "x"} for number in range(60)]
        replay = batch(*records, commits=turn, replays=[one.id for one in letters])
        # The rows of the other have other keys, but the same letters' keys: rows are locked in no order.
        shifted = [{"id": number + 1_000, "v": "y"} for number in reversed(range(60))]
        write = replace(batch(*shifted, commits=turn), supersedes=lambda record: str(record["id"] - 1_000).encode())
        await asyncio.gather(sinks[0].write(replay), sinks[1].write(write))
    assert set((await sinks[0].outcomes()).values()) <= {"replayed", "superseded"}
    for sink in sinks:
        await sink.close()


# Deletions.


@pytest.mark.parametrize("number", [0, 100])
async def test_of_one_key_the_last_record_wins_be_it_a_row_or_a_deletion(url: str, number: int) -> None:
    await rows(url, "INSERT INTO target VALUES (1, 'a'), (2, 'a'), (3, 'a')")
    sink = await opened(url)
    more = [{"id": 100 + place, "v": "x"} for place in range(number)]
    records = [{"id": 1, "v": "b"}, {"id": 1}, {"id": "2"}, {"id": 4}, {"id": 4, "v": "d"}, {"id": 9}, *more]
    await sink.write(batch(*records, deletes=[1, 2, 3, 5]))
    assert await rows(url, "SELECT * FROM target WHERE id < 100 ORDER BY id") == [(3, "a"), (4, "d")]
    assert await rows(url, "SELECT n, totals FROM headgate_position WHERE epoch > 0") == [(1, [10, 6, 1, 3, 1])]
    await sink.close()


async def test_bad_deletions_are_named_and_the_others_are_carried_out(url: str) -> None:
    await rows(url, "INSERT INTO target VALUES (1, 'a'), (2, 'a'), (3, 'a')")
    await rows(url, "CREATE TABLE child (id int CONSTRAINT of_target REFERENCES target)")
    await rows(url, "INSERT INTO child VALUES (2)")
    sink = await opened(url)
    found = {}
    records = [{"id": 1}, {"id": 2}, {"id": None}, {"id": "x"}, {"id": 3, "v": "b"}]
    while True:
        kept = [place for place in range(5) if place not in found]
        try:
            await sink.write(
                batch(*(records[place] for place in kept), deletes=[at for at, place in enumerate(kept) if place < 4])
            )
            break
        except BadRecords as error:
            found |= {kept[bad.index]: bad.reason for bad in error.bad}
    assert found == {
        1: "breaks the constraint of_target",
        2: "is a part of the key, and must not be null",
        3: "an integer is expected, not text",
    }
    assert await rows(url, "SELECT * FROM target ORDER BY id") == [(2, "a"), (3, "b")]
    await sink.close()


async def test_deletions_for_a_table_that_is_not_there_yet_are_done(empty_url: str) -> None:
    sink = await opened(empty_url)
    await sink.write(batch({"id": 1}, deletes=[0]))
    await sink.write(batch({"id": 2, "v": "x"}, {"id": 3}, deletes=[1], commits=2))
    assert await rows(empty_url, "SELECT id FROM target") == [(2,)]
    await sink.close()


# Rehearsals.


@pytest.mark.parametrize("is_open", [True, False])
async def test_a_rehearsal_says_what_a_write_would_say_and_leaves_nothing(empty_url: str, is_open: bool) -> None:
    running = await opened(empty_url, epoch=3)
    sink = await opened(empty_url, "other") if is_open else PostgresSink(
        PostgresOptions(url=empty_url, table="target", mode="upsert"), make_context()
    )  # fmt: skip
    await sink.rehearse(batch({"id": 1, "v": "x"}))
    assert await rows(empty_url, "SELECT to_regclass('target')") == [(None,)]
    await rows(empty_url, "CREATE TABLE target (id int PRIMARY KEY, v int CONSTRAINT small CHECK (v < 9), w int)")
    with pytest.raises(BadRecords) as caught:
        await sink.rehearse(batch({"id": 1, "v": 1}, {"id": 2, "v": 50}))
    assert caught.value.bad[0].reason == "breaks the constraint small"
    with pytest.raises(BadRecords, match="an integer is expected"):
        await sink.rehearse(batch({"id": 1, "v": 1}, {"id": 2, "v": "x"}))
    await sink.rehearse(batch({"id": 1, "v": "1"}, {"id": 2}, deletes=[1]))
    assert await rows(empty_url, "SELECT FROM target") == []
    await sink.close()
    await running.write(batch({"id": 1, "v": 1}))  # It is not fenced.
    await running.close()


async def test_a_rehearsal_adds_a_column_and_takes_it_back(empty_url: str) -> None:
    sink = await opened(empty_url)
    await sink.write(batch({"id": 1, "v": 1}))
    await sink.rehearse(batch({"id": 2, "v": 2.5, "w": "new"}))
    columns = "SELECT attname::text FROM pg_attribute WHERE attrelid = 'target'::regclass AND attnum > 0"
    assert await rows(empty_url, columns) == [("id",), ("v",)]
    await sink.write(batch({"id": 2, "v": 2}, commits=2))
    assert len(await rows(empty_url, "SELECT FROM target")) == 2
    await sink.close()
