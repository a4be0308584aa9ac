"""The JSON API of a real node: every path, what it does, and what bad input gets."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import httpx
import pytest
import yaml

from headgate.datasources import schema
from tests.commands import headgate
from tests.web_node import BLACKHOLE, GENERATOR, Databases, Web, started

OLD, NEW, OTHER = (f"{letter * 42}{last}=" for letter, last in (("A", "A"), ("B", "A"), ("C", "A")))

PATHS = {
    "/api/datasources": {"get", "post"},
    "/api/datasources/{name}": {"get", "put", "delete"},
    "/api/datasources/{name}/draft": {"put"},
    **{
        f"/api/datasources/{{name}}/{action}": {"post"}
        for action in ("validate", "publish", "rollback", "start", "stop", "pause", "restart", "reload")
    },
    **{
        f"/api/datasources/{{name}}/{part}": {"get"}
        for part in (
            "versions",
            "versions/{number}",
            "diff",
            "state",
            "explain",
            "events",
            "events/stream",
            "logs",
            "deletion",
        )
    },
    "/registry/reload/{id}": {"post"},
    "/api/plan": {"post"},
    "/api/apply": {"post"},
    "/api/export": {"get"},
    "/api/events": {"get"},
    "/api/logs": {"get"},
    "/api/support": {"get"},
    "/api/nodes": {"get"},
    "/api/nodes/{id}": {"delete"},
    "/api/nodes/{id}/drain": {"post"},
    "/api/nodes/{id}/undrain": {"post"},
    "/api/streams": {"get"},
    "/api/streams/{id}": {"get"},
    "/api/streams/{id}/history": {"get"},
    "/api/streams/{id}/position": {"put"},
    "/api/secrets": {"get"},
    "/api/secrets/{name}": {"put", "delete"},
    "/api/secrets/rotate": {"post"},
    "/api/tokens": {"get", "post"},
    "/api/tokens/{id}": {"delete"},
    "/api/connectors": {"get"},
    "/api/connectors/{name}": {"get"},
    "/api/documents/schema": {"get"},
    "/healthz": {"get"},
    "/readyz": {"get"},
    "/metrics": {"get"},
}


def refused(answer: httpx.Response, status: int) -> dict[str, Any]:
    """The problem that the answer is."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    found: dict[str, Any] = answer.json()
    assert found["status"] == status
    assert found["title"]
    return found


def draft(web: Web, name: str, **parts: Any) -> dict[str, Any]:
    """Create a datasource with a draft."""
    found: dict[str, Any] = web.call(
        "POST", "/api/datasources", {"name": name, "source": GENERATOR, "sink": BLACKHOLE, **parts}
    )
    return found


def quarantine(web: Web, name: str) -> None:
    """As if it had blocked a node."""
    web.execute(
        "UPDATE headgate.registry SET revision = revision + 1;"
        "UPDATE headgate.datasource d SET quarantine = 'it blocked a node', revision = r.revision"
        f" FROM headgate.registry r WHERE d.name = '{name}'"
    )


# From draft to deletion.


def test_a_datasource_goes_from_draft_to_published_to_gone(web: Web, name: str) -> None:
    created = draft(web, name, description="first")
    assert created["draft"]["document"] == {"source": GENERATOR, "sink": BLACKHOLE, "description": "first"}
    assert (created["published"], created["health"], created["detail"]) == (None, "unpublished", "not started")

    assert web.call("POST", f"/api/datasources/{name}/validate") == {"problems": []}
    published = web.call("POST", f"/api/datasources/{name}/publish")
    assert (published["number"], published["status"], published["author"]) == (1, "published", "first")
    running = web.running(name)
    assert (running["health"], running["worker_status"], running["has_draft"]) == ("ok", "RUNNING", False)

    changed = web.call("PUT", f"/api/datasources/{name}/draft", {"source": GENERATOR, "sink": {"type": "stdout"}})
    assert (changed["number"], changed["status"]) == (2, "draft")
    difference = web.call("GET", f"/api/datasources/{name}/diff")
    assert difference == {
        "from": 1,
        "to": 2,
        "changes": [
            {"path": "sink.type", "before": "blackhole", "after": "stdout"},
            {"path": "description", "before": "first", "after": None},
        ],
    }

    assert web.ask("DELETE", f"/api/datasources/{name}").status_code == 204
    refused(web.ask("GET", f"/api/datasources/{name}"), 404)
    assert name not in [row["name"] for row in web.call("GET", "/api/datasources")["items"]]
    assert web.rows("SELECT type FROM headgate.datasource_events WHERE name = $1 ORDER BY id DESC LIMIT 1", name)


def test_putting_a_datasource_twice_leaves_the_same_draft(web: Web, name: str) -> None:
    body = {"enabled": False, "source": GENERATOR, "sink": BLACKHOLE}
    first = web.call("PUT", f"/api/datasources/{name}", body)
    second = web.call("PUT", f"/api/datasources/{name}", body)
    assert (second["draft"]["number"], second["draft"]["hash"]) == (1, first["draft"]["hash"])
    assert second["enabled"] is False
    assert web.call("PUT", f"/api/datasources/{name}", body | {"enabled": True})["enabled"] is True


def test_a_rollback_publishes_an_old_version_under_a_new_number(web: Web, name: str) -> None:
    first = web.publish(name, description="one")
    web.publish(name, description="two")
    rolled = web.call("POST", f"/api/datasources/{name}/rollback", {"version": 1})
    assert (rolled["number"], rolled["hash"]) == (3, first["published"]["hash"])
    versions = web.call("GET", f"/api/datasources/{name}/versions")["items"]
    assert [(v["number"], v["status"]) for v in versions] == [(1, "superseded"), (2, "superseded"), (3, "published")]
    assert web.call("GET", f"/api/datasources/{name}/versions/2")["document"]["description"] == "two"
    changes = web.call("GET", f"/api/datasources/{name}/diff?from=2&to=3")["changes"]
    assert changes == [{"path": "description", "before": "two", "after": "one"}]


