"""Dumps against their peers on the same data: the databases' own clients, pgloader and dlt; and killed fifty times.

    python -m bench.dump [--rows N] [--runs N] [--kills N] [--only JOB] [--no-dlt]

The copy's time is from the first chunk leased to the last commit; of a pipe it is that of its programs, of dlt that of
`pipeline.run`. The time of the whole process is beside it. The peers are installed in `.bench/peers`; without them, or
without MariaDB, what needs them is left out and says so.
"""

from __future__ import annotations

import argparse
import platform
import subprocess
from collections.abc import Sequence
from contextlib import ExitStack

from bench.dump import faults, jobs, peers, whole
from bench.dump.contest import Figures
from bench.dump.scene import mariadb, missing, scene
from bench.rig import machine
from bench.scale import fetch

JOBS = ("start", "postgres", "memory", "from-mariadb", "to-mariadb", "parquet", "verify", "whole", "faults")
_WITH_MARIADB = {"from-mariadb", "to-mariadb", "verify"}
_WITH_DLT = {"postgres", "from-mariadb", "to-mariadb", "parquet"}


def main(arguments: Sequence[str] = ()) -> Figures:
    """Run and print."""
    given = _parsed(arguments)
    names = given.only or JOBS
    figures: Figures = {}
    has_dlt = bool(_WITH_DLT & set(names)) and not given.no_dlt
    if has_dlt and (why := peers.install()) is not None:
        print(f"without dlt: {why}")
        has_dlt = False
    why_not = missing() if _WITH_MARIADB & set(names) else "not asked for"
    asked = jobs.Asked(given.rows, given.runs, given.kills, has_dlt)
    with ExitStack() as stack:
        here = stack.enter_context(scene())
        database = stack.enter_context(mariadb()) if why_not is None else None
        print(f"{machine()}\n{_versions(here.source, database, has_dlt)}", flush=True)
        for name in names:
            if name in ("from-mariadb", "to-mariadb"):
                if database is None:
                    print(f"\n{name} is left out: {why_not}")
                else:
                    job = jobs.from_mariadb if name == "from-mariadb" else jobs.to_mariadb
                    figures |= job(here, asked, database)
            elif name == "whole":
                figures |= whole.whole(here, asked.rows, asked.runs)
            elif name == "verify":
                figures |= jobs.verify(here, asked, database)
            else:
                figures |= {
                    "start": jobs.start,
                    "postgres": jobs.postgres,
                    "memory": jobs.memory,
                    "parquet": jobs.parquet,
                    "faults": faults.faults,
                }[name](here, asked)
    return figures


def _parsed(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.dump", description="Dumps against their peers.")
    parser.add_argument("--rows", type=int, default=10_000_000, help="of PostgreSQL → PostgreSQL; others: at most 1M")
    parser.add_argument("--runs", type=int, default=5, help="of each contestant")
    parser.add_argument("--kills", type=int, default=50, help="cycles of the job `faults`")
    parser.add_argument("--only", action="append", choices=JOBS, help="only this job; may be repeated")
    parser.add_argument("--no-dlt", action="store_true", help="leave out dlt, which takes the most time")
    return parser.parse_args(list(arguments))


def _versions(url: str, database: object, has_dlt: bool) -> str:
    found = [f"Linux {platform.release()}", f"PostgreSQL {fetch(url, 'SHOW server_version')[0][0]}"]
    if database is not None:
        found.append(f"MariaDB {database.value('SELECT version()')}")  # type: ignore[attr-defined]
        for name in ("pgloader",):
            done = subprocess.run(
                ["dpkg-query", "-W", "-f=${Version}", name], capture_output=True, text=True, check=False
            )
            found.append(f"{name} {done.stdout or 'not installed'}")
    if has_dlt:
        pinned = dict(line.split("==") for line in peers.PINNED.read_text().split())
        found += [f"{name} {pinned[name]}" for name in ("dlt", "connectorx", "adbc-driver-postgresql", "pyarrow")]
    return ", ".join(found)
