"""MySQL and MariaDB as sources, and that a copy is exact: against a real MariaDB."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headgate.connectors.api.bulk import PLAIN, By, Job, Language, Mode, Range, StorageError, Table
from headgate.connectors.mysql.reader import MysqlReader
from headgate.connectors.mysql.types import condition
from headgate.connectors.mysql.writer import MysqlWriter
from headgate.errors import HeadgateError
from tests.connectors.mariadb import (
    DUMP,
    Database,
    MariaDb,
    copied,
    csv_rows,
    make_certificate,
    read,
    read_all,
    reading,
)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the certificate of a server, `server.pem`, and its key."""
    folder = tmp_path_factory.mktemp("certificates")
    make_certificate(folder)
    return folder


@pytest.fixture(scope="module")
def mariadb(certificates: Path) -> Iterator[MariaDb]:
    server = MariaDb(f"--ssl-cert={certificates / 'server.pem'}", f"--ssl-key={certificates / 'server.key'}")
    yield server
    server.stop()


@pytest.fixture
def db(mariadb: MariaDb) -> Iterator[Database]:
    with mariadb.database() as database:
        yield database


# Types.

TYPES = {
    "i8": ("tinyint", ["-128", "127"]),
    "u8": ("tinyint unsigned", ["0", "255"]),
    "flag": ("tinyint(1)", ["0", "127"]),
    "i16": ("smallint", ["-32768", "32767"]),
    "u16": ("smallint unsigned", ["65535"]),
    "i24": ("mediumint", ["-8388608", "8388607"]),
    "u24": ("mediumint unsigned", ["16777215"]),
    "i32": ("int", ["-2147483648", "2147483647"]),
    "u32": ("int unsigned", ["4294967295"]),
    "filled": ("int(8) unsigned zerofill", ["42"]),
    "i64": ("bigint", ["-9223372036854775808", "9223372036854775807"]),
    "u64": ("bigint unsigned", ["0", "18446744073709551615"]),
    "money": ("decimal(12,2)", ["-1234567890.12", "0.01"]),
    "wide": ("decimal(65,30)", ["-" + "9" * 35 + "." + "9" * 30, "0." + "0" * 29 + "1"]),
    "f32": ("float", ["0.1", "16777217", "3.4028234663852886e38", "1.17549435e-38", "-123456.789e3", "1e-45"]),
    "f64": ("double",
            ["0.1", "1e0/3", "1.7976931348623157e308", "5e-324", "9007199254740993", "-2.2250738585072014e-308"]),
    "fixed": ("double(20,3)", ["12345678901234.567"]),
    "bit1": ("bit(1)", ["b'0'", "b'1'"]),
    "bit9": ("bit(9)", ["b'101010101'"]),
    "bit64": ("bit(64)", ["18446744073709551615"]),
    "y": ("year", ["0", "1901", "2155"]),
    "d": ("date", ["'1000-01-01'", "'9999-12-31'", "'2024-02-29'", "'0001-01-01'"]),
    "dt": ("datetime", ["'9999-12-31 23:59:59'"]),
    "dt6": ("datetime(6)", ["'1000-01-01 00:00:00.000001'", "'9999-12-31 23:59:59.999999'"]),
    "ts": ("timestamp(6) null", ["'1970-01-01 00:00:01.000001'", "'2038-01-19 03:14:07.999999'"]),
    "tm": ("time(6)", ["'-838:59:59'", "'838:59:59'", "'00:00:00.000001'", "'25:00:00'"]),
    "c": ("char(5)", ["'abc'", "''", "'é'"]),
    "vc": ("varchar(20)", ["''", "'NULL'", "'null'", "' a '", "'a,b'", "'😀😀'"]),
    "txt": ("longtext",
            ["'a\"b'", "'\"\"'", "'\"'", "'a\\nb\\r\\nc'", "'a\\\\b\\\\'", "'a\\tb'", "CHAR(31)", "CHAR(0)",
             "'it''s'"]),
    "lat": ("varchar(20) character set latin1", ["'éß€'"]),
    "ci": ("varchar(20) collate utf8mb4_general_ci", ["'Ärger'"]),
    "bin": ("binary(4)", ["X'00'", "X'deadbeef'"]),
    "vb": ("varbinary(20)", ["X''", "X'00'", "X'22'", "'\\\\x41'", "X'0a0d1f2c'"]),
    "bl": ("longblob", ["X''", "X'00ff00'", "'NULL'"]),
    "e": ("enum('z','a','it''s \"x\"','')", ["'a'", "'it''s \"x\"'", "''"]),
    "s": ("set('x','y','z')", ["'x,z'", "''"]),
    "j": ("json", ["'{\"a\": [1, \"x\\\\\\\\\\\\\"y\", null]}'", "'null'", "'\"\"'", "'1e2'"]),
    "u": ("uuid", ["'00000000-0000-0000-0000-000000000000'", "'fe4710db-e1aa-41f1-a892-02fc00000001'"]),
    "ip": ("inet6", ["'::1'", "'2001:db8::ff00:42:8329'"]),
    "g": ("point", ["ST_GeomFromText('POINT(1.5 -2)', 4326)"]),
}  # fmt: skip


