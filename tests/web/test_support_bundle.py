"""A support bundle has what helps, and nothing that is nobody's business, however it is made."""

from __future__ import annotations

import json
import os
import stat
import zipfile
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from headgate.cli import app
from headgate.config import Settings
from headgate.runtime.support import shown
from tests.web_node import Web, numbers

KEY = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8="  # The node's, by `NodeProcess`.
PASSWORD = "correct-horse-battery"
SIGNATURE = "hook-secret-9d1f"
RECORD = "Hemlock-4711"
HERE = {"about", "settings", "server", "migrations", "tables", "nodes", "datasources", "streams", "doctor", "missing"}


@pytest.fixture(autouse=True)
def surroundings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that knows nothing of the node."""
    for name in [name for name in os.environ if name.startswith("HEADGATE_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HEADGATE_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def messy(web: Web) -> str:
    """Secrets in a URL that fails and in a signature; a record that became a letter, and one that is a position."""
    name = f"messy-{next(numbers)}"
    url = f"postgresql://ada:{PASSWORD}@127.0.0.1:1/none"
    for secret, value in ((f"{name}-url", url), (f"{name}-hook", SIGNATURE)):
        web.call("PUT", f"/api/secrets/{secret}", {"value": value})
    signed = {"scheme": "github", "secret": {"$secret": f"{name}-hook"}}
    web.publish(f"{name}-signed", source={"type": "webhook", "signature": signed})
    sink = {"type": "postgres", "url": {"$secret": f"{name}-url"}, "table": "t"}
    web.call(
        "POST",
        "/api/apply?connect=false",
        {"datasources": {name: {"source": {"type": "generator", "rate": 1}, "sink": sink}}},
    )
    web.wait_for(name, lambda d: d["error"] is not None)
    web.until(lambda: web.call("GET", f"/api/datasources/{name}/logs?follow=false")["items"], bool)
    web.publish(f"{name}-dead", source={"type": "webhook"}, mapping={"set": {"n": "1 / n"}})
    web.opened(f"{name}-dead")
    web.call("POST", f"/hooks/{name}-dead", {"n": 0, "note": RECORD})
    web.wait_for(f"{name}-dead", lambda d: d["metrics"]["records_dead_lettered"] == 1)
    web.call("POST", f"/api/datasources/{name}-dead/stop")
    web.until(lambda: web.show(f"{name}-dead"), lambda d: d["detail"] == "stopped")
    web.call("PUT", f"/api/streams/{name}-dead:0/position", {"position": RECORD, "yes": True})
    return name


def run(*words: str) -> Result:
    found = CliRunner().invoke(app, ["support-bundle", *words])
    assert "a bug" not in found.output
    return found


def contents(path: Path) -> dict[str, str]:
    with zipfile.ZipFile(path) as packed:
        assert packed.testzip() is None
        return {name: packed.read(name).decode() for name in packed.namelist()}


def check_clean(found: dict[str, str], web: Web) -> None:
    """Each file, for each thing that must not be in it, also as it would be escaped or encoded."""
    for name, text in found.items():
        for wrong in (PASSWORD, SIGNATURE, RECORD, KEY, web.node.token):
            assert wrong not in text, f"{name} shows {wrong}"
            assert wrong.encode().hex() not in text


def named(found: dict[str, str], part: str) -> Any:
    return json.loads(found[f"{part}.json"])


def test_through_a_node_it_tells_how_everything_stands_and_no_secret(web: Web, messy: str, tmp_path: Path) -> None:
    done = run("bundle.zip", "--url", web.node.url, "--token", web.node.token)
    assert done.exit_code == 0, done.output
    path = tmp_path / "bundle.zip"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    found = contents(path)
    check_clean(found, web)
    assert {name.partition(".")[0] for name in found} == {*HERE, "README", "events", "logs", "metrics", "ready"}
    streams = {one["name"]: one for one in named(found, "streams")}
    assert streams[f"{messy}:0"]["worker_status"] in ("ERROR", "STARTING")
    assert "position" not in streams[f"{messy}-dead:0"]
    assert streams[f"{messy}-dead:0"]["records_dead_lettered"] == 1
    assert named(found, "settings")["master_key"] == "set"
    assert named(found, "server")["version"].startswith("PostgreSQL")
    assert named(found, "migrations")[0]["number"] == 1
    events = [json.loads(line) for line in found["events.jsonl"].splitlines()]
    edited = next(one for one in events if one["type"] == "position_edited" and one["name"] == f"{messy}-dead")
    assert edited["payload"]["after"] == "not shown"
    assert any(json.loads(line)["name"] == messy for line in found["logs.jsonl"].splitlines())
    assert "headgate_records_dead_lettered_total" in found["metrics.txt"]
    again = run("bundle.zip", "--url", web.node.url, "--token", web.node.token)
    assert (again.exit_code, again.stderr) == (4, "headgate: bundle.zip exists (name another file)\n")


def test_straight_from_the_database_it_tells_the_same(
    web: Web, messy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADGATE_MASTER_KEY", KEY)
    done = run("straight.zip", "--database", web.database, "--json")
    assert done.exit_code == 0, done.output
    found = contents(tmp_path / "straight.zip")
    check_clean(found, web)
    assert json.loads(done.stdout)["missing"] == {}
    assert {name.partition(".")[0] for name in found} == {*HERE, "README", "events", "logs"}
    assert any(one["state"] == "ok" and one["name"] == "schema" for one in named(found, "doctor"))


def test_only_an_admin_gets_it_from_a_node(web: Web, tmp_path: Path) -> None:
    done = run("no.zip", "--url", web.node.url, "--token", web.token("operator"))
    assert done.exit_code == 4
    assert "this needs admin" in done.stderr
    assert not (tmp_path / "no.zip").exists()


def test_where_there_is_nothing_it_says_so(tmp_path: Path) -> None:
    done = run("no.zip", "--url", "http://127.0.0.1:1")
    assert done.exit_code == 1
    assert "no node answers" in done.stderr
    assert not (tmp_path / "no.zip").exists()


def test_of_a_setting_that_is_secret_only_that_it_is_set_is_told() -> None:
    settings = Settings(database=f"postgresql://ada:{PASSWORD}@db.example.org/x", master_key=KEY)
    told = shown(settings)
    assert told["master_key"] == "set"
    assert "db.example.org" in str(told["database"])
    assert PASSWORD not in str(told)
