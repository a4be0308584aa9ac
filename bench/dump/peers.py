"""The peers, in an environment of their own: pipes of the databases' own clients, pgloader, and dlt."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any
from urllib.parse import quote

from bench.dump.contest import PeerFailed, Took
from bench.dump.scene import COLUMNS, ROOT, Database, Scene, client, directory, psql

PEERS = ROOT / ".bench/peers"
PINNED = Path(__file__).parents[1] / "peers.txt"
WANTED = (
    "dlt[postgres,parquet,sqlalchemy,sql_database,filesystem]",
    "connectorx",
    "pymysql",
    "adbc-driver-manager",
    "adbc-driver-postgresql",
)
PROGRAM = Path(__file__).parent / "dlt_peer.py"
PATIENCE_S = 3600.0


def install(folder: Path = PEERS, wanted: Sequence[str] = WANTED, name: str = "dlt") -> str | None:
    """Make the environment if it is not there. Returns why it cannot be made."""
    mark = folder / ".ready"
    if mark.exists() and mark.stat().st_mtime >= PINNED.stat().st_mtime:
        return None
    print(f"installing {name} in .bench/{folder.name}", flush=True)
    pip = [str(folder / "bin/pip"), "install", "--quiet", "--disable-pip-version-check", "--constraint", str(PINNED)]
    for command in ([sys.executable, "-m", "venv", str(folder)], [*pip, *wanted]):
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        if done.returncode != 0:
            return f"{name} cannot be installed: {done.stderr.strip().splitlines()[-1]}"
    mark.touch()
    return None


def pipe(*commands: Sequence[str]) -> Took:
    """Programs, each reading what the one before it writes."""
    return pipes(commands)


def pipes(*all: Sequence[Sequence[str]]) -> Took:
    """Several pipes at once."""
    began = time.perf_counter()
    processes: list[subprocess.Popen[bytes]] = []
    for commands in all:
        before: IO[bytes] | None = None
        for number, command in enumerate(commands):
            out = subprocess.DEVNULL if number == len(commands) - 1 else subprocess.PIPE
            process = subprocess.Popen(command, stdin=before or subprocess.DEVNULL, stdout=out)
            if before is not None:
                before.close()
            before = process.stdout
            processes.append(process)
    codes = [process.wait() for process in processes]
    took_s = time.perf_counter() - began
    if any(codes):
        raise PeerFailed(f"exit codes {codes}")
    return Took(took_s, took_s)


def binary_pipe(scene: Scene, table: str) -> Took:
    """PostgreSQL's own client on both sides, and the binary form."""
    return pipes(_binary(scene, f"{table} ({', '.join(COLUMNS)})"))


def keyed_pipe(scene: Scene, table: str) -> Took:
    """The same into a table without an index, which gets its key afterwards."""
    copied = binary_pipe(scene, table)
    keyed = pipe([psql(), scene.target, "-qc", "ALTER TABLE items ADD PRIMARY KEY (id)"])
    took_s = copied.copy_s + keyed.copy_s
    return Took(took_s, took_s)


def binary_pipes(scene: Scene, table: str, rows: int) -> Took:
    """The same twice at once, each with half of the rows, by key as ours."""
    select = f"SELECT {', '.join(COLUMNS)} FROM {table} WHERE id"
    return pipes(_binary(scene, f"({select} <= {rows // 2})"), _binary(scene, f"({select} > {rows // 2})"))


def source_alone(scene: Scene, table: str) -> Took:
    """The source gives all rows, and nobody takes them."""
    return pipe(_binary(scene, f"{table} ({', '.join(COLUMNS)})")[0])


def target_alone(scene: Scene, table: str) -> Took:
    """The target takes all rows from a file that is in memory; the file is made before."""
    out, into = _binary(scene, f"{table} ({', '.join(COLUMNS)})")
    file = scene.folder / f"{table}.copy"
    with file.open("wb") as rows:
        subprocess.run(out, stdout=rows, check=True)
    scene.settle()
    try:
        with file.open("rb") as rows:
            began = time.perf_counter()
            subprocess.run(into, stdin=rows, check=True)
            took_s = time.perf_counter() - began
    finally:
        file.unlink()
    return Took(took_s, took_s)