def make_all_types(db: Database) -> list[str]:
    """A table with each type, and for each of its values a row in which all other columns are NULL."""
    columns = ", ".join(f"`{name}` {native}" for name, (native, _) in TYPES.items())
    db.execute("SET sql_mode = ''", f"CREATE TABLE t (id int primary key auto_increment, {columns})")
    for name, (_, values) in TYPES.items():
        for value in (*values, "NULL"):
            db.execute(f"INSERT INTO t (`{name}`) VALUES ({value})")
    return ["id", *TYPES]


def differences(db: Database, columns: list[str], one: str = "t", other: str = "c") -> list[Any]:
    """The rows that are not the same to the bit, as the server compares."""
    same = " AND ".join(
        f"(a.`{name}` IS NULL) = (b.`{name}` IS NULL) AND BINARY a.`{name}` <=> BINARY b.`{name}`"
        + (f" AND a.`{name}` * 1e0 <=> b.`{name}` * 1e0" if name in ("f32", "f64", "fixed") else "")
        for name in columns
    )
    return db.rows(f"SELECT a.id FROM {one} a LEFT JOIN {other} b USING (id) WHERE NOT ({same}) OR b.id IS NULL")


async def test_every_type_is_the_same_after_a_copy(db: Database) -> None:
    columns = make_all_types(db)
    await copied(db.url(), "t", "c", 7, created=True)
    assert db.value("SELECT COUNT(*) FROM t") == db.value("SELECT COUNT(*) FROM c") > 100
    assert differences(db, columns) == []
    types = "SELECT COLUMN_NAME, COLUMN_TYPE, COLLATION_NAME, IS_NULLABLE FROM information_schema.COLUMNS WHERE"
    types += " TABLE_SCHEMA = DATABASE() AND TABLE_NAME = '{}' ORDER BY ORDINAL_POSITION"
    assert db.rows(types.format("c")) == db.rows(types.format("t"))


async def test_every_type_is_the_same_where_the_server_allows_no_load(db: Database) -> None:
    columns = make_all_types(db)
    db.execute("SET GLOBAL local_infile = 0")
    try:
        await copied(db.url(), "t", "c", 50)
    finally:
        db.execute("SET GLOBAL local_infile = 1")
    assert differences(db, columns) == []


async def test_every_type_is_the_same_after_upserts(db: Database) -> None:
    columns = make_all_types(db)
    db.execute("CREATE TABLE c LIKE t", "INSERT INTO c (id, vc) VALUES (1, 'old'), (77, 'old')")
    await copied(db.url(), "t", "c", 50, mode=Mode.UPSERT)
    assert differences(db, columns) == []


