"""Connectors of others on a real node: installed by pip, read into PostgreSQL, and killed with their node."""

from __future__ import annotations

import json
import os
import signal
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from headgate.testing.processes import LONG_S, NodeProcess
from tests.commands import headgate
from tests.waiting import until

TAP = Path(__file__).parent.parent / "connectors" / "bridge_tap.py"
INSTALLED = "/api/connectors/installed"
COUNT = 3000
SLOW = 1500  # Some seconds of each stream.
TABLES = {"users": "raw.users", "public-orders": "raw.public_orders"}
WRONG = [
    "tap-test",
    "npm:tap-test",
    "singer:",
    "singer:--index-url=http://example.com",
    "singer:-r/etc/passwd",
    "singer:./tap",
    "singer:/tmp/tap",
    "singer:git+https://example.com/tap",
    "singer:tap @ https://example.com/tap.zip",
    "singer:tap-test>=1",
    "singer:tap-test==1 --pre",
    "singer:tap-test; python_version>'3'",
    "singer:tap\ntest",
    "singer:täp",
]


def make_wheel(folder: Path) -> None:
    """A package with the tap of the tests in it."""
    info = "tap_test-1.2.dist-info"
    files = {
        "tap_test.py": TAP.read_text(),
        f"{info}/METADATA": "Metadata-Version: 2.1\nName: tap-test\nVersion: 1.2\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/entry_points.txt": "[console_scripts]\ntap-test = tap_test:main\n",
    }
    files[f"{info}/RECORD"] = "".join(f"{name},,\n" for name in [*files, f"{info}/RECORD"])
    with zipfile.ZipFile(folder / "tap_test-1.2-py3-none-any.whl", "w") as wheel:
        for name, text in files.items():
            wheel.writestr(name, text)


def install(node: NodeProcess, package: str) -> str | None:
    """Why it failed; None: it is installed."""
    begun = node.call("POST", INSTALLED, {"package": package})
    deadline_s = time.monotonic() + LONG_S
    while time.monotonic() < deadline_s:
        now = node.call("GET", INSTALLED)["installing"]
        if now is None or now["began_at"] != begun["began_at"]:
            return None
        if now["error"] is not None:
            return str(now["error"])
        time.sleep(0.1)
    raise TimeoutError(package)


