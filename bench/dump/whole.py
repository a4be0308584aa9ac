"""A whole database: 30 tables, 120 indexes, foreign keys; from the command to the prompt, against pgcopydb and pg_dump.

Source and target are two durable servers of Debian's PostgreSQL 15 with default settings, because Debian's pgcopydb is
built for it. All contestants have two jobs.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from bench.dump import ours
from bench.dump.contest import Bar, Contestant, Figures, PeerFailed, Took, contest
from bench.dump.scene import FILL, PACKAGES, SHAPE, Scene
from bench.scale import fetch
from headgate.testing.servers import Server, Servers, url_of

DEBIAN = Path("/usr/lib/postgresql/15/bin")
TABLES = 30
MOST_ROWS = 5_000_000
LEAST_ROWS = 1000  # Of the table that all others refer to.
OURS, PGCOPYDB, PG_DUMP = "Headgate, two workers", "pgcopydb clone, two jobs", "pg_dump -Fd -j2, then pg_restore -j2"
# What the servers of tests do without.
DURABLE = {
    "fsync": "on",
    "shared_buffers": "128MB",
    "wal_level": "replica",
    "max_wal_size": "1GB",
    "wal_keep_size": "0",
}


def missing() -> str | None:
    """Why it cannot be measured; installs what it needs if it may."""
    lacking = [name for name, path in (("postgresql-15", DEBIAN / "initdb"), ("pgcopydb", _program())) if not _is(path)]
    if lacking:
        subprocess.run([PACKAGES, *lacking], check=False)
    return None if _is(DEBIAN / "initdb") else "postgresql-15 is not installed, and only root can install it"


def _program() -> Path:
    return Path(shutil.which("pgcopydb") or "pgcopydb")


def _is(path: Path) -> bool:
    return path.is_absolute() and path.exists()


def whole(scene: Scene, rows: int, runs: int) -> Figures:
    """All of a database, as often as asked."""
    if (why := missing()) is not None:
        print(f"\nwhole is left out: {why}")
        return {}
    rows = min(rows, MOST_ROWS)
    with Servers(DURABLE, DEBIAN) as servers:
        source, target = servers.make(), servers.make()
        written = _fill(source, rows)
        here = replace(scene, source=url_of(source, database="shop"), target=url_of(target, database="shop"))
        want = _counted(here.source)

        def reset() -> None:
            target.execute("DROP DATABASE IF EXISTS shop WITH (FORCE)", "postgres")
            target.execute("CREATE DATABASE shop", "postgres")
            here.settle()

        def check() -> bool:
            return _counted(here.target) == want

        contestants = [
            Contestant(name, run, reset, check)
            for name, run in (
                (OURS, lambda: _ours(here, written)),
                (PGCOPYDB, lambda: _pgcopydb(here)),
                (PG_DUMP, lambda: _pg_dump(here)),
            )
        ]
        bars = [Bar(OURS, PGCOPYDB, 1.0), Bar(OURS, PG_DUMP, 1.3)]
        title = f"a whole database, {TABLES} tables, {4 * TABLES} indexes, wall time"
        return contest(title, written, contestants, runs, bars)


def _fill(source: Server, rows: int) -> int:
    """Tables of 8 columns, the largest with a fifth of all rows. Returns how many rows there are."""
    source.execute("CREATE DATABASE shop", "postgres")
    url = url_of(source, database="shop")
    shares = [1 / (number + 1) for number in range(TABLES)]
    sizes = [max(LEAST_ROWS, round(rows * share / sum(shares))) for share in shares]
    for number, size in enumerate(sizes):
        name = f"items_{number:02}"
        fetch(url, f"CREATE TABLE {name} ({SHAPE}, PRIMARY KEY (id))")
        fetch(url, FILL.format(table=name, rows=size))
        for columns in ("quantity", "changed_at, is_open", "name"):
            fetch(url, f"CREATE INDEX ON {name} ({columns})")
        if number:
            fetch(url, f"ALTER TABLE {name} ADD COLUMN first bigint GENERATED ALWAYS AS (id % {LEAST_ROWS} + 1) STORED")
            fetch(url, f"ALTER TABLE {name} ADD FOREIGN KEY (first) REFERENCES items_00 (id)")
    fetch(url, "VACUUM ANALYZE")
    return sum(sizes)


def _counted(url: str) -> list[tuple[object, ...]]:
    """Rows and a hash of each table, and how many indexes and keys there are."""
    query = "SELECT count(*), sum(hashtextextended(t::text, 0)::numeric) FROM items_{:02} t"
    found = [tuple(fetch(url, query.format(number))[0]) for number in range(TABLES)]
    for catalog, table in (("pg_index", "indrelid"), ("pg_constraint", "conrelid")):
        counted = f"SELECT count(*) FROM {catalog} JOIN pg_class c ON c.oid = {table} WHERE c.relname LIKE 'items%'"
        found.append(tuple(fetch(url, counted)[0]))
    return found


def _ours(scene: Scene, rows: int) -> Took:
    took = ours.dump(scene, scene.source, scene.target, "-w", "2", rows=rows)
    return replace(took, copy_s=took.wall_s)


def _pgcopydb(scene: Scene) -> Took:
    with tempfile.TemporaryDirectory(dir=scene.folder) as folder:
        places = ["--source", scene.source, "--target", scene.target, "--dir", f"{folder}/work"]
        return _ran(["pgcopydb", "clone", *places, "--table-jobs", "2", "--index-jobs", "2", "--no-acl"])


def _pg_dump(scene: Scene) -> Took:
    with tempfile.TemporaryDirectory(dir=scene.folder) as folder:
        out = _ran([str(DEBIAN / "pg_dump"), "-Fd", "-j2", "-f", f"{folder}/dump", scene.source])
        into = _ran([str(DEBIAN / "pg_restore"), "-j2", "-d", scene.target, f"{folder}/dump"])
        # Peers leave statistics to the server; pgcopydb and we take them.
        analyzed = _ran([str(DEBIAN / "vacuumdb"), "--analyze-only", "-q", "-j2", "-d", scene.target])
    took_s = out.wall_s + into.wall_s + analyzed.wall_s
    return Took(took_s, took_s)


def _ran(command: Sequence[str]) -> Took:
    environment = {**os.environ, "PATH": f"{DEBIAN}:{os.environ['PATH']}"}
    began = time.perf_counter()
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    except FileNotFoundError:
        raise PeerFailed(f"{command[0]} is not installed") from None
    took_s = time.perf_counter() - began
    if done.returncode != 0:
        raise PeerFailed((done.stderr.strip().splitlines() or ["it said nothing"])[-1][:300])
    return Took(took_s, took_s)
