"""Bento, which streams of brokers are measured against: built from the modules that it needs, in .bench/bento.

Go's own proxy and checksums say what is built; the version is the newest one that they both knew. Nothing here is
shipped.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import subprocess
import time
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import asyncpg

from bench.connectors.bare import RECORDS, TABLE, WARM_UP_RECORDS
from bench.dump.contest import PeerFailed
from bench.dump.scene import ROOT
from bench.rig import NODE_CORE, pin

VERSION = "v1.10.0"
MODULES = (f"github.com/warpstreamlabs/bento@{VERSION}", "github.com/lib/pq@v1.10.9")
FOLDER = ROOT / ".bench/bento"
PATIENCE_S = 600.0
LOOK_S = 0.25
PROGRAM = """package main

import (
	"context"

	_ "github.com/lib/pq"
	_ "github.com/warpstreamlabs/bento/public/components/io"
	_ "github.com/warpstreamlabs/bento/public/components/kafka"
	_ "github.com/warpstreamlabs/bento/public/components/pure"
	_ "github.com/warpstreamlabs/bento/public/components/sql/base"
	"github.com/warpstreamlabs/bento/public/service"
)

func main() { service.RunCLI(context.Background()) }
"""
FIELDS = (
    "this.id",
    "this.kind",
    "this.user.email.lowercase()",
    "(this.total * 100).round()",
    "this.ts",
    'this.note.or("none")',
)
COLUMNS = ("id", "kind", "email", "cents", "placed_at", "note")


def bento() -> Path:
    """The program. It is built once, which takes minutes. Raises PeerFailed."""
    built = FOLDER / f"bento-{VERSION}-{zlib.crc32(PROGRAM.encode()):x}"  # Another program is another file.
    if built.exists():
        return built
    if shutil.which("go") is None:
        raise PeerFailed("Bento is not measured: it is built with go, which is not on the PATH")
    print("building Bento in .bench/bento", flush=True)
    FOLDER.mkdir(parents=True, exist_ok=True)
    (FOLDER / "main.go").write_text(PROGRAM)
    (FOLDER / "go.mod").write_text("module peer\n")
    for command in (["go", "get", *MODULES], ["go", "build", "-mod=mod", "-o", built.name, "."]):
        done = subprocess.run(command, cwd=FOLDER, check=False, capture_output=True, text=True)
        if done.returncode != 0:
            raise PeerFailed(f"Bento cannot be built: {done.stderr.strip().splitlines()[-1]}")
    return built


def kafka_rate(program: Path, brokers: str, topic: str, url: str, folder: Path) -> float:
    """Rows per second that Bento brings from a topic into PostgreSQL, from the warm-up to the last one: the same six
    fields, batches of the same size, and the node's core."""
    kafka = {"seed_brokers": [brokers], "topics": [topic], "consumer_group": f"bento-{time.time_ns()}"}
    batching = {"count": 5000, "period": "100ms"}
    document = {
        "input": {"kafka_franz": {**kafka, "start_from_oldest": True, "batching": batching}},
        "output": {"sql_insert": {**insert(url, FIELDS), "max_in_flight": 1}},
    }
    asyncio.run(make_table(url, "bento"))
    one_core = str(len(NODE_CORE))
    with bento_running(program, document, folder, GOMAXPROCS=one_core) as (process, words):
        pin(process.pid, NODE_CORE)
        return asyncio.run(rate(url, "bento", process, words))


def insert(url: str, fields: Sequence[str]) -> dict[str, Any]:
    """An output of Bento: the table of its name, which has these fields first."""
    return {
        "driver": "postgres",
        "dsn": f"{url}&sslmode=disable",
        "table": "bento",
        "columns": COLUMNS[: len(fields)],
        "args_mapping": f"root = [{', '.join(fields)}]",
    }


@contextlib.contextmanager
def bento_running(
    program: Path, document: dict[str, Any], folder: Path, **environment: str
) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """Bento with this document, and the file with what it says."""
    config, words = folder / "bento.json", folder / "bento.log"
    config.write_text(json.dumps({"http": {"enabled": False}, "logger": {"level": "ERROR"}, **document}))
    with words.open("wb") as log:
        process = subprocess.Popen([program, "-c", config], stdout=log, stderr=log, env={**os.environ, **environment})
        try:
            yield process, words
        finally:
            process.kill()
            process.wait()


async def make_table(url: str, name: str) -> None:
    """An empty one, for the six fields."""
    connection = await asyncpg.connect(url)
    await connection.execute(f"DROP TABLE IF EXISTS {name}; CREATE TABLE {name} {TABLE}")
    await connection.close()


async def rate(url: str, table: str, process: subprocess.Popen[bytes], words: Path) -> float:
    """Rows per second that a program brings into this table, from the warm-up to the last one."""
    connection = await asyncpg.connect(url)
    began, first, ends_s = 0.0, 0, time.monotonic() + PATIENCE_S
    try:
        while (rows := await connection.fetchval(f"SELECT count(*) FROM {table}")) < RECORDS:
            if not began and rows >= WARM_UP_RECORDS:
                began, first = time.perf_counter(), rows
            if process.poll() is not None or time.monotonic() > ends_s:
                raise PeerFailed(f"{table} stands at {rows} rows: {words.read_text(errors='replace')[-500:]}")
            await asyncio.sleep(LOOK_S)
        return float(rows - first) / (time.perf_counter() - began)
    finally:
        await connection.close()