async def test_canonical_text(db: Database) -> None:
    make_all_types(db)
    async with reading(db.url()) as reader:
        table = await reader.describe("t")
        rows = csv_rows(await read(reader, table, None, await reader.top(table)))
    names = [column.name for column in table.columns]
    kinds = {column.name: str(column.type) for column in table.columns}
    texts = {name: [found[place] for found in rows if found[place]] for place, name in enumerate(names)}
    assert texts["filled"] == ["42"]
    assert texts["u64"] == ["0", "18446744073709551615"]
    assert texts["f32"][0] == "0.10000000149011612"  # The double that is that float.
    assert texts["f64"][1] == "0.3333333333333333"
    assert texts["bit9"] == ["341"]
    assert texts["y"] == ["0", "1901", "2155"]
    assert texts["dt6"][0] == "1000-01-01 00:00:00.000001"
    assert texts["ts"][1] == "2038-01-19 03:14:07.999999"
    assert texts["tm"][0] == "-838:59:59.000000"
    assert texts["vb"][0] == "\\x"
    assert texts["bin"] == ["\\x00000000", "\\xdeadbeef"]
    assert texts["lat"] == ["éß€"]
    assert texts["e"] == ["a", 'it\'s "x"']
    expected = {
        "flag": "int16", "u8": "int16", "u16": "int32", "u24": "int32", "u32": "int64", "u64": "decimal(20,0)",
        "wide": "decimal(65,30)", "bit1": "bool", "bit9": "int64", "bit64": "decimal(20,0)", "y": "int16",
        "ts": "timestamptz", "dt": "timestamp", "tm": "text", "vc": "text(20)", "j": "json", "u": "uuid", "ip": "text",
        "g": "bytes", "bl": "bytes", "f32": "float32", "f64": "float64",
    }  # fmt: skip
    assert {name: kinds[name] for name in expected} == expected


async def test_null_and_the_empty_string_stay_apart_in_plain_csv_and_in_that_of_a_writer(db: Database) -> None:
    db.execute("CREATE TABLE t (id int primary key, a text, b int)", "INSERT INTO t VALUES (1, '', 5), (2, NULL, NULL)")
    assert await read_all(db.url()) == b'1,"",5\n2,,\n'
    assert await read_all(db.url(), csv=MysqlWriter(db.url()).csv) == b'1\x1f""\x1f5\n2\x1fNULL\x1fNULL\n'


async def test_a_tinyint_is_a_bool_if_the_url_says_so_and_then_holds_nothing_else(db: Database) -> None:
    db.execute("CREATE TABLE t (id int primary key, ok tinyint(1))", "INSERT INTO t VALUES (1, 1), (2, 0), (3, NULL)")
    assert await read_all(db.url("tinyint1=bool")) == b"1,1\n2,0\n3,\n"
    db.execute("INSERT INTO t VALUES (4, 2)")
    with pytest.raises(StorageError, match=r"column 'ok' has the value 2"):
        await read_all(db.url("tinyint1=bool"))
    assert await read_all(db.url()) == b"1,1\n2,0\n3,\n4,2\n"


@pytest.mark.parametrize("native", ["date", "datetime(6)", "timestamp"])
@pytest.mark.parametrize("null", ["null", "not null"])
async def test_zero_dates_are_refused_or_null(db: Database, native: str, null: str) -> None:
    db.execute("SET sql_mode = ''", f"CREATE TABLE t (id int primary key, at {native} {null})")
    db.execute("INSERT INTO t VALUES (1, '2024-01-10'), (2, '0000-00-00')")
    with pytest.raises(StorageError, match=r"t: column 'at' has the value 0000-00-00") as refused:
        await read_all(db.url())
    assert "zero_dates=null" in refused.value.hint
    lines = (await read_all(db.url("zero_dates=null"))).splitlines()
    assert [lines[0][:12], lines[1]] == [b"1,2024-01-10", b"2,"]


@pytest.mark.parametrize("value", ["2024-00-10", "2024-10-00"])
async def test_dates_with_a_part_of_nought_are_refused(db: Database, value: str) -> None:
    db.execute("SET sql_mode = ''", "CREATE TABLE t (id int primary key, at date)")
    db.execute(f"INSERT INTO t VALUES (1, '{value}')")
    with pytest.raises(StorageError, match=f"column 'at' has the value {value}"):
        await read_all(db.url())
    assert await read_all(db.url("zero_dates=null")) == b"1,\n"


