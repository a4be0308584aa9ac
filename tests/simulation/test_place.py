"""The simulator is a tool of the repository: it drives what is installed, and is not installed itself."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_wheel_has_the_package_and_not_the_simulator() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"] == ["src/headgate"]
    assert (ROOT / "simulation" / "__main__.py").is_file()
    assert not list((ROOT / "src").rglob("simulat*"))


def test_nothing_that_is_installed_imports_the_simulator() -> None:
    for path in (ROOT / "src").rglob("*.py"):
        assert not re.search(r"^\s*(from|import) simulation\b", path.read_text(), re.MULTILINE), path


def test_the_docs_and_the_makefile_name_files_that_exist() -> None:
    text = (ROOT / "docs" / "concepts" / "simulation.md").read_text()
    assert "python -m simulation" in text
    assert "python -m simulation" in (ROOT / "Makefile").read_text()
    for name in re.findall(r"`([a-z_]+\.py)`", text):
        assert (ROOT / "simulation" / name).is_file(), name
