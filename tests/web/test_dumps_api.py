"""Dumps over HTTP, at a real node that runs them, from one real database to another."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from headgate.store.database import sql
from tests.web_node import Databases, Web, _fetch, bearer, execute, numbers, started

ROWS = 2000
SCHEMA = f"""
CREATE TABLE orders (id integer PRIMARY KEY, name text);
INSERT INTO orders SELECT n, 'name ' || n FROM generate_series(1, {ROWS}) n;
CREATE TABLE tags (id integer PRIMARY KEY, tag text);
INSERT INTO tags VALUES (1, 'a')
"""
SLOW = {"rate": "300", "chunk_rows": 50}

Body = dict[str, Any]


@pytest.fixture(scope="module")
def source(databases: Databases) -> str:
    url = databases.make()
    asyncio.run(execute(url, SCHEMA))
    return url


@pytest.fixture(scope="module")
def target(databases: Databases) -> str:
    return databases.make()


@pytest.fixture
def body(source: str, target: str) -> Body:
    """A dump into a table that no other test uses."""
    return {"source": source, "target": target, "tables": [f"orders=copy_{next(numbers)}"]}


def rows(url: str, table: str) -> list[Any]:
    return [tuple(row) for row in asyncio.run(_fetch(url, f"SELECT id, name FROM {table} ORDER BY id"))]


def until(web: Web, id: str, is_so: Callable[[Body], bool]) -> Body:
    return web.until(lambda: web.call("GET", f"/api/dumps/{id}"), is_so)


def begun(web: Web, body: Body) -> Body:
    """A dump of which some rows are copied."""
    made = web.call("POST", "/api/dumps", body)
    return until(web, made["id"], lambda one: one["rows"] > 0)


def table_of(body: Body) -> str:
    return str(body["tables"][0].partition("=")[2])


def test_a_dump_is_begun_run_by_a_node_looked_at_and_verified(web: Web, body: Body, source: str, target: str) -> None:
    made = web.call("POST", "/api/dumps", {**body, "chunk_rows": 500, "workers": 1})
    assert (made["status"], made["place"], made["tables"][0]["target"]) == ("waiting", "nodes", table_of(body))
    done = until(web, made["short"], lambda one: one["status"] == "completed")
    assert (done["rows"], done["share"], done["chunks_done"], done["error"]) == (ROWS, 1.0, 4, "")
    assert rows(target, table_of(body)) == rows(source, "orders")
    assert made["id"] in [one["id"] for one in web.call("GET", "/api/dumps")["items"]]
    chunks = web.call("GET", f"/api/dumps/{made['id']}/chunks?table=orders")["items"]
    assert [(one["chunk"], one["state"], one["rows"]) for one in chunks] == [(n, "done", 500) for n in (1, 2, 3, 4)]
    history = web.call("GET", f"/api/dumps/{made['id']}/history?limit=3")["items"]
    assert [one["notification"] for one in history] == ["completed"] * 3
    assert len(web.call("GET", f"/api/dumps/{made['id']}/history?after={history[-1]['id']}")["items"]) == 1
    assert web.ask("POST", f"/api/dumps/{made['id']}/verify").status_code == 202
    verified = until(web, made["id"], lambda one: one["verify"]["state"] != "running")["verify"]
    assert (verified["state"], verified["equal"], verified["rows"]) == ("done", True, ROWS)


def test_a_dump_is_paused_hurried_and_resumed(web: Web, body: Body, source: str, target: str) -> None:
    id = begun(web, {**body, **SLOW})["id"]
    assert web.call("POST", f"/api/dumps/{id}/pause")["status"] == "paused"
    assert web.call("PUT", f"/api/dumps/{id}/rate", {"rate": None})["rate"] is None
    assert web.call("POST", f"/api/dumps/{id}/resume")["status"] == "running"
    until(web, id, lambda one: one["status"] == "completed")
    assert rows(target, table_of(body)) == rows(source, "orders")


def test_a_dump_is_cancelled_and_what_it_built_beside_is_gone(web: Web, body: Body, target: str) -> None:
    id = begun(web, {**body, **SLOW, "mode": "replace"})["id"]
    assert web.call("POST", f"/api/dumps/{id}/cancel")["status"] in ("cancelling", "cancelled")
    until(web, id, lambda one: one["status"] == "cancelled")
    left = asyncio.run(_fetch(target, "SELECT relname FROM pg_class WHERE relname LIKE $1", f"{table_of(body)}%"))
    assert left == []


def test_a_dump_that_is_over_is_forgotten_and_what_it_copied_stays_counted(web: Web, body: Body, target: str) -> None:
    id = begun(web, {**body, **SLOW})["id"]
    refused = web.ask("DELETE", f"/api/dumps/{id}")
    assert (refused.status_code, refused.json()["code"]) == (409, "running")
    web.call("PUT", f"/api/dumps/{id}/rate", {"rate": None})
    until(web, id, lambda one: one["status"] == "completed")
    before = web.rows(sql("dumps/totals"))[0]
    assert before["rows"] >= ROWS
    assert web.ask("DELETE", f"/api/dumps/{id}").status_code == 204
    assert web.ask("GET", f"/api/dumps/{id}").status_code == 404
    assert web.rows("SELECT FROM headgate.dump_attempt WHERE dump = $1", id) == []
    assert dict(web.rows(sql("dumps/totals"))[0]) == dict(before)
    assert len(rows(target, table_of(body))) == ROWS


def test_a_node_tries_only_the_chunks_of_a_list_again(web: Web, body: Body, source: str, target: str) -> None:
    table = table_of(body)
    no = f"CREATE TABLE {table} (id integer, name text, CONSTRAINT no CHECK (id NOT IN (75, 125)))"
    asyncio.run(execute(target, no))
    made = web.call("POST", "/api/dumps", {**body, "chunk_rows": 50})
    bad = until(web, made["id"], lambda one: one["status"] == "incomplete")
    assert bad["chunks_failed"] == 2
    asyncio.run(execute(target, f"ALTER TABLE {table} DROP CONSTRAINT no"))
    path = f"/api/dumps/{made['id']}/retry"
    for refused, status, said in (
        ({"chunks": "1"}, 409, "chunk 1 is done"),
        ({"chunks": "no"}, 422, "'no' is not a list of chunks"),
        ({"chunk": "2"}, 422, "chunk"),
    ):
        answer = web.ask("POST", path, json=refused)
        assert (answer.status_code, said in answer.text) == (status, True), answer.text
    before = {one["id"] for one in web.call("GET", f"/api/dumps/{made['id']}/history")["items"]}
    assert web.call("POST", path, {"chunks": "2"})["status"] in ("running", "waiting")
    found = until(web, made["id"], lambda one: one["status"] == "incomplete")
    assert found["chunks_failed"] == 1
    history = [one for one in web.call("GET", f"/api/dumps/{made['id']}/history")["items"] if one["id"] not in before]
    assert [(one["chunk"], one["lo"], one["hi"], one["notification"]) for one in history] == [
        (2, ["50"], ["100"], "completed")
    ]
    web.call("POST", f"/api/dumps/{made['id']}/resume")
    until(web, made["id"], lambda one: one["status"] == "completed")
    assert rows(target, table) == rows(source, "orders")


@pytest.mark.parametrize("action", ["pause", "resume", "cancel"])
def test_what_is_over_can_be_changed_no_more(web: Web, body: Body, action: str) -> None:
    made = web.call("POST", "/api/dumps", {**body, "tables": [f"tags=copy_{next(numbers)}"]})
    until(web, made["id"], lambda one: one["status"] == "completed")
    answer = web.ask("POST", f"/api/dumps/{made['id']}/{action}")
    assert (answer.status_code, answer.json()["code"]) == (409, "completed")
    assert answer.json()["hint"] == f"headgate dumps show {made['short']}"


@pytest.mark.parametrize(
    ("change", "status", "said"),
    [
        ({"tables": ["nothing"]}, 404, "nothing"),
        ({"mode": "overwrite"}, 422, "Invalid enum value 'overwrite'"),
        ({"rate": "fast"}, 422, "not a rate"),
        ({"workers": 0}, 422, "workers"),
        ({"workers": "two"}, 422, "Expected"),
        ({"storage": "os:system"}, 422, "storage"),
        ({"source": "own://x"}, 422, "own"),
        ({"source": "postgresql://x:hunter2@127.0.0.1:1/x"}, 409, "127.0.0.1"),
        ({"tables": ["a\0b"]}, 422, "zero byte"),
    ],
    ids=["table", "mode", "rate", "workers", "type", "field", "scheme", "away", "zero"],
)
def test_what_cannot_be_is_a_problem(web: Web, body: Body, change: Body, status: int, said: str) -> None:
    answer = web.ask("POST", "/api/dumps", json={**body, **change})
    assert answer.status_code == status, answer.text
    assert said in answer.text
    assert "hunter2" not in answer.text


def test_a_column_with_a_zero_byte_in_its_name_is_refused_and_dumps_are_listed_as_before(
    web: Web, tmp_path: Path
) -> None:
    (tmp_path / "odd.jsonl").write_text('{"id": 1, "a\\u0000b": 2}\n')
    answer = web.ask(
        "POST", "/api/dumps", json={"source": f"jsonl:{tmp_path}/odd.jsonl", "target": f"csv:{tmp_path}/to"}
    )
    assert (answer.status_code, answer.json()["code"]) == (409, "zero_byte")
    assert web.ask("GET", "/api/dumps").is_success


def test_an_unfinished_dump_refuses_another_and_a_target_with_rows_is_refused(web: Web, body: Body) -> None:
    id = begun(web, {**body, **SLOW})["id"]
    again = web.ask("POST", "/api/dumps", json=body)
    assert (again.status_code, again.json()["code"]) == (409, "unfinished")
    assert "headgate dumps resume" in again.json()["hint"]
    web.call("PUT", f"/api/dumps/{id}/rate", {"rate": "max"})
    until(web, id, lambda one: one["status"] == "completed")
    assert web.ask("POST", "/api/dumps", json=body).json()["code"] == "not_empty"


def test_roles_are_held_and_passwords_are_never_shown(web: Web, body: Body, source: str) -> None:
    secret = source.replace("headgate@", "headgate:hunter2@")
    made = web.call("POST", "/api/dumps", {**body, "source": secret})
    until(web, made["id"], lambda one: one["status"] == "completed")
    viewer, operator = bearer(web.token("viewer")), bearer(web.token("operator"))
    path = f"/api/dumps/{made['id']}"
    with httpx.Client(base_url=web.node.url) as client:
        for one in ("/api/dumps", path, f"{path}/chunks", f"{path}/history"):
            assert client.get(one).status_code == 401
            answer = client.get(one, headers=viewer)
            assert answer.status_code == 200
            assert "hunter2" not in answer.text
        for action in ("pause", "resume", "cancel", "verify"):
            assert client.post(f"{path}/{action}", headers=viewer).status_code == 403
        assert client.put(f"{path}/rate", json={"rate": "5"}, headers=viewer).status_code == 403
        assert client.delete(path, headers=viewer).status_code == 403
        assert client.post("/api/dumps", json=body, headers=viewer).status_code == 403
        refused = client.post("/api/dumps", json=body, headers=operator)
        assert (refused.status_code, refused.json()["code"]) == (409, "out_of_reach"), "an admin has allowed neither"
        assert client.post(f"{path}/pause", headers=operator).status_code == 409
    assert "hunter2" not in web.node.log()
    kept = web.rows("SELECT d::text AS text FROM headgate.dump d WHERE id = $1", made["id"])
    assert "hunter2" not in kept[0]["text"]


def test_a_dump_that_there_is_not_is_not_found(web: Web) -> None:
    for path in ("", "/chunks", "/history"):
        assert web.ask("GET", f"/api/dumps/no-such-dump{path}").status_code == 404
    for action in ("pause", "resume", "cancel", "verify"):
        assert web.ask("POST", f"/api/dumps/ffffffff/{action}").status_code == 404
    assert web.ask("PUT", "/api/dumps/ffffffff/rate", json={"speed": 1}).status_code == 422


def test_metrics_count_dumps_and_what_they_copied(web: Web, body: Body) -> None:
    made = web.call("POST", "/api/dumps", {**body, "tables": [f"tags=copy_{next(numbers)}"]})
    until(web, made["id"], lambda one: one["status"] == "completed")

    def figures() -> dict[str, float]:
        lines = [line for line in web.ask("GET", "/metrics").text.splitlines() if line.startswith("headgate_dump")]
        return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines}

    found = web.until(figures, lambda found: found.get('headgate_dumps{status="completed"}', 0) >= 1)
    assert found["headgate_dump_rows_total"] >= 1
    assert found["headgate_dump_bytes_total"] > 0
    assert found['headgate_dumps{status="failed"}'] == 0


@pytest.fixture
def keyless(databases: Databases, tmp_path: Path) -> Iterator[Web]:
    with started(tmp_path / "keyless", databases.make(), HEADGATE_MASTER_KEY="") as node:
        yield node


def test_without_a_master_key_no_dump_is_begun(keyless: Web, body: Body) -> None:
    answer = keyless.ask("POST", "/api/dumps", json=body)
    assert (answer.status_code, answer.json()["code"]) == (409, "no_master_key")
    assert "HEADGATE_MASTER_KEY" in answer.json()["hint"]