async def test_a_session_goes_on_after_a_chunk_that_was_refused(db: Database) -> None:
    db.execute("SET sql_mode = ''", "CREATE TABLE t (id int primary key, at date)")
    db.execute("INSERT INTO t VALUES (1, '2024-01-01'), (2, '0000-00-00')")
    async with reading(db.url()) as reader:
        table = await reader.describe("t")
        with pytest.raises(StorageError):
            await read(reader, table, None, ("2",))
        assert await read(reader, table, None, ("1",)) == b"1,2024-01-01\n"


@pytest.mark.parametrize("size", [250, 251, 65535, 65536, (1 << 24) - 6, (1 << 24) - 5, 33 << 20])
async def test_rows_of_any_length(db: Database, size: int) -> None:
    """Also those that go over several packets of 16 MiB, and end where one ends."""
    db.execute("CREATE TABLE t (id int primary key, a longtext)")
    db.execute(f"INSERT INTO t VALUES (1, REPEAT('x', {size - 4})), (2, 'y')")
    data = await read_all(db.url())
    assert data == b'1,"' + b"x" * (size - 4) + b'"\n2,"y"\n'


async def test_a_row_that_is_too_long_for_the_server_is_refused_and_not_null(db: Database) -> None:
    db.execute("CREATE TABLE t (id int primary key, a longblob)", "INSERT INTO t VALUES (1, REPEAT('x', 40 << 20))")
    with pytest.raises(StorageError, match="a row of more than 67108864 bytes") as refused:
        await read_all(db.url())
    assert "max_allowed_packet" in refused.value.hint


@pytest.mark.parametrize("charset", ["utf8mb4", "latin1"])
async def test_long_documents_full_of_quotes_are_read_fast_and_exactly(db: Database, charset: str) -> None:
    db.execute(f"CREATE TABLE t (id int primary key, a longtext character set {charset})")
    db.execute("INSERT INTO t VALUES (1, REPEAT('\"é\\\\\n', 200000))")
    db.execute("INSERT INTO t VALUES (2, CONCAT(REPEAT(CHAR(0, 34 USING utf8mb4), 1500), 'é'))")
    data = await read_all(db.url())
    assert data == ('1,"' + '""é\\\n' * 200000 + '"\n2,"' + '\0""' * 1500 + 'é"\n').encode()


async def test_a_large_blob_arrives(db: Database) -> None:
    db.execute("CREATE TABLE t (id int primary key, a longblob)")
    db.execute("INSERT INTO t VALUES (1, REPEAT(X'00ff22', 6 << 18)), (2, '')")
    await copied(db.url(), "t", "c")
    assert db.rows("SELECT id, LENGTH(a), MD5(a) FROM c") == db.rows("SELECT id, LENGTH(a), MD5(a) FROM t")


# Chunks.

