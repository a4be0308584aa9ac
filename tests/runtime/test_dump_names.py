"""Names of tables in a dump: kept letter by letter, told apart, or refused; and one odd table fails alone."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from headgate.errors import ConfigError, Refused
from headgate.runtime.dumps import control
from headgate.store.database import Database
from headgate.store.dumps import Dumps
from headgate.store.embedded import EmbeddedServer
from headgate.store.secrets import Keyring, new_master_key
from tests.connectors.mariadb import MariaDb
from tests.connectors.postgres_copy import Side, emptied, make_databases
from tests.runtime.copies import Copy, failed, names_in, sqlite_with

# What people call tables, and what they should not.
NAMES = ["Foo", "a.b", 'a"b', "a'b", "a`b", "a=b", "a;b", "a\\b", "ä ö", " lead", "select", "x--y", "100 %", "a.b.c"]
NOT_FILES = ["..", "a/b", "_hidden", ".dot", "x" * 300]


@pytest.fixture
def dumps(database: Database) -> Dumps:
    return Dumps(database, Keyring.load(new_master_key(), None))


@pytest.fixture(scope="module")
def postgres(server: EmbeddedServer) -> str:
    return asyncio.run(make_databases(server.url, 1))[0]


@pytest.fixture
async def side(postgres: str) -> AsyncIterator[Side]:
    async with emptied(postgres) as side:
        yield side


@pytest.fixture(scope="module")
def mariadb() -> Iterator[MariaDb]:
    server = MariaDb("--lower-case-table-names=1")
    yield server
    server.stop()


@pytest.fixture
def copy(dumps: Dumps, tmp_path: Path) -> Copy:
    return Copy(dumps, tmp_path)


# Odd tables.


async def test_an_odd_table_fails_alone_and_is_copied_once_it_can_be(copy: Copy, side: Side, tmp_path: Path) -> None:
    await side.sql.execute(
        "CREATE TABLE good (id int PRIMARY KEY); INSERT INTO good VALUES (1); CREATE TABLE nothing ();"
        'CREATE TABLE "a/b" (id int); CREATE TABLE secret (id int PRIMARY KEY); INSERT INTO secret VALUES (7);'
        "DROP ROLE IF EXISTS curious; CREATE ROLE curious LOGIN;"
        'GRANT USAGE ON SCHEMA public TO curious; GRANT SELECT ON good, nothing, "a/b" TO curious'
    )
    source = side.url.replace("headgate@", "curious@")
    target = f"csv:{tmp_path / 'out'}"
    try:
        found = await copy.run(source, target)
        assert found.status == "incomplete"
        errors = failed(found)
        assert errors.keys() == {"nothing", '"a/b"', "secret"}
        assert errors["nothing"] == "nothing has no columns (there is nothing to copy)"
        assert errors['"a/b"'] == "'a/b' cannot be the name of a folder (rename it: --table name=target)"
        assert errors["secret"].startswith("permission denied for table secret (GRANT it")
        assert [one.rows for one in found.tables if one.name == "good"] == [1]
        assert sorted(one.name for one in (tmp_path / "out").iterdir()) == ["good"]
        await side.sql.execute('GRANT SELECT ON secret TO curious; ALTER TABLE "a/b" RENAME TO ab')
        found = await copy.again(found.id, source, target)
        assert failed(found).keys() == {"nothing", '"a/b"'}
        assert [one.rows for one in found.tables if one.name == "secret"] == [1]
    finally:
        await side.sql.execute("DROP OWNED BY curious; DROP ROLE curious")


async def test_where_every_table_is_odd_nothing_is_begun(copy: Copy, side: Side, tmp_path: Path) -> None:
    await side.sql.execute("CREATE TABLE nothing ()")
    with pytest.raises(Refused, match="nothing has no columns"):
        await copy.run(side.url, f"csv:{tmp_path / 'out'}")
    assert await copy.dumps.all(10) == []


# Tables that would meet.


@pytest.mark.parametrize("target", ["csv:{}/out", "parquet:{}/out", "sqlite:{}/out.db", "mysql"])
async def test_names_that_are_one_name_to_the_target_are_refused_before_anything_is_written(
    copy: Copy, side: Side, tmp_path: Path, target: str, request: pytest.FixtureRequest
) -> None:
    await side.sql.execute('CREATE TABLE "Foo" (id int PRIMARY KEY); CREATE TABLE foo (id int PRIMARY KEY)')
    if target == "mysql":
        with request.getfixturevalue("mariadb").database() as database:
            with pytest.raises(
                ConfigError, match='"Foo" and foo would both go into foo, which is the same as Foo there'
            ):
                await copy.run(side.url, database.url())
            assert database.tables() == set()
        return
    with pytest.raises(ConfigError, match='"Foo" and foo would both go into foo, which is the same as Foo there'):
        await copy.run(side.url, target.format(tmp_path))
    assert not (tmp_path / "out").exists()
    found = await copy.run(side.url, target.format(tmp_path), "foo", '"Foo"=other')
    assert found.status == "completed"


async def test_tables_of_two_schemas_do_not_meet_where_there_are_none(copy: Copy, side: Side, tmp_path: Path) -> None:
    await side.sql.execute("CREATE SCHEMA a; CREATE SCHEMA b; CREATE TABLE a.t (id int); CREATE TABLE b.t (id int)")
    with pytest.raises(ConfigError, match=r"a\.t and b\.t would both go into t"):
        await copy.run(side.url, f"sqlite:{tmp_path / 'out.db'}")
    assert not (tmp_path / "out.db").exists()


async def test_several_tables_do_not_go_into_one_file(copy: Copy, tmp_path: Path) -> None:
    source = sqlite_with(tmp_path / "in.db", ["one", "two"])
    with pytest.raises(ConfigError, match="one and two would both go into two") as refused:
        await copy.run(source, f"csv:{tmp_path / 'x.csv'}")
    assert "name a folder" in refused.value.hint
    assert {one.name for one in tmp_path.iterdir()} == {"in.db"}


# Names that survive.


async def test_names_survive_postgresql_and_files(copy: Copy, side: Side, tmp_path: Path) -> None:
    source = sqlite_with(tmp_path / "in.db", NAMES)
    for there in (side.url, f"jsonl:{tmp_path / 'files'}", f"parquet:{tmp_path / 'parquet'}"):
        back = tmp_path / f"back{len(list(tmp_path.iterdir()))}.db"
        assert failed(await copy.run(source, there)) == {}
        assert failed(await copy.run(there, f"sqlite:{back}")) == {}
        assert names_in(back) == {name: name for name in NAMES}
    tables = "SELECT relname FROM pg_class WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace"
    assert set(await side.values(tables)) == {*NAMES, "headgate_dump_chunk"}


async def test_names_survive_mysql(copy: Copy, mariadb: MariaDb, tmp_path: Path) -> None:
    names = [name.lower() for name in NAMES]  # As this server has them.
    source, back = sqlite_with(tmp_path / "in.db", names), tmp_path / "back.db"
    with mariadb.database() as database:
        assert failed(await copy.run(source, database.url())) == {}
        assert failed(await copy.run(source, database.url(), mode="replace")) == {}
        assert failed(await copy.run(database.url(), f"sqlite:{back}")) == {}
    assert names_in(back) == {name: name for name in names}


async def test_names_that_files_cannot_have_are_refused_alone(copy: Copy, tmp_path: Path) -> None:
    source = sqlite_with(tmp_path / "in.db", ["good", *NOT_FILES])
    found = await copy.run(source, f"csv:{tmp_path / 'out'}")
    assert failed(found).keys() == set(NOT_FILES)
    assert sorted(one.name for one in (tmp_path / "out").iterdir()) == ["good"]
    cancelled = await control.cancel(copy.dumps, found.id)
    assert (cancelled.status, cancelled.error) == ("cancelled", ""), "nothing of them is left behind"
    await control.clean(copy.dumps, found.id)
    assert all(one.suffix == ".csv" for one in (tmp_path / "out" / "good").iterdir())


async def test_a_name_that_a_server_would_cut_is_refused(copy: Copy, side: Side, tmp_path: Path) -> None:
    source = sqlite_with(tmp_path / "in.db", ["good", "x" * 64])
    found = await copy.run(source, side.url)
    assert failed(found) == {
        "x" * 64: f"{'x' * 64} has a name of 64 bytes, of which PostgreSQL keeps 63 (rename it: --table name=target)"
    }


async def test_a_file_keeps_the_case_of_its_name_in_postgresql(copy: Copy, side: Side, tmp_path: Path) -> None:
    (tmp_path / "Orders.csv").write_text("Id\n1\n")
    await copy.run(f"csv:{tmp_path / 'Orders.csv'}", side.url)
    assert await side.rows('SELECT "Id" FROM "Orders"') == [(1,)]


async def test_indexes_that_only_mysql_has_are_named(copy: Copy, side: Side, mariadb: MariaDb) -> None:
    with mariadb.database() as database:
        database.execute(
            "CREATE TABLE t (id int PRIMARY KEY, title text, n int, FULLTEXT words (title), KEY begins (title(10)),"
            " KEY plain (n))"
        )
        found = await copy.run(database.url(), side.url)
        assert found.status == "completed"
        assert sorted((one.name, one.why, one.excuse) for one in found.left_behind) == [
            ("begins", "it has only the beginning of a text", "kind"),
            ("words", "a fulltext index", "kind"),
        ]
        assert await side.values("SELECT indexname FROM pg_indexes WHERE tablename = 't' ORDER BY 1") == [
            "t_n_idx",
            "t_pkey",
        ]


RENTAL = (
    "CREATE TABLE language (language_id tinyint unsigned AUTO_INCREMENT PRIMARY KEY, name char(20) NOT NULL)",
    "CREATE TABLE film (film_id smallint unsigned AUTO_INCREMENT PRIMARY KEY, title varchar(128) NOT NULL,"
    " description text, release_year year, language_id tinyint unsigned NOT NULL,"
    " rental_rate decimal(4, 2) NOT NULL DEFAULT 4.99, rating enum('G', 'PG', 'NC-17') DEFAULT 'G',"
    " special_features set('Trailers', 'Deleted Scenes'), last_update timestamp NOT NULL DEFAULT current_timestamp"
    " ON UPDATE current_timestamp, KEY idx_title (title), FULLTEXT idx_words (title, description),"
    " CONSTRAINT fk_film_language FOREIGN KEY (language_id) REFERENCES language (language_id) ON UPDATE CASCADE)",
    "CREATE TABLE store (store_id tinyint unsigned PRIMARY KEY, manager_staff_id tinyint unsigned NOT NULL)",
    "CREATE TABLE staff (staff_id tinyint unsigned PRIMARY KEY, picture blob, active boolean NOT NULL DEFAULT true,"
    " store_id tinyint unsigned NOT NULL, CONSTRAINT fk_staff_store FOREIGN KEY (store_id) REFERENCES store (store_id),"
    " CONSTRAINT few CHECK (staff_id < 100))",
    "CREATE VIEW film_list AS SELECT title, name FROM film JOIN language USING (language_id)",
    "CREATE TRIGGER ins_film AFTER INSERT ON film FOR EACH ROW SET @seen = new.film_id",
    "CREATE FUNCTION inventory_in_stock(id int) RETURNS boolean DETERMINISTIC RETURN id > 0",
    "INSERT INTO language (name) VALUES ('English'), ('日本語')",
    "INSERT INTO film (title, description, release_year, language_id, special_features) VALUES"
    " ('ACADEMY', 'A tale, with a ''quote''', 2006, 1, 'Trailers,Deleted Scenes'), ('ACE', NULL, NULL, 2, '')",
    "INSERT INTO store VALUES (1, 1), (2, 2)",
    "INSERT INTO staff VALUES (1, x'89504e470d0a1a0a00ff', true, 1), (2, NULL, false, 2)",
    "ALTER TABLE store ADD CONSTRAINT fk_store_staff FOREIGN KEY (manager_staff_id) REFERENCES staff (staff_id)",
)


async def test_a_whole_database_of_mysql_arrives_with_a_word_about_each_thing_that_does_not(
    copy: Copy, side: Side, mariadb: MariaDb
) -> None:
    with mariadb.database() as database:
        database.execute(*RENTAL)
        found = await copy.run(database.url(), side.url)
        assert found.status == "completed", found.error
        assert {one.name: one.rows for one in found.tables} == {"film": 2, "language": 2, "staff": 2, "store": 2}
        assert {(one.kind, one.name, one.excuse) for one in found.left_behind} == {
            ("index", "idx_words", "kind"),
            ("view", "film_list", "kind"),
            ("trigger", "ins_film", "kind"),
            ("function", "inventory_in_stock", "kind"),
            ("check", "few", "kind"),
        }
        assert await side.rows("SELECT title, release_year, rating, special_features FROM film ORDER BY film_id") == [
            ("ACADEMY", 2006, "G", "Trailers,Deleted Scenes"),
            ("ACE", None, "G", ""),
        ]
        assert await side.values("SELECT encode(picture, 'hex') FROM staff ORDER BY 1") == [
            "89504e470d0a1a0a00ff",
            None,
        ]
        foreign = "SELECT conname FROM pg_constraint WHERE contype = 'f' ORDER BY 1"
        assert await side.values(foreign) == ["fk_film_language", "fk_staff_store", "fk_store_staff"]


async def test_views_and_triggers_of_a_file_are_named_at_every_kind_of_database(
    copy: Copy, side: Side, mariadb: MariaDb, tmp_path: Path
) -> None:
    source = sqlite_with(tmp_path / "a.db", ["a", "b"])
    with closing(sqlite3.connect(tmp_path / "a.db")) as file:
        file.executescript(
            "CREATE VIEW v AS SELECT 1; CREATE TRIGGER t AFTER INSERT ON a BEGIN SELECT 1; END;"
            "CREATE VIRTUAL TABLE words USING fts5(text)"
        )
    expected = {("view", "v", ""), ("virtual table", "words", ""), ("trigger", "t", "a")}
    with mariadb.database() as database:
        for target in (side.url, database.url(), f"sqlite:{tmp_path / 'b.db'}"):
            found = await copy.run(source, target, exclude=())
            assert {(one.kind, one.name, one.of) for one in found.left_behind} == expected, target
            assert found.status == "completed"
    some = await copy.run(source, f"sqlite:{tmp_path / 'c.db'}", "b")
    assert some.left_behind == []


@pytest.mark.parametrize("kind", ["sqlite", "mysql"])
async def test_a_target_that_fires_its_triggers_for_everybody_refuses_a_table_with_some(
    copy: Copy, tmp_path: Path, kind: str, request: pytest.FixtureRequest
) -> None:
    source = sqlite_with(tmp_path / "in.db", ["t", "u"])
    if kind == "mysql":
        with request.getfixturevalue("mariadb").database() as database:
            database.execute("CREATE TABLE t (id bigint PRIMARY KEY, name text)")
            database.execute("CREATE TRIGGER spoils BEFORE INSERT ON t FOR EACH ROW SET NEW.name = 'x'")
            found = await copy.run(source, database.url())
            assert database.value("SELECT name FROM u") == "u"
            assert database.value("SELECT count(*) FROM t") == 0
    else:
        target = sqlite3.connect(tmp_path / "out.db")
        target.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, name TEXT)")
        target.execute("CREATE TRIGGER spoils AFTER INSERT ON t BEGIN UPDATE t SET name = 'x'; END")
        target.close()
        found = await copy.run(source, f"sqlite:{tmp_path / 'out.db'}")
    assert failed(found) == {
        "t": "t has trigger spoils, which would change what is copied (drop it for as long as the dump runs)"
    }


async def test_mysql_keeps_the_blanks_of_a_padded_text(copy: Copy, side: Side, mariadb: MariaDb) -> None:
    await side.sql.execute("CREATE TABLE t (id int PRIMARY KEY, c char(5)); INSERT INTO t VALUES (1, 'ab'), (2, '')")
    with mariadb.database() as database:
        assert failed(await copy.run(side.url, database.url())) == {}
        assert database.rows("SELECT c, char_length(c) FROM t ORDER BY id") == [("ab   ", 5), ("     ", 5)]