@pytest.mark.parametrize("version", [None, "1", True, 1.5, -1, 0, 2**31, 10**30])
def test_a_rollback_to_what_is_no_version_number_is_refused(web: Web, version: Any) -> None:
    web.publish("for-rollback")
    found = refused(web.ask("POST", "/api/datasources/for-rollback/rollback", json={"version": version}), 422)
    assert found["problems"][0]["path"] == "version"


def test_a_rollback_to_a_version_that_is_not_there_is_not_found(web: Web, name: str) -> None:
    web.publish(name)
    refused(web.ask("POST", f"/api/datasources/{name}/rollback", json={"version": 7}), 404)
    web.call("PUT", f"/api/datasources/{name}/draft", {"source": GENERATOR, "sink": BLACKHOLE})
    refused(web.ask("POST", f"/api/datasources/{name}/rollback", json={"version": 2}), 404)


def test_start_stop_and_restart_do_as_they_say_and_doing_it_twice_changes_nothing(web: Web, name: str) -> None:
    web.publish(name)
    epoch = web.running(name)["states"][0]["epoch"]
    for _ in range(2):
        assert web.call("POST", f"/api/datasources/{name}/stop") == {"name": name, "action": "stop"}
    web.wait_for(name, lambda d: d["worker_status"] == "STOPPED")
    assert web.show(name)["health"] == "stopped"
    for _ in range(2):
        assert web.call("POST", f"/api/datasources/{name}/start") == {"name": name, "action": "start"}
    assert web.running(name)["states"][0]["epoch"] > epoch
    epoch = web.show(name)["states"][0]["epoch"]
    assert web.call("POST", f"/api/datasources/{name}/restart") == {"name": name, "action": "restart"}
    web.wait_for(name, lambda d: d["states"][0]["epoch"] > epoch and d["worker_status"] == "RUNNING")
    types = web.events(name)
    assert [types.count(type) for type in ("stopped", "started", "restarted")] == [1, 1, 1]


def test_a_start_of_what_has_never_been_published_is_refused_and_says_so(web: Web, name: str) -> None:
    draft(web, name)
    found = refused(web.ask("POST", f"/api/datasources/{name}/start"), 409)
    assert (found["code"], found["detail"]) == ("unpublished", f"datasource {name!r} has no published version")
    assert found["hint"] == f"headgate ds publish {name}"


def test_a_start_of_what_is_finished_is_refused_and_says_how_to_read_it_again(web: Web, name: str) -> None:
    web.publish(name, source={"type": "generator", "rate": 1000, "count": 3})
    web.wait_for(name, lambda d: d["detail"] == "finished" and d["states"][0]["metrics"]["records_written"] == 3)
    found = refused(web.ask("POST", f"/api/datasources/{name}/start"), 409)
    assert (found["code"], found["detail"]) == ("finished", f"datasource {name!r} is finished: its source has ended")
    assert f"headgate streams set-position {name}:0 null" in found["hint"]

    web.call("PUT", f"/api/streams/{name}:0/position", {"position": None, "yes": True})
    web.until(lambda: web.events(name).count("worker_finished"), lambda number: number == 2)


@pytest.mark.parametrize("stops", [False, True])
def test_a_start_ends_a_quarantine(web: Web, name: str, stops: bool) -> None:
    web.call("PUT", f"/api/secrets/{name}", {"value": "postgresql://nobody@127.0.0.1:1/none"})
    sink = {"type": "postgres", "url": {"$secret": name}, "table": "t"}
    web.publish(name, sink=sink)
    web.execute(f"DELETE FROM headgate.secret WHERE name = '{name}'")
    web.call("POST", f"/api/datasources/{name}/restart")
    web.wait_for(name, lambda d: d["detail"] == "quarantined")
    before = web.events(name).count("worker_quarantined")
    if stops:
        web.call("POST", f"/api/datasources/{name}/stop")
    assert web.call("POST", f"/api/datasources/{name}/start") == {"name": name, "action": "start"}
    # It was tried again: the secret is still not there.
    web.until(lambda: web.events(name).count("worker_quarantined"), lambda number: number > before)
    assert web.show(name)["enabled"] is True


def test_a_start_ends_the_quarantine_of_a_datasource_that_held_up_its_node(web: Web, name: str) -> None:
    web.publish(name)
    web.running(name)
    quarantine(web, name)
    web.wait_for(name, lambda d: d["worker_status"] == "STOPPED")
    web.call("POST", f"/api/datasources/{name}/start")
    assert web.running(name)["quarantine"] is None


def test_a_reload_may_name_the_datasource_or_its_id(web: Web, name: str) -> None:
    id = web.publish(name)["id"]
    assert web.call("POST", f"/registry/reload/{name}") == {"name": name, "action": "reload"}
    assert web.call("POST", f"/registry/reload/{id}") == {"name": name, "action": "reload"}
    assert web.call("POST", f"/registry/reload/{id.upper()}")["name"] == name
    assert web.call("POST", f"/api/datasources/{name}/reload")["action"] == "reload"
    assert web.events(name).count("reloaded") == 4
    refused(web.ask("POST", f"/registry/reload/{uuid4()}"), 404)
    refused(web.ask("POST", "/registry/reload/nobody"), 404)


def test_a_datasource_may_be_read_by_its_id(web: Web, name: str) -> None:
    id = web.publish(name)["id"]
    assert web.call("GET", f"/api/datasources/{id}")["name"] == name
    assert UUID(id)


