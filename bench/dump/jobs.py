"""The copies that are measured, each against its peers."""

from __future__ import annotations

import os
import shutil
import statistics
from collections.abc import Callable
from dataclasses import dataclass, replace

from bench.dump import ours, peers
from bench.dump.contest import Bar, Contestant, Figures, Took, contest, judged
from bench.dump.scene import MARIADB_SHAPE, Database, Scene, load
from bench.scale import fetch

SMALL = 1_000_000  # Rows of every job but the first,
FEW = 2_000_000  # and of the one that measures the start.
FIRST_S = 0.5
ONE, TWO, PROCESSES = "Headgate, one worker", "Headgate, two workers", "Headgate, two processes"
MADE = "Headgate, two workers, makes the table"  # As dlt does; its key comes after the rows, and after the copy's time.
PIPE, PIPES = "psql | psql, binary", "two such pipes, half of the rows each"
PIPE_THEN_KEY = "psql | psql, binary, then the key"
SOURCE, TARGET = "psql, the source alone", "psql, the target alone"
MEMORY_MB = 150.0
FLAT_MB = 15.0  # How much more memory a table ten times as large may take: noise of the allocator.
# Ways of dlt, as `backend, loader file format`: all that can be fast. None: dlt loads as it does by itself. Parquet
# goes through ADBC, a driver that is installed besides.
Way = tuple[str, str | None]
WAYS: tuple[Way, ...] = (
    ("connectorx", "parquet"),
    ("pyarrow", "parquet"),
    ("pyarrow", "csv"),
    ("connectorx", None),
    ("pyarrow", None),
)
AS_IT_COMES = "dlt as it comes"  # With nothing set but what to copy; it takes minutes, and one turn.


@dataclass(frozen=True)
class Asked:
    """What was said on the command line."""

    rows: int
    runs: int
    kills: int
    has_dlt: bool

    @property
    def small(self) -> int:
        """Rows of every job but the first."""
        return min(self.rows, SMALL)


def dump_of(scene: Scene, table: str, rows: int, *flags: str) -> Callable[[], Took]:
    """Ours, from PostgreSQL to PostgreSQL."""
    return lambda: ours.dump(scene, scene.source, scene.target, "-t", f"{table}=items", *flags, rows=rows)


# PostgreSQL to PostgreSQL.


def postgres(scene: Scene, asked: Asked) -> Figures:
    """Against a pipe of two clients; two such pipes, which show what the machine can give; and dlt, with the fastest of
    its backends as dlt loads by itself, and with whatever can be set and installed to make it faster."""
    rows = asked.rows
    own, best = fastest(scene, asked) if asked.has_dlt else (None, None)
    scene.fill("items", rows)
    figures: Figures = {}
    want = scene.hashed(scene.source, "items")

    def check() -> bool:
        return scene.hashed(scene.target, "items") == want

    scene.empty()
    peers.binary_pipe(scene, "items")  # Once unmeasured: the servers make files for their log, and keep them.
    for title, key in (("PostgreSQL → PostgreSQL, primary key in place", True), ("the same without an index", False)):
        contestants = [
            Contestant(name, run, lambda key=key: scene.empty(key=key), check)  # type: ignore[misc]
            for name, run in (
                (ONE, dump_of(scene, "items", rows, "-w", "1")),
                (PIPE, lambda: peers.binary_pipe(scene, "items")),
                (TWO, dump_of(scene, "items", rows, "-w", "2")),
                (PIPES, lambda: peers.binary_pipes(scene, "items", rows)),
            )
        ]
        contestants += [
            Contestant(SOURCE, lambda: peers.source_alone(scene, "items"), turns=2),
            Contestant(TARGET, lambda: peers.target_alone(scene, "items"), contestants[0].reset, turns=2),
        ]
        bars = [Bar(ONE, PIPE, 0.95), Bar(TWO, PIPE, 1.1)]
        for way, least in ((best, 1), (None if key else own, 10)):  # By itself dlt makes tables without a key.
            if way is not None:
                contestants.append(dlt_into_postgres(scene, "items", way, want, key=key))
                contestants[-1].turns = 1
                bars += [Bar(ONE, contestants[-1].name, least), Bar(TWO, contestants[-1].name, least)]
        figures |= contest(title, rows, contestants, asked.runs, bars)
        figures |= _least(title, contestants)
    return figures | _from_nothing(scene, asked, check)