KEYS = {
    "int": ("a bigint", "a", "INSERT INTO t (a) SELECT seq * seq - 50 FROM seq_1_to_60"),
    "unsigned": ("a bigint unsigned", "a", "INSERT INTO t (a) SELECT 9223372036854775807 + seq * 7 FROM seq_1_to_60"),
    "compound": ("a int, b varchar(9)", "a, b", "INSERT INTO t SELECT seq % 5, CONCAT('b', seq), 0 FROM seq_1_to_60"),
    "three": ("a int, b int, c int", "a, b, c",
              "INSERT INTO t SELECT seq % 2, seq % 3, seq, 0 FROM seq_1_to_60"),
    "text": ("a varchar(20) collate utf8mb4_general_ci", "a",
             "INSERT INTO t (a) SELECT CONCAT(ELT(seq % 4 + 1, 'a', 'B', 'é', '\\\\'''), seq) FROM seq_1_to_60"),
    "latin": ("a varchar(20) character set latin1", "a",
              "INSERT INTO t (a) SELECT CONCAT(ELT(seq % 3 + 1, 'ä', 'Z', ''), seq) FROM seq_1_to_60"),
    "skewed": ("a int, b int", "a, b", "INSERT INTO t SELECT IF(seq < 50, 1, seq), seq, 0 FROM seq_1_to_60"),
    "uuid": ("a uuid", "a", "INSERT INTO t (a) SELECT"
             " IF(seq % 2, UUID(), CONCAT(LEFT(MD5(seq), 8), '-5a5a-4b4b-8c8c-', RIGHT(MD5(seq), 12)))"
             " FROM seq_1_to_60"),
    "datetime": ("a datetime(6)", "a",
                 "INSERT INTO t (a) SELECT '2024-01-01' + INTERVAL seq * 1234567 MICROSECOND FROM seq_1_to_60"),
    "timestamp": ("a timestamp(3)", "a", "INSERT INTO t (a) SELECT FROM_UNIXTIME(seq * 3.5) FROM seq_1_to_60"),
    "time": ("a time(2)", "a", "INSERT INTO t (a) SELECT SEC_TO_TIME((seq - 30) * 10000.25) FROM seq_1_to_60"),
    "decimal": ("a decimal(30,10)", "a", "INSERT INTO t (a) SELECT (seq - 30) / 7 FROM seq_1_to_60"),
    "float": ("a float", "a", "INSERT INTO t (a) SELECT (seq - 30) / 7 FROM seq_1_to_60"),
    "double": ("a double", "a", "INSERT INTO t (a) SELECT (seq - 30) / 7e300 FROM seq_1_to_60"),
    "bytes": ("a varbinary(20)", "a", "INSERT INTO t (a) SELECT UNHEX(MD5(seq)) FROM seq_1_to_60"),
    "binary": ("a binary(20)", "a", "INSERT INTO t (a) SELECT UNHEX(MD5(seq)) FROM seq_1_to_60"),
    "enum": ("a enum('z','y','x'), b int", "a, b", "INSERT INTO t SELECT seq % 3 + 1, seq, 0 FROM seq_1_to_60"),
    "bit": ("a bit(20)", "a", "INSERT INTO t (a) SELECT seq * 777 FROM seq_1_to_60"),
    "inet": ("a inet6", "a", "INSERT INTO t (a) SELECT INET6_NTOA(UNHEX(MD5(seq))) FROM seq_1_to_60"),
    "zerofill": ("a int(6) zerofill, b date", "a, b",
                 "INSERT INTO t SELECT seq % 7, '2024-01-01' + INTERVAL seq DAY, 0 FROM seq_1_to_60"),
}  # fmt: skip


@pytest.mark.parametrize("name", list(KEYS))
@pytest.mark.parametrize("index", ["PRIMARY KEY", "UNIQUE INDEX"])
async def test_chunks_cover_each_row_once(db: Database, name: str, index: str) -> None:
    columns, key, insert = KEYS[name]
    columns = ", ".join(f"{one} NOT NULL" for one in columns.split(", "))
    db.execute(
        "SET sql_mode = 'NO_UNSIGNED_SUBTRACTION'", f"CREATE TABLE t ({columns}, more int, {index} ({key}))", insert
    )
    async with reading(db.url()) as reader:
        table = await reader.describe("t")
        assert (table.by, table.key) == (By.KEY, tuple(key.split(", ")))
        top = await reader.top(table)
        parts, at = [], None
        while at != top:
            hi = await reader.cut(table, at, top, 7)
            parts.append((await read(reader, table, at, hi)).splitlines())
            at = hi
        whole = (await read(reader, table, None, top)).splitlines()
    assert [len(part) for part in parts] == [7] * 8 + [4]
    assert [line for part in parts for line in part] == whole
    assert len(set(whole)) == 60


async def test_a_chunk_of_a_compound_key_is_found_by_the_index(db: Database) -> None:
    db.execute("CREATE TABLE t (a int, b int, c text, PRIMARY KEY (a, b))")
    db.execute("INSERT INTO t SELECT seq % 100, seq, 'x' FROM seq_1_to_5000", "ANALYZE TABLE t")
    async with reading(db.url()) as reader:
        table = await reader.describe("t")
        statement = f"SELECT * FROM {reader._from(table)} WHERE {condition(table, Range(('5', '9'), ('7', '4')))}"
    plan = db.rows(f"EXPLAIN {statement}")[0]
    assert (plan[3], plan[5]) == ("range", "PRIMARY")
    assert int(plan[8]) < 1000