def document(url: str | dict[str, str], marker: Path) -> dict[str, Any]:
    """A tap that hangs in the middle, the first time."""
    tuning = {"fault": "hang", "fault_at": COUNT // 2, "marker": str(marker)}
    return {
        "source": {"type": "singer", "tap": "tap-test", "config": {"count": COUNT}, "tuning": tuning},
        "mapping": {"set": {"id": "id", "text": "text", "stream": "meta.stream"}, "key": "id"},
        "sink": {"type": "postgres", "url": url, "table": "orders", "mode": "upsert"},
    }


@pytest.mark.asyncio
async def test_a_tap_is_installed_and_goes_on_from_its_state_when_its_node_is_killed(
    start_node: Callable[..., NodeProcess], url: str, tmp_path: Path
) -> None:
    make_wheel(tmp_path)
    node = start_node(environment={"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(tmp_path)})
    for wrong in WRONG:
        assert node.request("POST", INSTALLED, json={"package": wrong}).status_code == 422, wrong
    connectors = node.home / "connectors"
    assert "tap-nowhere" in str(install(node, "singer:tap-nowhere"))
    assert list((connectors / "environments").iterdir()) == []
    before = node.request("POST", "/api/apply", json={"datasources": {"orders": document(url, tmp_path)}})
    assert "headgate connectors install singer:tap-test" in before.text
    done = headgate(node.home, "connectors", "install", "singer:tap-test==1.2")
    assert done.stdout == "installed singer:tap-test==1.2, version 1.2\n", done.stderr
    assert "installing tap-test==1.2" in done.stderr
    (line,) = node.call("GET", INSTALLED)["items"]
    assert (line["name"], line["version"], line["program"]) == ("tap-test", "1.2", "tap-test")
    shown = headgate(node.home, "connectors", "show", "singer:tap-test").stdout
    assert "tap-test==1.2" in shown

    node.call("PUT", "/api/secrets/warehouse", {"value": url})
    node.apply({"orders": document({"$secret": "warehouse"}, tmp_path / "hung")})
    connection = await asyncpg.connect(url)
    await until(lambda: _has(connection, COUNT // 2))
    assert node.request("DELETE", f"{INSTALLED}/singer/tap-test").json()["code"] == "in_use"
    (environment,) = (connectors / "environments").iterdir()
    node.call("POST", INSTALLED, {"package": "singer:tap-test"})
    await until(lambda: len(list((connectors / "environments").iterdir())) == 2)
    assert _programs(connectors)
    node.end(signal.SIGKILL)
    await until(lambda: not _programs(connectors) and not list((connectors / "runs").iterdir()))
    # What was durable long before the kill is not read again: it goes on from a state.
    await connection.execute("DELETE FROM orders WHERE id < 100")
    again = start_node()
    assert list((connectors / "environments").iterdir()) == [environment]  # The other was not finished.
    await until(lambda: _has(connection, COUNT - 100))
    assert [row["id"] for row in await connection.fetch("SELECT id FROM orders ORDER BY id")] == list(range(100, COUNT))
    assert await connection.fetchval("SELECT DISTINCT stream FROM orders") == "orders"
    assert "singer:tap-test" in headgate(again.home, "connectors", "list").stdout
    assert headgate(again.home, "connectors", "remove", "singer:tap-test", "--yes").returncode == 0
    assert again.call("GET", INSTALLED)["items"] == []
    await connection.close()


@pytest.mark.asyncio
async def test_the_tables_of_two_streams_and_the_position_agree_after_each_kill(
    start_node: Callable[..., NodeProcess], url: str, tmp_path: Path
) -> None:
    """Rows are inserted and not upserted: one that is written twice would be there twice."""
    make_wheel(tmp_path)
    connection = await asyncpg.connect(url)
    await connection.execute("CREATE SCHEMA raw")
    node = start_node(environment={"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(tmp_path)})
    assert install(node, "singer:tap-test") is None
    node.call("PUT", "/api/secrets/warehouse", {"value": url})
    config = {"count": SLOW, "streams": list(TABLES), "in_turns": True}
    source = {"type": "singer", "tap": "tap-test", "config": config, "tuning": {"pause_s": 0.002}}
    sink = {"type": "postgres", "url": {"$secret": "warehouse"}, "table": "raw.{stream}"}
    node.apply({"orders": {"source": source, "sink": sink}})
    for turn, locked in enumerate(TABLES.values(), 1):
        await until(lambda: _is_at(connection, turn * SLOW // 4))  # noqa: B023
        await connection.execute(f"BEGIN; LOCK TABLE {locked} IN SHARE ROW EXCLUSIVE MODE")
        await until(lambda: _waits(connection))  # Perhaps it has written the other table by then.
        node.end(signal.SIGKILL)
        await connection.execute("ROLLBACK")
        stands = await _stands(connection)
        assert stands["users"] < SLOW - 1, "it was killed in the middle"
        for stream, table in TABLES.items():
            rows = await connection.fetch(f"SELECT id FROM {table} ORDER BY id")
            assert [row["id"] for row in rows] == list(range(stands[stream] + 1)), (stream, stands)
        node = start_node()
    await until(lambda: _is_at(connection, SLOW - 1))
    for stream, table in TABLES.items():
        rows = await connection.fetch(f"SELECT id, text FROM {table} ORDER BY id")
        assert [tuple(row) for row in rows] == [(id, f"{stream} {id}") for id in range(SLOW)]
    await connection.close()


async def _stands(connection: asyncpg.Connection) -> dict[str, int]:
    """Where each stream stands, by the position."""
    if await connection.fetchval("SELECT to_regclass('headgate_position')") is None:
        return {}
    found = json.loads(await connection.fetchval("SELECT position FROM headgate_position WHERE epoch > 0") or "{}")
    return dict(found.get("state") or {})


async def _waits(connection: asyncpg.Connection) -> bool:
    """Whether a write waits for a table."""
    query = "SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted AND relation = ANY ($1::text[]::regclass[]))"
    return bool(await connection.fetchval(query, list(TABLES.values())))


async def _is_at(connection: asyncpg.Connection, id: int) -> bool:
    stands = await _stands(connection)
    return len(stands) == len(TABLES) and min(stands.values()) >= id


async def _has(connection: asyncpg.Connection, count: int) -> bool:
    if await connection.fetchval("SELECT to_regclass('orders')") is None:
        return False
    return int(await connection.fetchval("SELECT count(*) FROM orders")) >= count


def _programs(connectors: Path) -> list[int]:
    """The processes that run in an environment of these."""
    found = []
    for name in filter(str.isdecimal, os.listdir("/proc")):
        try:
            command = Path(f"/proc/{name}/cmdline").read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if f"{connectors}/environments/" in command:
            found.append(int(name))
    return found
