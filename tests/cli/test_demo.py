"""The demo comes with one word, shows what it says, and goes with another, without what is not the demo's."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from headgate.cli.demo import documents_for
from headgate.store.demo_user import DEMO
from headgate.store.embedded import EmbeddedServer
from headgate.testing.processes import NodeProcess
from tests.waiting import wait_until
from tests.web_node import Databases, _fetch

ORDER = {"kind": "order", "id": 7, "user": {"email": "Ada@example.org"}, "total": 9.5}
TABLES = "SELECT tablename FROM pg_tables WHERE schemaname = 'public'"


@pytest.fixture
def database(server: EmbeddedServer) -> Iterator[str]:
    made = Databases(server)
    yield made.make()
    made.drop()


@contextmanager
def up(home: Path, database: str, *flags: str, token: str = "") -> Iterator[NodeProcess]:
    """A node for the time of a block, which ends as people end it."""
    node = NodeProcess.start(home, database=database, flags=flags, token=token)
    try:
        yield node
        assert node.end(signal.SIGTERM) == 0, node.log()
    finally:
        node.end(signal.SIGKILL)


def rows(database: str, query: str, *args: Any) -> list[Any]:
    return asyncio.run(_fetch(database, query, *args))


def tables(database: str) -> set[str]:
    return {row["tablename"] for row in rows(database, TABLES)}


def names(node: NodeProcess) -> set[str]:
    return {one["name"] for one in node.call("GET", "/api/datasources")["items"]}


def users(database: str) -> int:
    """How many users of a demo own or may use anything here."""
    query = "SELECT count(*) AS n FROM pg_shdepend WHERE refclassid = 'pg_authid'::regclass AND refobjid IN"
    query += " (SELECT oid FROM pg_roles WHERE rolname LIKE 'headgate_demo_%')"
    query += " AND dbid = (SELECT oid FROM pg_database WHERE datname = current_database())"
    return int(rows(database, query)[0]["n"])


def test_the_demo_comes_shows_what_it_says_and_goes_again(tmp_path: Path, database: str) -> None:
    home = tmp_path / "home"
    with up(home, database, "--demo") as node:
        token = node.token
        node.wait_for("demo-clicks", lambda d: d["metrics"]["records_written"] > 20)
        node.wait_for("demo-status", lambda d: d["metrics"]["records_written"] > 0)
        poison = node.wait_for("demo-poison", lambda d: d["metrics"]["records_read"] == 100)
        assert (poison["metrics"]["records_written"], poison["letters"]["open"]) == (99, 1)
        assert node.call("POST", "/hooks/demo-orders", ORDER)
        node.wait_for("demo-orders", lambda d: d["metrics"]["records_written"] == 1)
        assert {"status": "ok"}.items() <= dict(rows(database, "SELECT * FROM demo_status")[0]).items()
        assert tables(database) >= {*DEMO} - {"demo_broker"}
        # Somebody's own, into the same database; and one of the demo's that somebody has made his own.
        node.call("PUT", "/api/secrets/mine", {"value": database})
        sink = {"type": "postgres", "url": {"$secret": "mine"}, "table": "mine"}
        node.apply({"mine": {"source": {"type": "generator", "rate": 10}, "sink": sink}})
        node.wait_for("mine", lambda d: d["metrics"]["records_written"] > 0)
        orders = node.call("GET", "/api/datasources/demo-orders")["published"]["document"]
        node.apply({"demo-orders": {**orders, "description": "mine now"}})
    with up(home, database, "--no-demo", token=token) as node:
        wait_until(lambda: names(node) == {"mine", "demo-orders"})
        wait_until(lambda: "the demo is not removed as a whole" in node.log())
        assert "demo-database" in json.dumps(node.call("GET", "/api/secrets"))
        assert node.call("POST", "/hooks/demo-orders", {**ORDER, "id": 8})
        node.wait_for("demo-orders", lambda d: d["metrics"]["records_written"] == 2)
        node.call("DELETE", "/api/datasources/demo-orders?yes=true")
    with up(home, database, "--no-demo", token=token) as node:
        wait_until(lambda: "the demo is removed" in node.log())
        assert "demo-database" not in json.dumps(node.call("GET", "/api/secrets"))
        assert tables(database) & {*DEMO} == set()
        assert {"mine", "headgate_position"} <= tables(database)
        assert users(database) == 0
        before = node.call("GET", "/api/datasources/mine")["metrics"]["records_written"]
        node.wait_for("mine", lambda d: d["metrics"]["records_written"] > before)


def test_a_node_that_shows_a_certificate_is_not_asked_by_the_demo() -> None:
    assert "demo-status" not in documents_for("https://127.0.0.1:8470")
    assert documents_for("http://127.0.0.1:9")["demo-status"].content.source["url"] == "http://127.0.0.1:9/healthz"