async def test_rows_beyond_the_top_belong_to_nobody(db: Database) -> None:
    db.execute("CREATE TABLE t (id int primary key)", "INSERT INTO t VALUES (1), (2)")
    async with reading(db.url()) as reader:
        table = await reader.describe("t")
        top = await reader.top(table)
        db.execute("INSERT INTO t VALUES (3)")
        assert await reader.cut(table, None, top, 100) == top
        assert await read(reader, table, None, top) == b"1\n2\n"


async def test_a_table_without_a_key_is_one_chunk(db: Database) -> None:
    db.execute("CREATE TABLE t (a int, b int, UNIQUE (a, b))", "INSERT INTO t VALUES (1, NULL), (1, NULL), (2, 2)")
    async with reading(db.url()) as reader:
        table = await reader.describe("t")
        assert (table.by, table.key, await reader.begin()) == (By.OFFSET, (), None)
        top = await reader.top(table)
        assert await reader.cut(table, None, top, 1) == top == ("3",)
        assert sorted((await read(reader, table, None, top)).splitlines()) == [b"1,", b"1,", b"2,2"]


async def test_an_empty_table_has_no_top(db: Database) -> None:
    db.execute("CREATE TABLE t (id int primary key)", "CREATE TABLE u (id int)")
    async with reading(db.url()) as reader:
        assert await reader.top(await reader.describe("t")) is None
        assert await reader.top(await reader.describe("u")) is None
        assert await reader.tables() == ["t", "u"]


async def test_a_reader_that_is_left_early_can_be_used_again(db: Database) -> None:
    db.execute(
        "CREATE TABLE t (id int primary key, a text)", "INSERT INTO t SELECT seq, REPEAT('x', 900) FROM seq_1_to_20000"
    )
    async with reading(db.url()) as reader:
        table = await reader.describe("t")
        pieces = reader.query(table, Range(None, ("20000",)), Language.CSV, PLAIN)
        await anext(pieces)
        await pieces.aclose()
        assert (await read(reader, table, None, ("3",))).count(b"\n") == 3


async def test_whoever_is_cancelled_ends_the_statement_and_the_session_goes_on(db: Database) -> None:
    db.execute("CREATE TABLE t (id int primary key)", "INSERT INTO t VALUES (1)", "LOCK TABLES t WRITE")
    async with reading(db.url()) as reader:
        await reader.tables()
        waiting = asyncio.create_task(reader.top(Table("t", (), by=By.OFFSET)))
        while not db.rows("SELECT 1 FROM information_schema.PROCESSLIST WHERE STATE LIKE 'Waiting for table%'"):
            await asyncio.sleep(0.01)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        db.execute("UNLOCK TABLES")
        assert await reader.top(Table("t", (), by=By.OFFSET)) == ("1",)


# Encryption.


def encrypted(db: Database, options: str) -> str:
    return f"mysql://root@localhost:{db.server.port}/{db.name}?{options}"


@pytest.mark.parametrize("mode", ["require", "verify-ca", "verify-full"])
async def test_a_copy_through_tls(db: Database, certificates: Path, mode: str) -> None:
    db.execute("CREATE TABLE t (id int PRIMARY KEY, v varchar(20))", "INSERT INTO t VALUES (1, 'a'), (2, NULL)")
    url = encrypted(db, f"sslmode={mode}&ssl_ca={certificates / 'server.pem'}")
    reader, writer = MysqlReader(url), MysqlWriter(url)
    try:
        table = await reader.describe("t")
        job = Job(DUMP, table, "copy")
        into = await writer.prepare(job)
        rows = reader.query(table, Range(None, ("2",)), Language.CSV, writer.csv)
        assert await writer.write(job, into, Range(None, ("2",)), Language.CSV, rows) == 2
    finally:
        await reader.close()
        await writer.close()
    assert db.rows("SELECT * FROM copy ORDER BY id") == [(1, "a"), (2, None)]


async def test_a_server_that_is_not_who_it_says_is_refused(db: Database, tmp_path: Path) -> None:
    make_certificate(tmp_path)
    reader = MysqlReader(encrypted(db, f"sslmode=verify-ca&ssl_ca={tmp_path / 'server.pem'}"))
    try:
        with pytest.raises(HeadgateError, match="certificate verify failed") as refused:
            await reader.tables()
        assert "\n" not in str(refused.value)
    finally:
        await reader.close()
