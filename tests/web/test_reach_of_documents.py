"""What an operator's documents and dumps may reach on a real node, and what they may not."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.web_node import BLACKHOLE, GENERATOR, Web, bearer, numbers

Body = dict[str, Any]
ADMIN = {"id": "00000000-0000-0000-0000-00000000000a", "name": "mine", "role": "admin", "hash": "x"}


@pytest.fixture(scope="module")
def operator(web: Web) -> dict[str, str]:
    """The header of an operator."""
    return bearer(web.token("operator"))


@pytest.fixture
def folder(web: Web, tmp_path: Path) -> Iterator[Path]:
    """A folder that an admin has allowed, for one test."""
    place = tmp_path / "allowed"
    place.mkdir()
    web.call("POST", "/api/allowed", {"kind": "folder", "value": str(place)})
    yield place
    web.call("DELETE", "/api/allowed", params={"kind": "folder", "value": str(place)})


def into(path: Path | str, count: int = 3) -> Body:
    return {"source": {"type": "generator", "count": count}, "sink": {"type": "files", "path": str(path)}}


def apply(web: Web, name: str, document: Body, headers: dict[str, str]) -> httpx.Response:
    return web.ask("POST", "/api/apply", json={"datasources": {name: document}}, headers=headers)


def problems(answer: httpx.Response) -> str:
    assert answer.status_code == 422, answer.text
    return str(answer.json()["problems"])


REACHING_TOO_FAR = [
    into("/etc/headgate-out.jsonl"),
    into("../out.jsonl"),
    {"source": {"type": "files", "path": "/etc/passwd"}, "sink": BLACKHOLE},
    {"source": {"type": "files", "path": "/etc/*"}, "sink": BLACKHOLE},
    {"source": GENERATOR, "sink": {"type": "postgres", "url": "postgresql://u@10.0.0.1/x", "table": "t"}},
    {"source": GENERATOR, "sink": {"type": "postgres", "url": "postgresql://u@2130706433/x", "table": "t"}},
    {"source": GENERATOR, "sink": {"type": "postgres", "url": "postgresql:///x?host=/var/run", "table": "t"}},
]


@pytest.mark.parametrize("document", REACHING_TOO_FAR)
def test_an_operator_publishes_nothing_that_reaches_further(
    web: Web, name: str, operator: dict[str, str], document: Body
) -> None:
    assert "headgate allow add" in problems(apply(web, name, document, operator))
    plan = web.ask("POST", "/api/plan", json={"datasources": {name: document}}, headers=operator)
    assert "headgate allow add" in problems(plan)
    web.call("POST", "/api/datasources", {"name": name, **document}, headers=operator)
    validated = web.call("POST", f"/api/datasources/{name}/validate", headers=operator)
    assert "headgate allow add" in str(validated)
    publish = f"/api/datasources/{name}/publish"
    assert "headgate allow add" in problems(web.ask("POST", publish, headers=operator))
    assert web.call("POST", f"/api/datasources/{name}/validate") == {"problems": []}, "an admin may"


def test_what_an_admin_published_runs_and_an_operator_may_bring_it_back(
    web: Web, name: str, operator: dict[str, str], tmp_path: Path
) -> None:
    first, second = tmp_path / "first.jsonl", tmp_path / "second.jsonl"
    web.call("POST", "/api/apply", {"datasources": {name: into(first)}})
    web.until(lambda: first.exists() and first.read_text().count("\n"), lambda lines: lines == 3)
    assert apply(web, name, into(first), operator).is_success, "nothing changes"
    problems(apply(web, name, into(first, 4), operator))
    web.call("POST", "/api/apply", {"datasources": {name: into(second)}})
    web.call("POST", f"/api/datasources/{name}/rollback", {"version": 1}, headers=operator)
    assert web.show(name)["published_version"] == 3


def test_an_operator_uses_what_an_admin_allowed(web: Web, name: str, operator: dict[str, str], folder: Path) -> None:
    assert apply(web, name, into(folder / "out.jsonl"), operator).is_success
    out = folder / "out.jsonl"
    web.until(lambda: out.exists() and out.read_text().count("\n"), lambda lines: lines == 3)


def test_a_symlink_that_appears_after_publishing_is_not_followed(
    web: Web, name: str, operator: dict[str, str], folder: Path, tmp_path: Path
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "out.jsonl").write_text("precious")
    document = {"enabled": False, **into(folder / "deep/out.jsonl")}
    (folder / "deep").mkdir()
    assert apply(web, name, document, operator).is_success
    (folder / "deep").rmdir()
    (folder / "deep").symlink_to(outside)
    web.call("POST", f"/api/datasources/{name}/start", headers=operator)
    found = web.wait_for(name, lambda one: one["worker_status"] == "ERROR" or one["quarantine"] is not None)
    assert "folder that may be reached" in str(found)
    assert (outside / "out.jsonl").read_text() == "precious"


def test_a_node_of_headgate_is_out_of_reach_for_an_admin_too(web: Web, name: str, tmp_path: Path) -> None:
    home = web.node.home
    (tmp_path / "link").symlink_to(home)
    for path in (home / "token", home / "new.jsonl", tmp_path / "link/token"):
        answer = apply(web, name, into(path), {})
        assert "Headgate's own" in problems(answer)


def test_a_sink_does_not_write_a_token(web: Web, name: str, operator: dict[str, str]) -> None:
    """The secret leads to the registry's own database: under any name, its tables are out of reach."""
    web.call("PUT", f"/api/secrets/{name}", {"value": web.database + "&application_name=other"})
    fields = {key: f"'{value}'" for key, value in ADMIN.items()}
    document = {
        "source": {"type": "generator", "count": 1},
        "mapping": {"set": fields, "key": "id"},
        "sink": {"type": "postgres", "url": {"$secret": name}, "table": "headgate.token", "mode": "upsert"},
    }
    before = web.rows("SELECT id FROM headgate.token ORDER BY id")
    assert apply(web, name, document, operator).is_success
    found = web.wait_for(name, lambda one: one["worker_status"] == "ERROR" or one["quarantine"] is not None)
    assert "Headgate's own schema" in json.dumps(found)
    assert web.rows("SELECT id FROM headgate.token ORDER BY id") == before