def test_state_says_who_runs_what_and_how_it_goes(web: Web, name: str) -> None:
    web.publish(name)
    web.wait_for(name, lambda d: d["metrics"].get("records_written", 0) > 0 and d["worker_status"] == "RUNNING")
    found = web.call("GET", f"/api/datasources/{name}/state")
    (state,) = found["states"]
    assert (found["health"], state["worker_status"], state["version"], state["error"]) == ("ok", "RUNNING", 1, None)
    (node,) = web.call("GET", "/api/nodes")["items"]
    assert state["node"] == node["name"]
    assert node["address"] == web.node.url
    stream = next(s for s in web.call("GET", "/api/streams")["items"] if s["datasource"] == name)
    assert (stream["name"], stream["owner"], stream["id"]) == (f"{name}:0", node["id"], state["stream"])


def test_events_are_listed_in_order_with_who_did_it(web: Web, name: str) -> None:
    draft(web, name)
    web.call("POST", f"/api/datasources/{name}/publish")
    web.running(name)
    items = web.call("GET", f"/api/datasources/{name}/events")["items"]
    assert [item["type"] for item in items][:3] == ["created", "published", "worker_running"]
    assert [item["actor"] for item in items][:3] == ["first", "first", "headgate"]
    assert [item["id"] for item in items] == sorted(item["id"] for item in items)
    after = web.call("GET", f"/api/datasources/{name}/events?after={items[0]['id']}&limit=1")["items"]
    assert after == [items[1]]
    assert web.call("GET", f"/api/datasources/{name}/events?limit=1")["items"][0]["id"] >= items[-1]["id"]


def test_the_log_of_a_stream_is_there_on_any_node(web: Web, name: str) -> None:
    web.publish(name)

    def lines() -> list[Any]:
        found: list[Any] = web.call("GET", f"/api/datasources/{name}/logs?follow=false")["items"]
        return found

    (line,) = web.until(lines, lambda found: len(found) > 0)
    assert (line["text"], line["level"], line["fields"]["datasource"]) == ("running", "info", name)
    assert web.call("GET", f"/api/datasources/{name}/logs?follow=false&after={line['id']}") == {"items": []}


# What bad input gets.

MISTAKES = {
    "source": {"type": "generator", "rte": 5},
    "sink": {"type": "postgres", "url": {"$secret": "nowhere"}, "mode": "merge"},
    "mapping": {"set": {"id": "lower("}},
    "streams": 0,
}
PLACES = ["source.rte", "sink.url", "sink.table", "sink.mode", "streams", "mapping.set.id"]


def test_a_document_with_many_mistakes_gets_them_all_and_nothing_changes(web: Web, name: str) -> None:
    web.publish(name)
    before = web.show(name)["published"]
    body = {"datasources": {name: MISTAKES, f"{name}-good": {"source": GENERATOR, "sink": BLACKHOLE}}}
    found = refused(web.ask("POST", "/api/apply", json=body), 422)
    assert refused(web.ask("POST", "/api/plan", json=body), 422) == found
    assert found["code"] == "invalid"
    problems = {problem["path"]: problem for problem in found["problems"]}
    assert sorted(problems) == sorted(f"datasources.{name}.{place}" for place in PLACES)
    assert all(problem["message"] for problem in problems.values())
    assert problems[f"datasources.{name}.source.rte"]["hint"] == "did you mean rate?"
    assert "headgate secrets set nowhere" in problems[f"datasources.{name}.sink.url"]["hint"]
    assert web.show(name)["published"] == before
    assert [type for type in web.events(name) if not type.startswith(("worker_", "proved"))] == ["created", "published"]
    refused(web.ask("GET", f"/api/datasources/{name}-good"), 404)


def test_a_draft_may_have_mistakes_but_is_not_published_with_them(web: Web, name: str) -> None:
    draft(web, name, **MISTAKES)
    problems = web.call("POST", f"/api/datasources/{name}/validate")["problems"]
    assert sorted(problem["path"] for problem in problems) == sorted(PLACES)
    assert refused(web.ask("POST", f"/api/datasources/{name}/publish"), 422)["problems"] == problems
    assert web.show(name)["published_version"] is None
    good = {"source": GENERATOR, "sink": BLACKHOLE}
    assert web.call("POST", f"/api/datasources/{name}/validate", good) == {"problems": []}
    assert len(web.call("POST", f"/api/datasources/{name}/validate", {"source": 5})["problems"]) == 2


def test_an_unknown_connector_gets_the_names_that_may_be_meant(web: Web, name: str) -> None:
    body = {"datasources": {name: {"source": {"type": "genrator"}, "sink": BLACKHOLE}}}
    (problem,) = refused(web.ask("POST", "/api/apply", json=body), 422)["problems"]
    assert problem["path"] == f"datasources.{name}.source.type"
    assert "generator" in problem["hint"]


@pytest.mark.parametrize(
    ("method", "path"),
    [
        (method.upper(), path)
        for path, methods in PATHS.items()
        if path.startswith("/api/datasources/{")
        for method in sorted(methods - ({"put"} if path.endswith("{name}") else set()))  # That one creates.
    ],
)
def test_an_unknown_datasource_is_not_found_on_every_path(web: Web, method: str, path: str) -> None:
    body: Any = {"source": GENERATOR, "sink": BLACKHOLE} if path.endswith("draft") else None
    body = {"version": 1} if path.endswith("rollback") else body
    found = refused(web.ask(method, path.format(name="nobody", number=1), json=body), 404)
    assert "nobody" in found["detail"]
    assert found["code"] == "not_found"


