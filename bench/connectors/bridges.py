"""A Singer tap → PostgreSQL, against the tap alone and against the same tap with target-postgres.

python -m bench connectors.bridges

The tap and the target are packages of others, each in its own environment, which are installed first: from the second
run on, from pip's cache. The tap reads a table of the same server that is written to, as in the peer's case.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import asyncpg

from bench.rig import SINK, Rig, make_database, report, running
from bench.throughput import records_written
from headgate.connectors.bridges.singer import selected

TAP, TARGET = "meltanolabs-tap-postgres==0.10.0", "meltanolabs-target-postgres"
RECORDS = int(os.environ.get("HEADGATE_TEST_BENCH_RECORDS", "200000"))
WARM_UP_RECORDS = RECORDS // 10
INSTALLED = "/api/connectors/installed"
STREAM = "public-orders"
LOOK_S = 0.2  # Whoever counts more often takes the processor from what is counted.


async def fill(url: str) -> None:
    """The table that is read."""
    connection = await asyncpg.connect(url)
    await connection.execute(
        "CREATE TABLE orders (id bigint PRIMARY KEY, kind text, email text, cents bigint, placed_at timestamptz)"
    )
    await connection.execute(
        "INSERT INTO orders SELECT i, 'order', 'user' || i % 1000 || '@example.com', i % 10000,"
        f" timestamptz '2026-01-01Z' + make_interval(secs => i) FROM generate_series(1, {RECORDS}) i"
    )
    await connection.close()


def address(url: str) -> str:
    """As the tap and the target want it: with a host and a password, which the socket makes superfluous."""
    user, _, rest = url.removeprefix("postgresql://").partition("@/")
    name, _, query = rest.partition("?")
    return f"postgresql+psycopg2://{user}:none@localhost/{name}?{query}"


def installed(rig: Rig) -> Path:
    """The tap, installed by the node. Returns its program."""
    rig.node.call("POST", INSTALLED, {"package": f"singer:{TAP}"})
    while (work := rig.node.call("GET", INSTALLED)["installing"]) is not None:
        if work["error"]:
            raise SystemExit(work["error"])
        time.sleep(1)
    (found,) = (rig.node.home / "connectors" / "environments").iterdir()
    return found / "bin" / "tap-postgres"


def target(folder: Path) -> Path:
    """The peer, in its own environment."""
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    subprocess.run([folder / "bin" / "python", "-m", "pip", "install", "-q", TARGET], check=True)
    return folder / "bin" / "target-postgres"


def rate(count: Callable[[], int]) -> float:
    """Records per second from the warm-up to the last one: how long programs take to start is no part of it."""
    while (first := count()) < WARM_UP_RECORDS:
        time.sleep(LOOK_S)
    began = time.perf_counter()
    while (last := count()) < RECORDS:
        time.sleep(LOOK_S)
    return (last - first) / (time.perf_counter() - began)


def alone(tap: Path, files: dict[str, Path]) -> float:
    """Of the tap, whose lines are counted and dropped."""
    said, began = 0, 0.0
    command = [tap, "--config", files["tap"], "--catalog", files["catalog"]]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as reading:
        assert reading.stdout is not None
        for line in reading.stdout:
            said += line.startswith((b'{"type":"RECORD"', b'{"type": "RECORD"'))
            if said == WARM_UP_RECORDS and not began:
                began = time.perf_counter()
    if said < RECORDS:
        raise SystemExit(f"the tap has ended after {said} records")
    return (said - WARM_UP_RECORDS) / (time.perf_counter() - began)


def with_target(tap: Path, files: dict[str, Path], peer: Path, url: str) -> float:
    """Of the tap with its peer, by the rows that are there."""
    command = [tap, "--config", files["tap"], "--catalog", files["catalog"]]
    quiet, words = subprocess.DEVNULL, files["target"].with_suffix(".log")
    with (
        words.open("wb") as log,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=quiet) as reading,
        subprocess.Popen([peer, "--config", files["target"]], stdin=reading.stdout, stdout=quiet, stderr=log) as its,
    ):

        def count() -> int:
            has_ended = its.poll() is not None
            found = asyncio.run(rows(url))
            if has_ended and found < RECORDS:
                last = words.read_text(errors="replace")[-1000:]
                raise SystemExit(f"the target has ended after {found} records: {last}")
            return found

        return rate(count)


async def rows(url: str) -> int:
    """How many the peer has written, into whichever table of its schema."""
    connection = await asyncpg.connect(url)
    try:
        table = await connection.fetchval("SELECT min(tablename) FROM pg_tables WHERE schemaname = 'peer'")
        return 0 if table is None else int(await connection.fetchval(f'SELECT count(*) FROM peer."{table}"'))
    finally:
        await connection.close()


def through_node(rig: Rig, source: str) -> float:
    """Durable records per second."""
    rig.node.call("PUT", "/api/secrets/tap-url", {"value": source})
    document: dict[str, Any] = {
        "source": {
            "type": "singer",
            "tap": "tap-postgres",
            "secrets": {"sqlalchemy_url": {"$secret": "tap-url"}},
            "streams": [STREAM],
            "once": True,
        },
        "mapping": {"key": "id"},
        "sink": {"type": "postgres", "url": SINK, "table": "orders_here", "mode": "upsert"},
    }
    rig.node.apply({"orders": document})
    return rate(lambda: records_written(rig.node, "orders"))


def main() -> dict[str, float]:
    """Run and print."""
    with tempfile.TemporaryDirectory() as temporary, running() as rig:
        folder = Path(temporary)
        shop = asyncio.run(make_database(rig.sink, "shop"))
        asyncio.run(fill(shop))
        tap, peer = installed(rig), target(folder / "target")
        files = {name: folder / f"{name}.json" for name in ("tap", "catalog", "target")}
        files["tap"].write_text(json.dumps({"sqlalchemy_url": address(shop)}))
        files["target"].write_text(json.dumps({"sqlalchemy_url": address(rig.sink), "default_target_schema": "peer"}))
        found = subprocess.run([tap, "--config", files["tap"], "--discover"], capture_output=True, check=True).stdout
        catalog = json.loads(found)
        catalog["streams"] = [one for one in catalog["streams"] if one["tap_stream_id"] == STREAM]
        files["catalog"].write_text(json.dumps(asyncio.run(selected(catalog, None, "tap-postgres"))))
        bare = alone(tap, files)
        ours = through_node(rig, address(shop))
        theirs = with_target(tap, files, peer, rig.sink)
    return report(
        "tap-postgres → PostgreSQL, upsert (python -m bench connectors.bridges)",
        {
            "records/s": ours,
            "tap alone, records/s": bare,
            "tap | target-postgres, records/s": theirs,
            "against the tap alone": ours / bare,
            "against target-postgres": ours / theirs,
        },
    )


if __name__ == "__main__":
    main()