# Dumps.


@pytest.fixture(scope="module")
def table(web: Web) -> str:
    """A table to copy, in the database of the node."""
    web.execute("CREATE TABLE public.orders_to_copy AS SELECT n AS id FROM generate_series(1, 10) n")
    return "orders_to_copy"


@pytest.mark.parametrize(
    "target",
    ["csv:/etc/headgate/", "jsonl:/tmp/../etc/x.jsonl", "sqlite:/etc/x.db", "csv:../x/", "parquet:/var/x.parquet"],
)
def test_an_operator_dumps_to_no_other_file(web: Web, operator: dict[str, str], folder: Path, target: str) -> None:
    (folder / "a.csv").write_text("id\n1\n")
    answer = web.ask("POST", "/api/dumps", json={"source": f"csv:{folder}", "target": target}, headers=operator)
    assert (answer.status_code, answer.json()["code"]) == (409, "out_of_reach"), answer.text
    back = web.ask("POST", "/api/dumps", json={"source": target, "target": f"csv:{folder}"}, headers=operator)
    assert (back.status_code, back.json()["code"]) == (409, "out_of_reach"), back.text


@pytest.mark.parametrize("scheme", ["postgresql", "mysql", "mongodb"])
def test_an_operator_dumps_to_no_other_host(web: Web, operator: dict[str, str], folder: Path, scheme: str) -> None:
    (folder / "a.csv").write_text("id\n1\n")
    for host in ("10.0.0.1", "2130706433", "localhost", "169.254.169.254"):
        body = {"source": f"csv:{folder}", "target": f"{scheme}://u@{host}/x"}
        answer = web.ask("POST", "/api/dumps", json=body, headers=operator)
        assert (answer.status_code, answer.json()["code"]) == (409, "out_of_reach"), answer.text


def test_an_operator_dumps_between_what_is_allowed_and_a_node_runs_it(
    web: Web, operator: dict[str, str], folder: Path
) -> None:
    (folder / "a.csv").write_text("id\n1\n")
    body = {"source": f"csv:{folder / 'a.csv'}", "target": f"jsonl:{folder / 'b.jsonl'}"}
    made = web.call("POST", "/api/dumps", body, headers=operator)
    path = f"/api/dumps/{made['id']}"
    web.until(lambda: web.call("GET", path), lambda one: one["status"] == "completed")
    assert (folder / "b.jsonl").read_text() == '{"id":1}\n'


def test_no_dump_reads_the_registry(web: Web, table: str, tmp_path: Path) -> None:
    for name in ("headgate.token", "headgate.secret"):
        body = {"source": web.database, "target": f"csv:{tmp_path}/", "tables": [name]}
        answer = web.ask("POST", "/api/dumps", json=body)
        assert (answer.status_code, answer.json()["code"]) == (409, "own_schema"), answer.text
        body = {"source": web.database, "target": web.database + "&x=1", "tables": [f"{table}={name}"]}
        assert web.ask("POST", "/api/dumps", json=body).status_code in (409, 422)


# The lists.


def test_the_lists_are_an_admins_and_each_change_is_an_event(web: Web, operator: dict[str, str]) -> None:
    line = {"kind": "address", "value": f"DB{next(numbers)}.example.com:5432"}
    kept = {**line, "value": line["value"].lower()}
    assert web.ask("POST", "/api/allowed", json=line, headers=operator).status_code == 403
    assert web.call("POST", "/api/allowed", line) == kept
    listed = web.call("GET", "/api/allowed", headers=operator)["items"]
    assert kept["value"] in [one["value"] for one in listed]
    assert [one["value"] for one in listed if one["author"] == "headgate"] == ["."]
    assert web.ask("DELETE", "/api/allowed", params=kept, headers=operator).status_code == 403
    assert web.ask("DELETE", "/api/allowed", params=kept).is_success
    assert web.ask("DELETE", "/api/allowed", params=kept).status_code == 404
    found = web.rows(
        "SELECT type, payload::text FROM headgate.datasource_events WHERE type LIKE '%allowed' ORDER BY id"
    )
    assert [(row[0], kept["value"] in row[1]) for row in found][-2:] == [("allowed", True), ("disallowed", True)]


@pytest.mark.parametrize("line", [{"kind": "address", "value": "db"}, {"kind": "module", "value": "a b"}])
def test_a_line_that_says_nothing_is_refused(web: Web, line: Body) -> None:
    assert "is not" in problems(web.ask("POST", "/api/allowed", json=line))