@pytest.mark.parametrize(
    "path",
    ["/api/nothing", "/api/connectors/nothing", "/api/datasources/a/b/c", "/API/datasources", "/registry/reload"],
)
def test_an_unknown_path_is_not_found(web: Web, path: str) -> None:
    refused(web.ask("GET", path), 404)


def test_somebody_elses_change_is_not_written_over(web: Web, name: str) -> None:
    web.publish(name)
    seen = web.show(name)["published"]["hash"]
    path, mine = f"/api/datasources/{name}/draft", {"source": GENERATOR, "sink": BLACKHOLE, "description": "mine"}
    theirs = web.call("PUT", f"{path}?expected_hash={seen}", mine | {"description": "theirs"})
    found = refused(web.ask("PUT", f"{path}?expected_hash={seen}", json=mine), 409)
    assert (found["code"], web.show(name)["draft"]["hash"]) == ("conflict", theirs["hash"])
    publish = f"/api/datasources/{name}/publish"
    assert refused(web.ask("POST", publish, json={"hash": seen}), 409)["code"] == "conflict"
    assert web.show(name)["published_version"] == 1
    assert web.call("POST", publish, {"hash": theirs["hash"]})["number"] == 2
    assert refused(web.ask("POST", publish), 409)["code"] == "no_draft"


def test_a_name_that_is_taken_is_refused(web: Web, name: str) -> None:
    draft(web, name)
    body = {"name": name, "source": GENERATOR, "sink": BLACKHOLE}
    assert refused(web.ask("POST", "/api/datasources", json=body), 409)["code"] == "exists"


@pytest.mark.parametrize("name", [None, 5, "", "A", "a b", "é", "..", "a/b", "a" * 101, "\0", "-a"])
def test_a_name_that_is_none_is_refused(web: Web, name: Any) -> None:
    body = {"name": name, "source": GENERATOR, "sink": BLACKHOLE}
    (problem,) = refused(web.ask("POST", "/api/datasources", json=body), 422)["problems"]
    assert problem["path"] == "name"


BODIES = [b"[]", b'"x"', b"null", b"5", b"{", b"\xff", b'{"a": "\xff"}', b"[" * 5000, b'{"a":' * 5000, b'{"a": 1e999}']
BODIES += [b"\0", b'{"a": "\\ud800"}']


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/api/datasources"),
        ("PUT", "/api/datasources/for-bodies"),
        ("PUT", "/api/datasources/for-bodies/draft"),
        ("POST", "/api/datasources/for-bodies/validate"),
        ("POST", "/api/datasources/for-bodies/publish"),
        ("POST", "/api/datasources/for-bodies/rollback"),
        ("POST", "/api/plan"),
        ("POST", "/api/apply"),
        ("POST", "/api/tokens"),
        ("PUT", "/api/secrets/for-bodies"),
        ("PUT", "/api/streams/for-bodies:0/position"),
    ],
)
def test_a_body_that_is_no_json_object_is_a_problem_and_never_an_error(web: Web, method: str, path: str) -> None:
    web.publish("for-bodies")
    for body in BODIES:
        answer = web.ask(method, path, content=body, headers={"Content-Type": "application/json"})
        assert answer.status_code in (400, 422), (body[:20], answer.text)
        refused(answer, answer.status_code)


def test_what_postgresql_cannot_read_again_is_not_taken_and_stops_nobody_else(web: Web, name: str) -> None:
    """Grants, lists and the clearing of inboxes look into all documents and positions at once."""
    web.publish(name)
    bad = {"source": GENERATOR, "sink": BLACKHOLE, "description": "a\0b"}
    refused(web.ask("POST", "/api/apply", json={"datasources": {f"{name}-b": bad}}), 422)
    refused(web.ask("PUT", f"/api/streams/{name}:0/position", json={"position": {"a": ["\0"]}}), 422)
    web.call("GET", "/api/groups")


@pytest.mark.parametrize("after", ["x", "-1", "1.5", str(2**63), "9" * 40, "%00", ""])
def test_an_id_that_is_none_is_a_problem(web: Web, after: str) -> None:
    web.publish("for-ids")
    for path in ("/api/datasources/for-ids/events", "/api/datasources/for-ids/logs", "/api/events", "/api/logs"):
        found = refused(web.ask("GET", f"{path}?after={after}"), 400)
        assert found["problems"][0]["path"] == "after"


@pytest.mark.parametrize("which", ["0", "9", "-1", "²", "x", "9" * 30, "%00"])
def test_a_version_that_is_not_there_is_not_found(web: Web, which: str) -> None:
    web.publish("for-versions")
    refused(web.ask("GET", f"/api/datasources/for-versions/diff?from={which}&to=1"), 404)
    refused(web.ask("GET", f"/api/datasources/for-versions/versions/{which}"), 404)


@pytest.mark.parametrize(
    "name", ["%00", "%FF", "a%2Fb", "caf%C3%A9", "%2e%2e", "a" * 5000, "a%20b", "'; DROP TABLE x", "%25"]
)
def test_strange_names_in_a_path_are_not_found_and_never_an_error(web: Web, name: str) -> None:
    for path in ("/api/datasources/{}", "/api/datasources/{}/state", "/api/connectors/{}"):
        refused(web.ask("GET", path.format(name)), 404)
    refused(web.ask("POST", f"/registry/reload/{name}"), 404)
    refused(web.ask("DELETE", f"/api/secrets/{name}"), 404)


def test_a_trailing_slash_makes_no_difference_and_a_wrong_method_is_refused(web: Web, name: str) -> None:
    web.publish(name)
    for path in ("/api/datasources/", f"/api/datasources/{name}/", "/api/nodes/", "/healthz/"):
        assert web.ask("GET", path).status_code == 200
    for method in ("PATCH", "TRACE", "DELETE"):
        refused(web.ask(method, "/api/datasources"), 405)
    assert web.ask("HEAD", "/api/datasources").status_code == 405
    assert web.ask("OPTIONS", "/api/datasources").status_code == 204