def _binary(scene: Scene, what: str) -> list[list[str]]:
    out = [psql(), scene.source, "-qc", f"COPY {what} TO STDOUT (FORMAT binary)"]
    return [out, [psql(), scene.target, "-qc", f"COPY items ({', '.join(COLUMNS)}) FROM STDIN (FORMAT binary)"]]


def text_pipe(scene: Scene, database: Database) -> Took:
    """MariaDB's own client, whose text PostgreSQL reads; it prints NULL as that word."""
    names = ", ".join(COLUMNS)
    out = [*client(database), "--quick", "-N", "-e", f"SELECT {names} FROM items"]
    into = [psql(), scene.target, "-qc", f"COPY items ({names}) FROM STDIN (NULL 'NULL')"]
    return pipe(out, into)


_PGLOADER = """
LOAD DATABASE FROM mysql://root@127.0.0.1:{port}/{database} INTO postgresql://headgate@unix:{socket}:5432/headgate
WITH data only, create no tables, create no indexes, no foreign keys, reset no sequences, workers = 2, concurrency = 1
CAST type timestamp to timestamptz
INCLUDING ONLY TABLE NAMES MATCHING 'items'
ALTER SCHEMA '{database}' RENAME TO 'public';
"""


def pgloader(scene: Scene, database: Database) -> Took:
    """Debian's pgloader, into a table that is there."""
    job = scene.folder / "job.load"
    socket = directory(scene.target)
    job.write_text(_PGLOADER.format(port=database.server.port, database=database.name, socket=socket))
    began = time.perf_counter()
    try:
        done = subprocess.run(
            ["pgloader", "--root-dir", str(scene.folder), str(job)],
            capture_output=True,
            text=True,
            check=False,
            cwd=scene.folder,
        )
    except FileNotFoundError:
        raise PeerFailed("pgloader is not installed") from None
    took_s = time.perf_counter() - began
    if done.returncode != 0 or "ERROR" in done.stdout or "KABOOM" in done.stdout:
        lines = [line for line in done.stdout.splitlines() if "ERROR" in line or "KABOOM" in line]
        raise PeerFailed(" ".join((lines or done.stdout.splitlines() or ["?"])[0].split())[:300])
    total = re.search(r"Total import time.* (?:(\d+)m)?([\d.]+)s\s*$", done.stdout, re.MULTILINE)
    return Took(60 * int(total[1] or 0) + float(total[2]) if total else took_s, took_s)


# dlt.


def postgres_url(url: str) -> str:
    """As SQLAlchemy and dlt want it: they insist on a host and a password."""
    return f"postgresql://headgate:none@localhost:5432/headgate?host={directory(url)}"


def connectorx_url(url: str) -> str:
    """As connectorx wants it."""
    return f"postgresql://headgate:none@{quote(directory(url), safe='')}:5432/headgate"


def mysql_url(database: Database) -> str:
    """As SQLAlchemy wants it; connectorx takes the same without the driver."""
    return f"mysql+pymysql://root@127.0.0.1:{database.server.port}/{database.name}"


def dlt(**job: Any) -> Took:
    """One pipeline, in a process of its own. The copy's time is that of `pipeline.run`."""
    began = time.perf_counter()
    done = subprocess.run(
        [str(PEERS / "bin/python"), str(PROGRAM), json.dumps(job)],
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    wall_s = time.perf_counter() - began
    if done.returncode != 0:
        raise PeerFailed(_last_error(done.stderr))
    return Took(json.loads(done.stdout.splitlines()[-1])["copy_s"], wall_s)


def _last_error(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if "Error" in line or "Exception" in line]
    return (lines or text.strip().splitlines() or ["it said nothing"])[-1][:300]
