"""What the benchmarks share: a durable PostgreSQL, a node as a process of its own, and cores to pin them to."""

from __future__ import annotations

import asyncio
import contextlib
import os
import platform
import signal
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import asyncpg

from headgate.store.embedded import EmbeddedServer
from headgate.testing.processes import NodeProcess

NODE_CORE, DATABASE_CORE = {0}, {1}
SINK = {"$secret": "sink"}  # What a document says in place of the sink's URL.


@dataclass(frozen=True, slots=True)
class Rig:
    """A node, and two databases of one server. The node has the secret that `SINK` names."""

    node: NodeProcess
    own: str  # The URL of the node's database, to look into.
    sink: str  # The URL of the database that sinks write into.


@contextlib.contextmanager
def running(*, pinned: bool = False, environment: dict[str, str] | None = None) -> Iterator[Rig]:
    """A node on a fresh, durable, embedded PostgreSQL with default settings. Pinned: a core for each."""
    with tempfile.TemporaryDirectory(prefix="hgb") as folder:
        home = Path(folder) / "home"
        home.mkdir()
        server = EmbeddedServer.join(home)
        if pinned:
            pin(postmaster(home), DATABASE_CORE)
        node = NodeProcess.start(home, environment=environment)
        if pinned:
            pin(node.process.pid, NODE_CORE)
        try:
            yield Rig(node, server.url, with_sink(node, server.url))
        finally:
            node.end(signal.SIGTERM)
            server.leave()


def with_sink(node: NodeProcess, url: str) -> str:
    """The URL of a new database on the server of this URL, which the node knows as a secret."""
    sink = asyncio.run(make_database(url, "sink"))
    node.call("PUT", f"/api/secrets/{SINK['$secret']}", {"value": sink})
    return sink


async def make_database(url: str, name: str) -> str:
    """The URL of a new, empty database on the embedded server of this URL."""
    connection = await asyncpg.connect(url)
    try:
        await connection.execute(f"CREATE DATABASE {name}")
    finally:
        await connection.close()
    return url.replace("/headgate?", f"/{name}?")


def postmaster(home: Path) -> int:
    """The server's first process."""
    return int((home / "postgres/data/postmaster.pid").read_text().split()[0])


def pin(pid: int, cores: set[int]) -> None:
    """This process, its threads and its children, now and later."""
    for child in [pid, *children(pid)]:
        with contextlib.suppress(ProcessLookupError, FileNotFoundError):  # It may end meanwhile.
            for thread in os.listdir(f"/proc/{child}/task"):
                os.sched_setaffinity(int(thread), cores)


def children(pid: int) -> list[int]:
    """Direct children."""
    found = []
    for thread in os.listdir(f"/proc/{pid}/task"):
        found += [int(child) for child in Path(f"/proc/{pid}/task/{thread}/children").read_text().split()]
    return found


def cpu_s(pid: int) -> float:
    """Processor time used so far, by all threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def memory_kb(pid: int) -> int:
    """Private memory: what would come back if the process ended."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith(("Private_Clean:", "Private_Dirty:")))


def rss_kb(pid: int) -> int:
    """Resident memory."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS:"))


def machine() -> str:
    """Where the figures come from."""
    model = next(
        (line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line),
        platform.machine(),
    )
    return f"{os.cpu_count()} × {model}, Python {platform.python_version()}"


def report(title: str, figures: dict[str, Any]) -> dict[str, Any]:
    """Print one benchmark's figures."""
    print(f"\n{title}")
    for name, value in figures.items():
        print(f"  {name:<58} {value:>14,.2f}" if isinstance(value, float) else f"  {name:<58} {value:>14,}")
    return figures