def test_a_body_beyond_all_measure_is_refused(web: Web) -> None:
    refused(web.ask("POST", "/api/plan", content=b"x" * (17 * 1024 * 1024)), 413)


# Plan, apply, export.


def test_a_plan_says_what_applying_does_and_applying_twice_keeps(web: Web, name: str) -> None:
    same, other, stopped = f"{name}-same", f"{name}-other", f"{name}-stopped"
    document = {"source": GENERATOR, "sink": BLACKHOLE}
    web.call("POST", "/api/apply", {"datasources": {same: document, other: document, stopped: document}})
    wanted = {
        "datasources": {
            same: document,
            other: document | {"description": "new"},
            stopped: document | {"enabled": False},
            f"{name}-new": document,
        }
    }
    planned = web.call("POST", "/api/plan", wanted)["changes"]
    assert {change["name"]: change["action"] for change in planned} == {
        same: "keep",
        other: "update",
        stopped: "disable",
        f"{name}-new": "create",
    }
    assert planned[1]["changes"] == [{"path": "description", "before": None, "after": "new"}]
    refused(web.ask("GET", f"/api/datasources/{name}-new"), 404)
    assert web.call("POST", "/api/apply", wanted)["changes"] == planned
    assert web.show(stopped)["enabled"] is False
    again = web.call("POST", "/api/apply", wanted)["changes"]
    assert {change["action"] for change in again} == {"keep"}
    assert web.show(other)["published_version"] == 2
    enabled = {"datasources": {stopped: document}}
    assert [change["action"] for change in web.call("POST", "/api/apply", enabled)["changes"]] == ["enable"]


def test_applying_is_all_or_nothing(web: Web, name: str) -> None:
    good = {"source": GENERATOR, "sink": BLACKHOLE}
    bad = {"source": {"type": "nothing"}, "sink": BLACKHOLE}
    refused(web.ask("POST", "/api/apply", json={"datasources": {name: good, f"{name}-bad": bad}}), 422)
    refused(web.ask("GET", f"/api/datasources/{name}"), 404)


def test_broken_yaml_is_reported_with_file_line_and_column(web: Web) -> None:
    body = {"yaml": "datasources:\n  orders: {source: {\n", "file": "orders.yaml"}
    (problem,) = refused(web.ask("POST", "/api/plan", json=body), 422)["problems"]
    assert problem["path"] == "orders.yaml:3:1"
    twice = {"yaml": "datasources:\n  a: {}\n  a: {}\n", "file": "orders.yaml"}
    (problem,) = refused(web.ask("POST", "/api/apply", json=twice), 422)["problems"]
    assert (problem["path"], problem["message"]) == ("orders.yaml:3:3", "the key 'a' appears twice")


@pytest.mark.parametrize("text", ["x: .inf", "1: x", "x: !!int abc", "x: &a [*a]", 'x: "\\ud800"', "x: !!binary aGk="])
def test_strange_yaml_is_a_problem_and_never_an_error(web: Web, name: str, text: str) -> None:
    text = f"datasources:\n  {name}: {{source: {{type: generator, {text}}}, sink: {{type: blackhole}}}}\n"
    for path in ("/api/plan", "/api/apply"):
        refused(web.ask("POST", path, json={"yaml": text}), 422)


@pytest.fixture(scope="module")
def second(databases: Databases, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Web]:
    """A node of another installation, with no datasources but those of its tests."""
    with started(tmp_path_factory.mktemp("second"), databases.make()) as node:
        yield node


def test_what_is_exported_can_be_imported_elsewhere_and_prune_removes_the_rest(second: Web) -> None:
    text = """
datasources:
  zebra:
    enabled: false
    source: {type: generator, seed: 7, fields: {z: sequence, a: [2024-01-01, "yes", 1.0, 1, null, "\\u2028é😀"]}}
    mapping: {set: {z: z, a: a}, key: z}
    sink: {type: blackhole}
    description: "2024-01-01"
  ant: {enabled: false, source: {type: generator, rate: 0.5}, sink: {type: blackhole, delay_s: 0.1}}
"""
    second.call("POST", "/api/apply", {"yaml": text})
    exported = second.ask("GET", "/api/export")
    assert exported.headers["content-type"].startswith("text/yaml")
    planned = second.call("POST", "/api/plan?prune=true", {"yaml": exported.text})["changes"]
    assert {change["name"]: change["action"] for change in planned} == {"ant": "keep", "zebra": "keep"}
    zebra = yaml.safe_load(exported.text)["datasources"]["zebra"]
    assert list(zebra["source"]["fields"]) == ["z", "a"]
    assert zebra["source"]["fields"]["a"] == ["2024-01-01", "yes", 1.0, 1, None, "\u2028é😀"]
    assert zebra["description"] == "2024-01-01"

    second.call("DELETE", "/api/datasources/ant")
    second.call("DELETE", "/api/datasources/zebra")
    second.call("POST", "/api/apply", {"yaml": exported.text})
    assert second.ask("GET", "/api/export").text == exported.text

    ant = {"datasources": {"ant": yaml.safe_load(exported.text)["datasources"]["ant"]}}
    planned = second.call("POST", "/api/plan?prune=true", ant)["changes"]
    assert [(change["name"], change["action"]) for change in planned] == [("ant", "keep"), ("zebra", "delete")]
    assert second.call("POST", "/api/apply?prune=true", ant)["changes"] == planned
    assert [row["name"] for row in second.call("GET", "/api/datasources")["items"]] == ["ant"]


