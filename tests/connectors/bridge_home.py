"""A home with connectors of the tests in it, installed without pip."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from headgate.connectors.bridges.installed import Home, Installed
from headgate.connectors.bridges.requirement import Kind

HERE = Path(__file__).parent


def put(
    home: Home, kind: Kind, name: str, script: Path, python: str = sys.executable, spec: dict[str, Any] | None = None
) -> Installed:
    """A script as a connector. It runs with this Python, which need not see what is installed there."""
    folder = home.environment(f"of-{name}")
    (folder / "bin").mkdir(parents=True, exist_ok=True)
    program = folder / "bin" / name
    flags = "-IS" if python == sys.executable else "-I"
    program.write_text(f"#!{python} {flags}\n{script.read_text()}")
    program.chmod(0o755)
    made = Installed(kind, name, "1.0", folder.name, name, [f"{name}==1.0"], "3.11", 0.0, spec)
    home.save(made)
    return made


def home_with_taps(path: Path) -> Home:
    """With `tap-test` in it, and used by this process."""
    home = Home.use(path)
    put(home, "singer", "tap-test", HERE / "bridge_tap.py")
    return home
