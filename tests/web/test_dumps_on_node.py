"""`headgate dumps` through a node, and `headgate dump … --on URL`, at a real node with real databases."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from typer.testing import CliRunner, Result

from headgate.cli import app
from tests.waiting import LONG_S, wait_until
from tests.web_node import Databases, Web, _fetch, execute, numbers

ROWS = 2000
SLOW = ("--rate", "300", "--chunk-rows", "50")

Command = Callable[..., Result]


@pytest.fixture(scope="module")
def source(databases: Databases) -> str:
    url = databases.make()
    asyncio.run(
        execute(
            url,
            "CREATE TABLE orders (id integer PRIMARY KEY, name text);"
            f"INSERT INTO orders SELECT n, 'name ' || n FROM generate_series(1, {ROWS}) n",
        )
    )
    return url


@pytest.fixture(scope="module")
def target(databases: Databases) -> str:
    return databases.make()


@pytest.fixture
def table() -> str:
    """A table of the target that no other test uses."""
    return f"copy_{next(numbers)}"


@pytest.fixture
def run(web: Web, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Command:
    """A command on a machine that knows nothing of the node but its address and the token."""
    for name in [name for name in os.environ if name.startswith("HEADGATE_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HEADGATE_HOME", str(tmp_path / "nothing"))
    monkeypatch.setenv("HEADGATE_TOKEN", web.node.token)
    monkeypatch.setenv("HEADGATE_URL", web.node.url)

    def invoke(*arguments: str) -> Result:
        result = CliRunner().invoke(app, list(arguments))
        assert "Traceback" not in result.output
        assert "a bug" not in result.output
        assert not (tmp_path / "nothing").exists(), "nothing is made on the machine that only asks"
        return result

    return invoke


@pytest.fixture
def dump(run: Command, web: Web, source: str, target: str, table: str) -> Command:
    """`headgate dump … --on` that node, unless told otherwise."""

    def invoke(*arguments: str, source: str = source, target: str = target) -> Result:
        return run("dump", source, target, "--table", f"orders={table}", "--on", web.node.url, *arguments)

    return invoke


def rows(url: str, table: str) -> list[tuple[Any, ...]]:
    return [tuple(row) for row in asyncio.run(_fetch(url, f"SELECT id, name FROM {table} ORDER BY id"))]


def until(web: Web, id: str, is_so: Callable[[Any], bool]) -> Any:
    return web.until(lambda: web.call("GET", f"/api/dumps/{id}"), is_so)


def one_line(result: Result) -> str:
    """What was said of an error: a line, and nothing else."""
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    return line


# A node does it.


def test_a_node_runs_the_dump_and_the_command_says_how_it_went(
    dump: Command, web: Web, source: str, target: str, table: str
) -> None:
    done = dump("--workers", "1", "--chunk-rows", "500", "--json")
    assert done.exit_code == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["status"], found["rows"], found["chunks"], found["place"]) == ("completed", ROWS, 4, "nodes")
    assert rows(target, table) == rows(source, "orders")
    again = dump()
    assert again.exit_code == 4
    assert one_line(again) == f"headgate: {table} has rows already (--yes appends; or --mode replace, --mode upsert)"


def test_a_dump_that_is_left_to_the_node_is_looked_at_hurried_paused_and_resumed_through_it(
    dump: Command, run: Command, web: Web, source: str, target: str, table: str
) -> None:
    begun = dump("--detach", "--json", *SLOW)
    assert begun.exit_code == 0, begun.stderr
    id = json.loads(begun.stdout)["id"]
    until(web, id, lambda one: one["rows"] > 0)
    assert json.loads(run("dumps", "list", "--json").stdout)["items"][0]["id"] == id
    assert "running" in run("dumps", "show", id[:13]).stdout
    assert run("dumps", "pause", id).stdout == f"dump {id[:13]} is paused\n"
    assert run("dumps", "delete", id).exit_code == 4
    assert run("dumps", "rate", id, "max").stdout == f"dump {id[:13]} may copy as much as it can a second\n"
    assert run("dumps", "resume", id).stdout == f"dump {id[:13]} is running\n"
    until(web, id, lambda one: one["status"] == "completed")
    assert rows(target, table) == rows(source, "orders")
    history = run("dumps", "history", id, "--json", "--limit", "3")
    assert [one["notification"] for one in json.loads(history.stdout)["items"]] == ["completed"] * 3
    assert "--after" in history.stderr


def test_a_dump_is_verified_and_repaired_by_the_node(dump: Command, run: Command, target: str, table: str) -> None:
    id = json.loads(dump("--json").stdout)["id"]
    equal = run("dumps", "verify", id)
    assert (equal.exit_code, equal.stdout.partition(":")[0]) == (0, "equal")
    asyncio.run(execute(target, f"UPDATE {table} SET name = 'x' WHERE id = 7"))
    different = run("dumps", "verify", id, "--json")
    assert different.exit_code == 1
    found = json.loads(different.stdout)
    assert (found["id"], found["verdict"], len(found["different"])) == (id, "different", 1)
    assert "; repaired" in run("dumps", "verify", id, "--repair").stdout
    asyncio.run(execute(target, f"DROP TABLE {table}"))
    missing = run("dumps", "verify", id)
    assert missing.exit_code == 1
    assert f"the target has no table {table}" in missing.stdout


def test_dumps_that_are_over_are_cancelled_and_cleaned_through_the_node(dump: Command, run: Command, web: Web) -> None:
    id = json.loads(dump("--detach", "--json", "--mode", "replace", *SLOW).stdout)["id"]
    until(web, id, lambda one: one["rows"] > 0)
    assert run("dumps", "cancel", id).exit_code == 0
    until(web, id, lambda one: one["status"] == "cancelled")
    assert "Nobody is here to answer" in one_line(run("dumps", "forget"))
    assert json.loads(run("dumps", "forget", "--yes", "--older", "1", "--json").stdout)["ids"] == []
    assert id in json.loads(run("dumps", "forget", "--yes", "--json").stdout)["ids"]
    assert run("dumps", "show", id).exit_code == 3


def test_ctrl_c_leaves_the_dump_to_the_node_and_says_how_to_follow(
    web: Web, source: str, target: str, table: str, tmp_path: Path
) -> None:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("HEADGATE_")}
    words = ["dump", source, target, "--table", f"orders={table}", "--on", web.node.url, *SLOW]
    process = subprocess.Popen(
        [sys.executable, "-m", "headgate.cli", *words],
        env={**inherited, "HEADGATE_TOKEN": web.node.token, "HEADGATE_HOME": str(tmp_path)},
        cwd=tmp_path,
        stderr=subprocess.PIPE,
        text=True,
    )

    def begun() -> list[str]:
        return [
            one["id"] for one in web.call("GET", "/api/dumps")["items"] if one["status"] == "running" and one["rows"]
        ]

    wait_until(lambda: bool(begun()))
    (id,) = begun()
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=LONG_S)
    assert process.returncode == 130
    follow = f"headgate dumps show {id[:13]} --url {web.node.url}"
    assert said.splitlines()[-1] == f"headgate: the dump goes on without us ({follow})"
    web.call("PUT", f"/api/dumps/{id}/rate", {"rate": None})
    until(web, id, lambda one: one["status"] == "completed")


def test_a_table_that_fails_is_said_once_with_its_reason_and_the_exit_code_is_that_of_a_failure(
    dump: Command, web: Web, target: str, table: str
) -> None:
    asyncio.run(execute(target, f"CREATE TABLE {table} (id integer PRIMARY KEY, name text CHECK (id <> 700))"))
    failed = dump("--chunk-rows", "500")
    assert failed.exit_code == 1
    assert "orders has failed" in failed.stderr
    assert "incomplete: orders could not be copied (headgate dumps resume " in failed.stderr
    assert failed.stderr.rstrip().endswith(f"--url {web.node.url})")


# What cannot be.


def test_errors_are_one_line_and_have_the_codes_of_a_local_dump(
    dump: Command, run: Command, web: Web, tmp_path: Path
) -> None:
    assert dump("--on", "http://127.0.0.1:9").exit_code == 1
    assert "no node answers" in one_line(dump("--on", "http://127.0.0.1:9"))
    assert "--storage" in one_line(dump("--storage", "a:b"))
    assert "--database" in one_line(dump("--database", "postgresql://x/y"))
    assert dump("--table", "nothing").exit_code == 3
    assert run("dumps", "show", "../tokens").exit_code == 3
    assert run("dumps", "show", "ffffffff").exit_code == 3
    both = run("dumps", "list", "--url", "http://127.0.0.1:9", "--database", "postgresql://x/y")
    assert (both.exit_code, "not both" in one_line(both)) == (2, True)
    assert run("dumps", "resume", "ffff", "--here").exit_code == 2


def test_the_database_that_is_named_counts_more_than_the_node_of_the_environment(run: Command, web: Web) -> None:
    listed = run("dumps", "list", "--database", web.database, "--json")
    assert listed.exit_code == 0, listed.stderr
    assert "items" in json.loads(listed.stdout)


# Who may reach what.


def test_an_operator_reaches_with_a_dump_only_what_an_admin_has_allowed(
    dump: Command, web: Web, source: str, target: str, table: str
) -> None:
    operator = ("--token", web.token("operator"))
    refused = dump(*operator)
    assert refused.exit_code == 4
    assert "an admin may publish it, or allow it" in one_line(refused)
    assert dump("--token", web.token("viewer")).exit_code == 4
    assert dump(*operator, source="csv:/etc").exit_code == 4
    assert dump(*operator, source=f"csv:{web.node.home}").exit_code == 4
    socket = parse_qs(urlsplit(source).query)["host"][0]
    web.call("POST", "/api/allowed", {"kind": "folder", "value": socket})
    try:
        assert dump(*operator).exit_code == 0
    finally:
        web.call("DELETE", "/api/allowed", params={"kind": "folder", "value": socket})
    assert rows(target, table) == rows(source, "orders")


def test_a_secret_stands_for_a_url_that_nobody_sees(
    dump: Command, run: Command, web: Web, source: str, target: str, table: str
) -> None:
    name = f"place-{next(numbers)}"
    web.call("PUT", f"/api/secrets/{name}-source", {"value": source})
    web.call("PUT", f"/api/secrets/{name}", {"value": target.replace("headgate@", "headgate:hunter2@")})
    urls = {"source": f"${{secret:{name}-source}}", "target": f"${{secret:{name}}}"}
    refused = dump("--token", web.token("operator"), **urls)
    assert refused.exit_code == 4
    assert f"with secret '{name}-source' no datasource could read" in one_line(refused)
    done = dump("--json", **urls)
    assert done.exit_code == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["source"], found["target"]) == (urls["source"], urls["target"])
    assert rows(target, table) == rows(source, "orders")
    assert run("dumps", "verify", found["id"]).exit_code == 0
    assert "hunter2" not in web.node.log()


def test_an_operator_writes_by_a_secret_where_a_sink_could(
    dump: Command, web: Web, source: str, target: str, table: str
) -> None:
    name = f"sink-{next(numbers)}"
    web.call("PUT", f"/api/secrets/{name}", {"value": target})
    outside = web.node.home.parent / f"in-{next(numbers)}"  # A node's own folder is out of reach.
    outside.mkdir()
    (outside / "orders.csv").write_text("id,name\n1,a\n")
    web.call("POST", "/api/allowed", {"kind": "folder", "value": str(outside)})
    token = web.token("operator")
    done = dump("--token", token, source=f"csv:{outside}", target=f"${{secret:{name}}}")
    assert done.exit_code == 0, done.stderr
    assert [tuple(map(str, row)) for row in rows(target, table)] == [("1", "a")]


@pytest.mark.parametrize(
    ("value", "url", "said"),
    [
        ("just-a-key-of-mine", "${secret:NAME}", "secret 'NAME' is not the URL of a storage"),
        ("just-a-key-of-mine", "postgresql://me:${secret:NAME}@evil.example/db", "a secret stands for a whole URL"),
        ("csv:/etc", "${secret:NAME}", "/etc is in no folder that may be reached"),
        ("mysql://db.example/shop", "${secret:NAME}", "with secret 'NAME' no datasource could read"),
        (None, "${secret:NAME}", "secret 'NAME' does not exist"),
    ],
)
def test_a_secret_is_sent_nowhere_and_leads_to_no_file(
    dump: Command, web: Web, value: str | None, url: str, said: str
) -> None:
    name = f"other-{next(numbers)}"
    if value is not None:
        web.call("PUT", f"/api/secrets/{name}", {"value": value})
    refused = dump("--token", web.token("operator"), source=url.replace("NAME", name))
    assert refused.exit_code in (3, 4)
    assert said.replace("NAME", name) in one_line(refused)
    assert "just-a-key" not in refused.output + web.node.log()


def test_a_secret_is_read_by_nodes_only(run: Command, web: Web, target: str) -> None:
    refused = run("dump", "${secret:place}", target, "--database", web.database)
    assert refused.exit_code == 3
    assert "--on URL" in one_line(refused)