# Secrets.


def test_secrets_are_listed_by_name_only_and_one_in_use_is_not_deleted(web: Web, name: str) -> None:
    web.call("PUT", f"/api/secrets/{name}", {"value": web.database})
    (found,) = [item for item in web.call("GET", "/api/secrets")["items"] if item["name"] == name]
    assert found.keys() == {"name", "author", "changed_at", "used_by"}
    web.publish(name, sink={"type": "postgres", "url": {"$secret": name}, "table": name.replace("-", "_")})
    web.running(name)
    found = refused(web.ask("DELETE", f"/api/secrets/{name}"), 409)
    assert (found["code"], found["counts"]) == ("in_use", {"datasources": 1, "running": 1})
    assert [(one["path"], one["message"]) for one in found["problems"]] == [
        (name, "version 1 is published, and runs now")
    ]
    assert web.ask("DELETE", f"/api/secrets/{name}?yes=true").status_code == 204
    refused(web.ask("DELETE", f"/api/secrets/{name}?yes=true"), 404)
    event = web.call("GET", f"/api/datasources/{name}/events")["items"][-1]
    assert (event["type"], event["payload"], event["actor"]) == ("secret_deleted", {"secret": name}, "first")
    assert web.show(name)["health"] == "ok"  # It has the value, and goes on until it next starts.
    web.call("POST", f"/api/datasources/{name}/restart")
    web.wait_for(name, lambda d: d["health"] == "error" and "does not exist" in d["why"])


@pytest.mark.parametrize("value", [None, "", 5, ["x"], {"a": 1}])
def test_a_secret_without_a_text_is_refused(web: Web, value: Any) -> None:
    assert refused(web.ask("PUT", "/api/secrets/x", json={"value": value}), 422)["problems"][0]["path"] == "value"


def test_a_secret_whose_name_is_none_is_refused(web: Web) -> None:
    refused(web.ask("PUT", "/api/secrets/Not-A-Name", json={"value": "x"}), 422)


def test_a_changed_secret_restarts_those_who_use_it_and_nobody_else(web: Web, name: str) -> None:
    web.call("PUT", f"/api/secrets/{name}", {"value": web.database})
    sink = {"type": "postgres", "url": {"$secret": name}, "table": name.replace("-", "_")}
    web.publish(name, sink=sink)
    web.publish(f"{name}-other")
    before = {one: web.running(one)["states"][0]["epoch"] for one in (name, f"{name}-other")}
    assert web.call("PUT", f"/api/secrets/{name}", {"value": web.database + "&application_name=x"})["restarted"] == 1
    web.wait_for(name, lambda d: d["states"][0]["epoch"] > before[name] and d["worker_status"] == "RUNNING")
    assert web.show(f"{name}-other")["states"][0]["epoch"] == before[f"{name}-other"]


def answers(web: Web, name: str) -> Iterator[tuple[str, str]]:
    """Everything that this node says to an admin, path by path."""
    for path, methods in PATHS.items():
        if "get" in methods and path not in ("/api/events", "/api/datasources/{name}/events/stream"):
            follow = "?follow=false" if path.endswith("logs") else ""
            for number in ("1", "2"):
                named = "postgres" if "connectors" in path else name
                asked = path.format(name=named, number=number, id=f"{name}:0", kind="singer") + follow
                yield asked, web.ask("GET", asked).text
    for action in ("validate", "publish", "restart", "reload"):
        yield action, web.ask("POST", f"/api/datasources/{name}/{action}").text
    yield "plan", web.ask("POST", "/api/plan", json={"yaml": web.ask("GET", "/api/export").text}).text
    yield "console", web.ask("GET", "/").text
    yield "events", json.dumps([dict(row) for row in web.rows("SELECT * FROM headgate.datasource_events")], default=str)
    yield "log lines", json.dumps([dict(row) for row in web.rows("SELECT * FROM headgate.log_line")], default=str)
    yield "states", json.dumps([dict(row) for row in web.rows("SELECT * FROM headgate.datasource_state")], default=str)
    yield "node log", web.node.log()


PASSWORD = "Recognisable-hunter2"


@pytest.mark.parametrize(
    "url",
    [
        f"postgresql://headgate:{PASSWORD}@127.0.0.1:1/db",
        f"postgresql://headgate:{PASSWORD}@no-such-host.invalid/db",
        f"mysql://headgate:{PASSWORD}@127.0.0.1/db",
        f"postgresql://headgate:{PASSWORD}@127.0.0.1:1/db?sslmode={PASSWORD}",
        f"postgresql://headgate:{PASSWORD}/x@127.0.0.1/db",
    ],
)
def test_a_secret_is_in_no_answer_event_log_line_or_metric_even_when_its_sink_fails(
    web: Web, name: str, url: str
) -> None:
    web.call("PUT", f"/api/secrets/{name}", {"value": url})
    sink = {"type": "postgres", "url": {"$secret": name}, "table": "t"}
    if url.startswith("mysql") or "/x@" in url:
        web.call("PUT", f"/api/datasources/{name}", {"source": GENERATOR, "sink": sink})
        assert refused(web.ask("POST", f"/api/datasources/{name}/publish"), 422)["problems"][0]["path"] == "sink.url"
    else:
        web.publish(name, sink=sink)
        failed = {"worker_failed", "worker_quarantined"}
        web.until(lambda: web.events(name), lambda types: not failed.isdisjoint(types))
    said = {where: text for where, text in answers(web, name) if PASSWORD in text}
    assert said == {}


# Why it is not moving.


