"""What is shipped: the sdist builds the wheel, the wheel has everything, and runs where there is no source tree."""

from __future__ import annotations

import json
import os
import signal
import site
import subprocess
import sys
import tarfile
import zipfile
from email import message_from_string
from pathlib import Path

import httpx
import pytest

from headgate.cli import home as homes
from tests.waiting import LONG_S, wait_until

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "headgate"
ORDER = {"kind": "order", "id": 7, "user": {"email": "Ada@example.org"}, "total": 9.5}


def build(folder: Path, target: str, out: Path) -> Path:
    """Have the tree in this folder make its wheel or its sdist."""
    done = subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", target, "-d", str(out)],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=LONG_S,
    )
    assert done.returncode == 0, done.stderr
    return next(out.glob("*.whl" if target == "wheel" else "*.tar.gz"))


def shipped() -> set[str]:
    """What there is in the source tree, compiled modules apart."""
    return {
        str(path.relative_to(SOURCE.parent))
        for path in SOURCE.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(ROOT, "sdist", tmp_path_factory.mktemp("sdist"))


@pytest.fixture(scope="module")
def wheel(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Made of the sdist and nothing else."""
    folder = tmp_path_factory.mktemp("unpacked")
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    (tree,) = folder.iterdir()
    return build(tree, "wheel", tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def program(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`headgate` of a fresh environment. Dependencies are those of this one, which would take minutes to install."""
    folder = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True, timeout=LONG_S)
    python = folder / "bin" / "python"
    words = [sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--no-index", "-q", wheel]
    subprocess.run(words, check=True, timeout=LONG_S)
    (packages,) = (folder / "lib").glob("python*/site-packages")
    known = [path for path in (*site.getsitepackages(), *sys.path) if path.endswith("site-packages")]
    (packages / "dependencies.pth").write_text("\n".join(dict.fromkeys(known)) + "\n")
    return folder / "bin" / "headgate"


def test_the_sdist_has_what_it_needs_and_nothing_else(sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        found = {name.partition("/")[2] for name in archive.getnames()}
    around = {"README.md", "LICENSE", "CHANGELOG.md", "constraints.txt", "pyproject.toml", "PKG-INFO", ".gitignore"}
    assert found == {f"src/{name}" for name in shipped()} | around


def test_the_wheel_has_every_file_of_the_package_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        found = {name for name in archive.namelist() if ".dist-info/" not in name}
        about = message_from_string(
            archive.read(next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))).decode()
        )
    assert found == shipped()
    for part in ("demo.yaml", "py.typed", "store/sql/logs/page.sql", "web/console/static/", "web/console/templates/"):
        assert any(name.startswith(f"headgate/{part}") for name in found), part
    assert {"embedded", "otel", "kafka", "redis", "dump"} <= set(about.get_all("Provides-Extra") or [])
    assert about["Requires-Python"] == ">=3.11"
    assert about["License-Expression"] == "Apache-2.0"


def test_a_node_of_the_wheel_starts_and_moves_a_webhook(program: Path, tmp_path: Path) -> None:
    """With the embedded database, in an empty folder, and without anything of this tree on its path."""
    inherited = {key: value for key, value in os.environ.items() if not key.startswith(("HEADGATE_", "PYTHON"))}
    surroundings = {**inherited, "HEADGATE_HOME": str(tmp_path / "home")}

    def said(*words: str) -> str:
        done = subprocess.run(
            [program, *words], cwd=tmp_path, env=surroundings, capture_output=True, text=True, timeout=LONG_S
        )
        assert done.returncode == 0, f"{words}: {done.stderr}"
        return done.stdout

    where = [program.with_name("python"), "-c", "import headgate; print(headgate.__file__)"]
    place = subprocess.run(where, cwd=tmp_path, env=surroundings, capture_output=True, text=True, timeout=LONG_S)
    assert place.stdout.startswith(str(program.parents[1]))
    with (tmp_path / "node.log").open("wb") as log:
        node = subprocess.Popen(
            [program, "up", "--port", "0", "--demo"], cwd=tmp_path, env=surroundings, stdout=log, stderr=log
        )
    try:
        url = wait_until(lambda: next((one.url for one in homes.places(tmp_path / "home")), None), "it starts")
        token = (tmp_path / "home" / "token").read_text().strip()
        with httpx.Client(base_url=url, headers={"Authorization": f"Bearer {token}"}, timeout=LONG_S) as client:
            assert wait_until(lambda: client.post("/hooks/demo-orders", json=ORDER).status_code == 202)
            wait_until(lambda: "demo-orders" in client.get("/").text, "the console shows it")
            assert client.get("/static/console.css").status_code == 200
        wait_until(lambda: json.loads(said("ds", "show", "demo-orders", "--json"))["metrics"]["records_written"])
        rows = said("sql", "SELECT email FROM demo_orders WHERE id = 7", "--json")
        assert json.loads(rows.splitlines()[0]) == {"email": "ada@example.org"}
        node.send_signal(signal.SIGTERM)
        assert node.wait(LONG_S) == 0, (tmp_path / "node.log").read_text()
    finally:
        node.kill()
        node.wait()