def start(scene: Scene, asked: Asked) -> Figures:
    """What a short copy waits for: from the command to the first chunk, and to the prompt."""
    rows = min(asked.rows, FEW)
    scene.fill("few", rows)
    want = scene.hashed(scene.source, "few")
    scene.empty()
    peers.binary_pipe(scene, "few")  # Once unmeasured.
    one, *others = _whole_time(scene, "few", rows, lambda: scene.hashed(scene.target, "items") == want)
    title = "PostgreSQL → PostgreSQL, from no table to one with its key, few rows, the whole time"
    figures = contest(title, rows, [one, *others], asked.runs, [Bar(ONE, PIPE, 0.95), Bar(TWO, PIPE, 0.95)])
    first_s = statistics.median(took.first_s for took in one.took)
    return figures | judged("from the command to the first chunk", first_s, at_most=FIRST_S, unit=" s")


def _from_nothing(scene: Scene, asked: Asked, check: Callable[[], bool]) -> Figures:
    """What somebody waits for whose target is empty: until the table is there, with its rows and its key."""
    contestants = _whole_time(scene, "items", asked.rows, check)
    title = "PostgreSQL → PostgreSQL, from no table to one with its key, the whole time"
    return contest(title, asked.rows, contestants, asked.runs, [Bar(ONE, PIPE, 0.95), Bar(TWO, PIPE, 1.1)])


def _whole_time(scene: Scene, table: str, rows: int, check: Callable[[], bool]) -> list[Contestant]:
    def whole(workers: str) -> Callable[[], Took]:
        run = dump_of(scene, table, rows, "-w", workers)
        return lambda: _all_of(run())

    return [
        Contestant(ONE, whole("1"), scene.drop, check),
        Contestant(PIPE, lambda: peers.binary_pipe(scene, table), scene.empty, check),
        Contestant(TWO, whole("2"), scene.drop, check),
        Contestant(PIPE_THEN_KEY, lambda: peers.keyed_pipe(scene, table), lambda: scene.empty(key=False), check),
    ]


def _all_of(took: Took) -> Took:
    """The start of the process, the key and the statistics count as well."""
    return replace(took, copy_s=took.wall_s)


def _least(title: str, contestants: list[Contestant]) -> Figures:
    """What nobody can do faster: both servers' own work, spread evenly over all cores."""
    by_name = {one.name: one for one in contestants if one.took}
    cores = os.cpu_count() or 1
    least_s = (by_name[SOURCE].copy_s + by_name[TARGET].copy_s) / cores
    print(f"  the servers alone keep {cores} cores busy for {least_s:.2f} s; against that", flush=True)
    figures: Figures = {}
    for one in by_name.values():
        if one.name not in (SOURCE, TARGET):
            ratio = figures[f"{title}: the least against {one.name}"] = least_s / one.copy_s
            print(f"    {one.name}: {ratio:.2f}", flush=True)
    return figures


def fastest(scene: Scene, asked: Asked) -> tuple[Way | None, Way | None]:
    """The fastest of dlt's backends as dlt loads by itself, and its fastest way of all; over a small table."""
    rows = asked.small
    scene.fill("small", rows)
    want = scene.hashed(scene.source, "small")
    contestants = [dlt_into_postgres(scene, "small", way, want) for way in WAYS]
    contest("dlt's ways from PostgreSQL to PostgreSQL", rows, contestants, 1, [])
    ran = {way: one.copy_s for one, way in zip(contestants, WAYS, strict=True) if one.took}
    own = [way for way in ran if way[1] is None]
    return min(own, key=ran.__getitem__, default=None), min(ran, key=ran.__getitem__, default=None)


def dlt_into_postgres(scene: Scene, table: str, way: Way, want: tuple[object, ...], *, key: bool = True) -> Contestant:
    """dlt into a table of the same shape, in a schema of its own."""
    backend, format = way
    job = {
        "source": "sql",
        "backend": backend,
        "format": format,
        "from": peers.postgres_url(scene.source).replace("postgresql:", "postgresql+psycopg2:"),
        "conn": peers.connectorx_url(scene.source),
        "target": "postgres",
        "to": peers.postgres_url(scene.target),
        "table": table,
        "dataset": "peer",
    }
    return Contestant(
        f"dlt, {backend}, {format or 'loads by itself'}",
        lambda: peers.dlt(**job),
        lambda: scene.empty(f"peer.{table}", key=key),
        lambda: scene.hashed(scene.target, f"peer.{table}") == want,
        must_be_exact=False,
    )


