"""`headgate connectors`: what is installed here, and a package to begin with."""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner

from headgate.cli import scaffold
from headgate.cli.connectors import _installed_page, app
from headgate.connectors import installed, plugins
from headgate.errors import ConfigError, Refused
from headgate.web.bodies.installed import InstalledConnector


def run(*args: str) -> str:
    done = CliRunner().invoke(app, args)
    assert done.exit_code == 0, done.output
    return done.output


@pytest.mark.parametrize("name", plugins.names())
def test_every_source_and_sink_says_how_often_a_record_arrives(name: str) -> None:
    promises = installed.promises_of(plugins.get(name))
    assert installed.UNKNOWN not in promises.values()
    sink = plugins.get(name).sink
    if sink is not None:
        assert sink.transactional == ("exactly once" in promises["sink"])


def test_what_is_installed_here_is_listed_without_a_node(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {one["name"]: one for one in msgspec.json.decode(run("list", "--here", "--json"))["items"]}
    assert found["postgres"]["promises"] == {"sink": "exactly once"}
    assert found["files"]["sides"] == ["source", "sink", "reader", "writer"]
    assert found["kafka"]["install"] == ""
    monkeypatch.setattr(installed, "_is_here", lambda package: package != "confluent-kafka")
    text = run("list", "--here")
    assert "pip install 'headgate[kafka]'" in text
    assert "pip install 'headgate[redis]'" not in text
    assert "at least once" in text


def test_an_extra_needs_what_the_extras_that_it_names_need(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(installed, "_is_here", lambda package: package != "pyarrow")
    assert installed.missing("mysql") == "pip install 'headgate[mysql]'"  # By way of `arrow`.
    assert installed.missing("webhook") == ""


@pytest.mark.parametrize("name", ["", "Kafka", "a--b", "-a", "a_b", "../a", "a" * 31, "9a", "a\n"])
def test_a_name_that_cannot_be_one_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be the name of a connector"):
        scaffold.make(name, str(tmp_path / "new"))
    assert not (tmp_path / "new").exists()


def test_what_exists_is_left_alone(tmp_path: Path) -> None:
    with pytest.raises(Refused, match="exists already"):
        scaffold.make("lines", str(tmp_path))
    with pytest.raises(Refused, match="'kafka' is installed already"):
        scaffold.make("kafka", str(tmp_path / "new"))
    assert not (tmp_path / "new").exists()
    assert not list(tmp_path.glob("*.toml"))


def test_a_new_package_passes_its_own_tests_and_checks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert "headgate_my_lines.py" in run("new", "my-lines")
    made, site = tmp_path / "headgate-my-lines", tmp_path / "site"
    install = ["pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--target", str(site), str(made)]
    try:
        _run(made, site, *install)
    except AssertionError:  # The builder may not be here: then as an editable install would leave it.
        site = _installed_in_place(made, site)
    assert "17 passed" in _run(made, site, "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(made))
    _run(made, site, "ruff", "check", "--no-cache", ".")
    _run(made, site, "ruff", "format", "--check", "--no-cache", ".")
    _run(made, site, "mypy", "--cache-dir", os.devnull)


def _installed_in_place(made: Path, site: Path) -> Path:
    info = site / "headgate_my_lines-0.1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: headgate-my-lines\nVersion: 0.1.0\n")
    (info / "entry_points.txt").write_text("[headgate.connectors]\nmy-lines = headgate_my_lines:CONNECTOR\n")
    return site


def _run(made: Path, site: Path, *command: str) -> str:
    source = str(Path(plugins.__file__).parents[2])
    path = os.pathsep.join([str(site), str(made), source])
    done = subprocess.run(
        [sys.executable, "-m", *command],
        cwd=made,
        env={**os.environ, "PYTHONPATH": path, "MYPYPATH": source},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout


def test_a_spec_that_somebody_else_wrote_is_shown_whatever_it_has_in_it() -> None:
    spec = {
        "properties": {"a": True, "b": {"$ref": "#/$defs/b"}, "c": {"enum": 1, "description": "\x1b[2J"}, "d": {}},
        "required": None,
        "$defs": {"b": {"anyOf": [{"$ref": "#/$defs/b"}, 7]}},
    }
    page = _installed_page(
        InstalledConnector(
            kind="singer",
            name="tap-x",
            version="1\x1b[31m",
            program="tap-x",
            installed_at=datetime.now(UTC),
            python="3.11",
            packages=["x==1\x1b[0m"],
            spec=spec,
        )
    )
    assert "\x1b" not in page
    assert [line.split()[1] for line in page.splitlines() if line.startswith("b ")] == ["any"]