def explained(web: Web, name: str, pattern: str) -> str:
    """Wait until one of the sentences is like this."""

    def lines() -> list[str]:
        found: list[str] = web.call("GET", f"/api/datasources/{name}/explain")["lines"]
        return found

    found = web.until(lines, lambda lines: any(re.search(pattern, line) for line in lines))
    return " ".join(found)


def test_explain_says_that_nothing_is_published(web: Web, name: str) -> None:
    draft(web, name)
    assert f"headgate ds publish {name}" in explained(web, name, "Nothing has been published")


def test_explain_says_that_it_is_stopped_and_how_to_start_it(web: Web, name: str) -> None:
    web.publish(name, enabled=False)
    assert f"headgate ds start {name}" in explained(web, name, "It is stopped")


def test_explain_says_that_it_runs_and_when_it_last_moved(web: Web, name: str) -> None:
    web.publish(name)
    web.publish(f"{name}-quiet", source={"type": "webhook"})
    text = explained(web, name, "It is running.* ago")
    assert re.search(r"version 1 on .*; [1-9]\d* records? read: [1-9]\d* written", text)
    explained(web, f"{name}-quiet", "the source has had nothing yet")


def test_explain_says_that_it_is_tried_again_and_why(web: Web, name: str) -> None:
    web.call("PUT", f"/api/secrets/{name}", {"value": "postgresql://x@127.0.0.1:1/y"})
    web.publish(name, sink={"type": "postgres", "url": {"$secret": name}, "table": "t"})
    assert "refused" in explained(web, name, r"It failed \(network\) and (is being tried|tries) again")
    assert web.show(name)["health"] == "error"


def test_explain_says_that_a_version_was_rejected_and_which_one_goes_on(web: Web, name: str, tmp_path: Path) -> None:
    web.publish(name)
    web.running(name)
    web.publish(name, sink={"type": "files", "path": str(tmp_path / "no" / "such" / "folder")})
    text = explained(web, name, "Version 2 was tried and rejected")
    assert "does not exist" in text
    assert "Version 1 goes on meanwhile" in text
    assert "It is running" in text
    found = web.show(name)
    assert (found["health"], found["running_version"], found["published_status"]) == ("error", 1, "rejected")


def test_explain_says_that_a_source_has_ended(web: Web, name: str) -> None:
    web.publish(name, source={"type": "generator", "count": 3})
    explained(web, name, "Its source has ended")


def test_explain_says_that_it_is_quarantined_and_what_ends_that(web: Web, name: str) -> None:
    web.publish(name)
    web.running(name)
    quarantine(web, name)
    assert "A publish, a changed secret, a start or a restart" in explained(web, name, "quarantined: it blocked a node")
    web.call("POST", f"/api/datasources/{name}/restart")
    explained(web, name, "It is running")


def test_explain_says_that_an_expectation_is_not_met(web: Web, name: str) -> None:
    web.publish(name, source={"type": "webhook"}, expect={"fresh_within": "0.1s"})
    explained(web, name, "Not as expected: no record for .*; expected one within 0.1s")
    web.wait_for(name, lambda d: d["health"] == "degraded")  # The time counts anew once it runs.


# Everything else.


def test_the_schema_is_openapi_and_names_every_path(web: Web) -> None:
    schema = web.call("GET", "/api/schema")
    assert schema["openapi"].startswith("3.1")
    for path, methods in PATHS.items():
        assert methods <= schema["paths"][path].keys(), path
    operations = [op for methods in schema["paths"].values() for op in methods.values()]
    assert all(operation["summary"] for operation in operations)
    ids = [operation["operationId"] for operation in operations]
    assert len(ids) == len(set(ids))


def test_every_connector_has_a_schema_of_its_options(web: Web) -> None:
    assert web.ask("GET", "/api/documents/schema").json() == schema.file_schema()
    assert web.ask("GET", "/api/documents/schema?one=true").json() == schema.document_schema()
    items = web.call("GET", "/api/connectors")["items"]
    assert {"webhook", "generator", "postgres", "files", "stdout", "blackhole"} <= {item["name"] for item in items}
    for item in items:
        found = web.call("GET", f"/api/connectors/{item['name']}")
        assert found["summary"] == item["summary"]
        for side in {"source", "sink"} & set(item["sides"]):
            assert found[side]["type"] == "object"
        assert bool(found.get("schemes")) == bool(
            {"reader", "writer"} & set(item["sides"]) and item["name"] != "generator"
        )