def memory(scene: Scene, asked: Asked) -> Figures:
    """The most memory that our process ever had, for a table and one ten times as large."""
    print("\nthe most memory of our process, two workers, PostgreSQL → PostgreSQL")
    peaks = []
    for rows in (asked.rows // 5, asked.rows * 2):
        scene.fill("much", rows)
        scene.empty()
        took = dump_of(scene, "much", rows, "-w", "2")()
        peaks.append(took.peak_mb)
        print(f"  {rows:>12,} rows: {took.peak_mb:.0f} MB, copied in {took.copy_s:.1f} s", flush=True)
    fetch(scene.source, "DROP TABLE much")
    scene.empty()
    return judged("the most memory", max(peaks), at_most=MEMORY_MB, unit=" MB") | judged(
        "what ten times as many rows add", peaks[1] - peaks[0], at_most=FLAT_MB, unit=" MB"
    )


# MariaDB.


def from_mariadb(scene: Scene, asked: Asked, database: Database) -> Figures:
    """Against a pipe of two clients, pgloader and dlt."""
    rows = _filled(scene, asked, database)
    want = scene.hashed(scene.source, "items")
    source = database.url("tinyint1=bool")

    def check() -> bool:
        return scene.hashed(scene.target, "items") == want

    def dump(*flags: str) -> Callable[[], Took]:
        return lambda: ours.dump(scene, source, scene.target, "-t", "items", *flags, rows=rows)

    pipe = "mariadb | psql, text"
    contestants = [
        Contestant(ONE, dump("-w", "1"), scene.empty, check),
        Contestant(pipe, lambda: peers.text_pipe(scene, database), scene.empty, check),
        Contestant(TWO, dump("-w", "2"), scene.empty, check),
        Contestant("pgloader", lambda: peers.pgloader(scene, database), scene.empty, check, must_be_exact=False),
        Contestant(PROCESSES, dump("-w", "2", "--processes"), scene.empty, check),
        Contestant(MADE, dump("-w", "2"), scene.drop, check),
    ]
    bars = [Bar(TWO, pipe, 1.0), Bar(PROCESSES, pipe, 1.0), Bar(TWO, "pgloader", 3.0)]
    if asked.has_dlt:
        url = peers.mysql_url(database)
        for backend in ("connectorx", "default"):
            job = {
                "source": "sql",
                "backend": backend,
                "format": None if backend == "default" else "parquet",
                "from": url,
                "conn": url.replace("+pymysql", ""),
                "target": "postgres",
                "to": peers.postgres_url(scene.target),
                "table": "items",
                "dataset": "peer",
            }
            contestants.append(_free(scene, f"dlt, {backend}, parquet", job, want))
            bars.append(Bar(MADE, contestants[-1].name, 1))
    return contest("MariaDB → PostgreSQL", rows, contestants, asked.runs, bars)


def to_mariadb(scene: Scene, asked: Asked, database: Database) -> Figures:
    """Against dlt, whose way there is SQLAlchemy."""
    rows = _filled(scene, asked, database)
    want = _sums(database)

    def check() -> bool:
        return _sums(database) == want

    def empty() -> None:
        database.execute("DROP TABLE items", f"CREATE TABLE items ({MARIADB_SHAPE}, PRIMARY KEY (id))")

    def dump(*flags: str) -> Callable[[], Took]:
        return lambda: ours.dump(scene, scene.source, database.url(), "-t", "items", *flags, rows=rows)

    contestants = [
        Contestant(ONE, dump("-w", "1"), empty, check),
        Contestant(TWO, dump("-w", "2"), empty, check),
        Contestant(PROCESSES, dump("-w", "2", "--processes"), empty, check),
    ]
    bars = []
    if asked.has_dlt:
        for backend, format in (("connectorx", "parquet"), ("default", None)):
            job = {
                "source": "sql",
                "backend": backend,
                "format": format,
                "from": peers.postgres_url(scene.source).replace("postgresql:", "postgresql+psycopg2:"),
                "conn": peers.connectorx_url(scene.source),
                "target": "mysql",
                "to": peers.mysql_url(database),
                "table": "items",
                "dataset": "peer",
            }
            contestants.append(
                Contestant(
                    AS_IT_COMES if backend == "default" else f"dlt, {backend}, {format}",
                    lambda job=job: peers.dlt(**job),  # type: ignore[misc]
                    lambda: database.execute("DROP DATABASE IF EXISTS peer", "CREATE DATABASE peer"),
                    turns=1,
                )
            )
            bars.append(Bar(TWO, contestants[-1].name, 5))
    try:
        return contest("PostgreSQL → MariaDB", rows, contestants, asked.runs, bars)
    finally:
        database.execute("DROP DATABASE IF EXISTS peer")


def _filled(scene: Scene, asked: Asked, database: Database) -> int:
    scene.fill("items", asked.small)
    database.execute("DROP TABLE IF EXISTS items")
    load(scene, database, "items")
    return asked.small


def _free(scene: Scene, name: str, job: dict[str, str | None], want: tuple[object, ...]) -> Contestant:
    """dlt, with a table that it makes itself, without a key: it takes some types for others than ours."""

    def forget() -> None:
        fetch(scene.target, "DROP SCHEMA IF EXISTS peer CASCADE")
        scene.settle()

    is_default = job["backend"] == "default"
    return Contestant(
        AS_IT_COMES if is_default else f"{name}, no key",
        lambda: peers.dlt(**job),
        forget,
        lambda: scene.hashed(scene.target, "peer.items") == want,
        must_be_exact=False,
        turns=1 if is_default else 99,
    )


def _sums(database: Database) -> tuple[object, ...]:
    """All values of MariaDB's table in a few numbers."""
    texts = ", ".join(f"sum(crc32({name}))" for name in ("name", "note", "price", "ratio", "changed_at"))
    return database.rows(f"SELECT count(*), sum(id), sum(quantity), sum(is_open), count(note), {texts} FROM items")[0]


# Parquet.


def parquet(scene: Scene, asked: Asked) -> Figures:
    """Both ways, against dlt."""
    rows = asked.small
    scene.fill("items", rows)
    want = scene.hashed(scene.source, "items")
    folder, peer = scene.folder / "parquet", scene.folder / "peer"
    url = f"parquet:{folder}/"

    def empty() -> None:
        for each in (folder, peer):
            shutil.rmtree(each, ignore_errors=True)
            each.mkdir()

    def out(*flags: str) -> Callable[[], Took]:
        return lambda: ours.dump(scene, scene.source, url, "-t", "items", *flags, rows=rows)

    contestants = [
        Contestant(ONE, out("-w", "1"), empty),
        Contestant(TWO, out("-w", "2"), empty),
        Contestant(PROCESSES, out("-w", "2", "--processes"), empty),
    ]
    bars = []
    if asked.has_dlt:
        for backend in ("connectorx", "pyarrow", "default"):
            job = {
                "source": "sql",
                "backend": backend,
                "format": "parquet",
                "from": peers.postgres_url(scene.source).replace("postgresql:", "postgresql+psycopg2:"),
                "conn": peers.connectorx_url(scene.source),
                "target": "files",
                "to": f"file://{peer}",
                "table": "items",
                "dataset": "peer",
            }
            is_default = backend == "default"
            name = AS_IT_COMES if is_default else f"dlt, {backend}"
            contestants.append(
                Contestant(name, lambda job=job: peers.dlt(**job), empty, turns=1 if is_default else 99)  # type: ignore[misc]
            )
            bars.append(Bar(TWO, name, 5 if is_default else 1))
    figures = contest("PostgreSQL → Parquet", rows, contestants, asked.runs, bars)
    empty()
    out("-w", "2")()
    return figures | _from_parquet(scene, asked, url, rows, want)


def _from_parquet(scene: Scene, asked: Asked, url: str, rows: int, want: tuple[object, ...]) -> Figures:
    def check() -> bool:
        return scene.hashed(scene.target, "items") == want

    def back(*flags: str) -> Callable[[], Took]:
        return lambda: ours.dump(scene, url, scene.target, "-t", "items", *flags, rows=rows)

    contestants = [
        Contestant(ONE, back("-w", "1"), scene.empty, check),
        Contestant(TWO, back("-w", "2"), scene.empty, check),
        Contestant(PROCESSES, back("-w", "2", "--processes"), scene.empty, check),
        Contestant(MADE, back("-w", "2"), scene.drop, check),
    ]
    bars = []
    if asked.has_dlt:
        for backend in ("pyarrow", "default"):
            job = {
                "source": "files",
                "backend": backend,
                "from": f"file://{scene.folder / 'parquet'}",
                "format": None if backend == "default" else "parquet",
                "target": "postgres",
                "to": peers.postgres_url(scene.target),
                "table": "items",
                "dataset": "peer",
            }
            contestants.append(_free(scene, "dlt, pyarrow, ADBC", job, want))
            bars.append(Bar(MADE, contestants[-1].name, 5 if backend == "default" else 1))
    return contest("Parquet → PostgreSQL", rows, contestants, asked.runs, bars)


# Verify.


def verify(scene: Scene, asked: Asked, database: Database | None) -> Figures:
    """A copy and its comparison, in turn."""
    scene.fill("items", asked.rows)
    figures = _verified("PostgreSQL → PostgreSQL", scene, scene.source, asked.rows, asked.runs, 2.0)
    if database is not None:
        rows = _filled(scene, asked, database)
        source = database.url("tinyint1=bool")
        figures |= _verified("MariaDB → PostgreSQL", scene, source, rows, asked.runs, 1.0)
    return figures


def _verified(title: str, scene: Scene, source: str, rows: int, runs: int, least: float) -> Figures:
    last: list[Took] = []

    def dump() -> Took:
        last[:] = [ours.dump(scene, source, scene.target, "-t", "items", "-w", "2", rows=rows)]
        return last[0]

    copy, compare = "the copy, two workers", "verify"
    contestants = [
        Contestant(copy, dump, scene.empty),
        Contestant(compare, lambda: ours.verify(scene, last[0].dump), scene.settle),
    ]
    return contest(f"verify, {title}", rows, contestants, runs, [Bar(compare, copy, least)])
