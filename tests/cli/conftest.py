"""Commands run against a fake node, in a folder and an environment of their own."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_node import FakeNode, Run
from typer.testing import CliRunner, Result

from headgate.cli import app


@pytest.fixture
def node() -> Iterator[FakeNode]:
    fake = FakeNode()
    yield fake
    fake.close()


@pytest.fixture
def home(tmp_path: Path) -> Path:
    folder = tmp_path / "home"
    folder.mkdir()
    return folder


@pytest.fixture(autouse=True)
def surroundings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, home: Path) -> None:
    """Nothing of the machine's own Headgate is seen, and the terminal has 80 columns."""
    for name in [name for name in os.environ if name.startswith("HEADGATE_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HEADGATE_HOME", str(home))
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def run(node: FakeNode, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run a command against the fake node. No result has a traceback, whatever happens."""
    monkeypatch.setenv("HEADGATE_URL", node.url)

    def invoke(*arguments: str, input: str | None = None) -> Result:
        result = CliRunner().invoke(app, list(arguments), input=input)
        assert "Traceback" not in result.output
        assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
        return result

    return invoke