def test_metrics_are_there_for_each_datasource(web: Web, name: str) -> None:
    web.publish(name)
    web.wait_for(name, lambda d: d["metrics"].get("records_written", 0) > 0)
    answer = web.ask("GET", "/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    assert re.search(rf'headgate_records_written_total{{datasource="{name}",stream="{name}:0"}} [1-9]', answer.text)
    assert f'headgate_worker_status{{datasource="{name}",status="RUNNING",stream="{name}:0"}} 1.0' in answer.text


def test_readiness_says_what_is_degraded_to_those_with_a_token_only(web: Web, name: str) -> None:
    web.call("PUT", f"/api/secrets/{name}", {"value": "postgresql://x@127.0.0.1:1/y"})
    web.publish(name, sink={"type": "postgres", "url": {"$secret": name}, "table": "t"})
    web.wait_for(name, lambda d: d["health"] == "error")
    assert f"datasource {name}: error" in web.call("GET", "/readyz")["degraded"]
    assert httpx.get(f"{web.node.url}/readyz").json() == {"status": "ok"}
    assert httpx.get(f"{web.node.url}/healthz").json() == {"status": "ok"}


# Nodes of their own.


def test_the_master_key_is_rotated_while_datasources_run_and_the_old_one_is_then_not_needed(
    databases: Databases, tmp_path: Path
) -> None:
    database = databases.make()
    sink = {"type": "postgres", "url": {"$secret": "warehouse"}, "table": "t"}
    with started(tmp_path, database, HEADGATE_MASTER_KEY=OLD) as web:
        web.call("PUT", "/api/secrets/warehouse", {"value": database})
        web.publish("orders", sink=sink)
        web.running("orders")
        web.node.end()
    with started(tmp_path, database, HEADGATE_MASTER_KEY=f"{NEW},{OLD}") as web:
        epoch, no_letters = (
            web.running("orders")["states"][0]["epoch"],
            {"letters": 0, "letters_stuck": 0, "letters_left": 0},
        )
        assert web.call("POST", "/api/secrets/rotate") == {"rewrapped": 1, "stuck": [], **no_letters}
        assert web.call("POST", "/api/secrets/rotate") == {"rewrapped": 0, "stuck": [], **no_letters}
        written = web.show("orders")["metrics"]["records_written"]
        found = web.wait_for("orders", lambda d: d["metrics"]["records_written"] > written)
        assert (found["states"][0]["epoch"], web.events("orders").count("restarted")) == (epoch, 0)
        web.node.end()
    with started(tmp_path, database, HEADGATE_MASTER_KEY=NEW) as web:
        web.running("orders")
        web.node.end()
    with started(tmp_path, database, HEADGATE_MASTER_KEY=OTHER) as web:
        text = explained(web, "orders", r"It failed \(config\) and is not tried again by itself")
        assert "secret 'warehouse' cannot be decrypted here (is HEADGATE_MASTER_KEY the right one?)" in text
        assert "headgate ds restart orders" in text
        found = web.show("orders")
        assert (found["worker_status"], found["detail"], found["health"]) == ("ERROR", "quarantined", "error")
        assert found["metrics"]["records_written"] >= written  # What it has done stays done.


def test_datasources_may_come_from_a_file_and_only_from_it(databases: Databases, tmp_path: Path) -> None:
    database, file = databases.make(), tmp_path / "registry.yaml"
    document = "{source: {type: generator, rate: 50}, sink: {type: blackhole}}"
    with started(tmp_path, database) as web:
        web.publish("from-database")
        web.running("from-database")
        web.node.end()
    file.write_text(f"datasources:\n  from-file: {document}\n")
    with started(tmp_path, database, HEADGATE_REGISTRY=f"yaml:{file}") as web:
        web.running("from-file")
        body = {"source": GENERATOR, "sink": BLACKHOLE}
        for method, path, sent in (
            ("POST", "/api/datasources", {"name": "another", **body}),
            ("PUT", "/api/datasources/from-file", body),
            ("PUT", "/api/datasources/from-file/draft", body),
            ("POST", "/api/datasources/from-file/publish", None),
            ("POST", "/api/datasources/from-file/rollback", {"version": 1}),
            ("POST", "/api/datasources/from-file/stop", None),
            ("POST", "/api/datasources/from-file/start", None),
            ("DELETE", "/api/datasources/from-file", None),
            ("POST", "/api/apply", {"datasources": {"another": body}}),
        ):
            found = refused(web.ask(method, path, json=sent), 409)
            assert found["code"] == "read_only"
            assert str(file) in found["detail"]
        assert web.call("POST", "/api/datasources/from-file/restart")["action"] == "restart"

        file.write_text("datasources: {broken\n")
        web.until(web.node.log, lambda log: "the registry file is not usable" in log)
        assert f"{file}:2:1" in web.node.log()
        web.running("from-file")

        file.write_text(f"datasources:\n  from-edit: {document}\n")
        web.until(lambda: web.ask("GET", "/api/datasources/from-edit"), lambda answer: answer.is_success)
        web.running("from-edit")
        web.wait_for("from-file", lambda d: d["worker_status"] == "STOPPED")
        assert web.show("from-database")["worker_status"] == "STOPPED"

        def owned() -> list[str]:
            return [row["datasource"] for row in web.call("GET", "/api/streams")["items"] if row["owner"]]

        # A stream may be granted to this node once more; it declines, and is not asked again.
        web.until(owned, lambda names: names == ["from-edit"])
        assert "does not name the datasource" in explained(web, "from-file", "It waits for a node that can run it")
        assert web.show("from-file")["worker_status"] == "STOPPED"
        web.node.end()
    with started(tmp_path, database) as web:
        for name in ("from-database", "from-file", "from-edit"):
            web.running(name)


def test_a_node_does_not_start_on_a_broken_file_and_says_where_it_is_broken(
    databases: Databases, tmp_path: Path
) -> None:
    file = tmp_path / "registry.yaml"
    file.write_text("datasources:\n  a: {\n")
    with (
        pytest.raises(RuntimeError, match=re.escape(f"{file}:3:1")),
        started(tmp_path, databases.make(), HEADGATE_REGISTRY=f"yaml:{file}"),
    ):
        pass


def test_a_name_that_does_not_exist_brings_up_the_nearest_one(web: Web, name: str) -> None:
    web.publish(f"customers-{name}")
    web.running(f"customers-{name}")
    found = refused(web.ask("GET", f"/api/datasources/customer-{name}"), 404)
    assert found["detail"] == f"datasource 'customer-{name}' does not exist"
    assert found["hint"] == f"did you mean 'customers-{name}'?"
    assert refused(web.ask("GET", "/api/datasources/zzzzzz"), 404)["hint"] == "headgate ds list"


def test_the_command_that_watches_rates_ends_when_it_was_to_look_once(web: Web, name: str) -> None:
    web.publish(name)
    asked = {"HEADGATE_URL": web.node.url, "HEADGATE_TOKEN": web.node.token}
    shown = headgate(web.node.home, "top", "--once", "--every", "0.2", **asked)
    assert name in shown.stdout
