"""Streams and nodes over HTTP: who has what, where it stands, and what operators may do about it."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import httpx
import pytest

from headgate.testing.processes import NodeProcess
from tests.waiting import LONG_S
from tests.web_node import GENERATOR, Web, bearer

FASTER = {"type": "generator", "rate": 200}


@contextmanager
def joined(web: Web, home: Path, name: str, **environment: str) -> Iterator[Web]:
    """Another node of the same installation, for the time of a block."""
    variables = {"HEADGATE_NODE_NAME": name, **environment}
    node = NodeProcess.start(home, database=web.database, token=web.node.token, environment=variables)
    try:
        with httpx.Client(base_url=node.url, headers=bearer(node.token), timeout=LONG_S) as client:
            yield Web(node, web.database, client)
    finally:
        node.end(signal.SIGKILL)
        web.until(lambda: names(web), lambda found: name not in found)


def names(web: Web) -> list[str]:
    return [node["name"] for node in web.call("GET", "/api/nodes")["items"]]


def nodes(web: Web) -> dict[str, dict[str, Any]]:
    return {node["name"]: node for node in web.call("GET", "/api/nodes")["items"]}


def this(web: Web) -> dict[str, Any]:
    """The node that answers."""
    (found,) = [node for node in web.call("GET", "/api/nodes")["items"] if node["is_this"]]
    return dict(found)


def stream(web: Web, name: str) -> dict[str, Any]:
    found: dict[str, Any] = web.call("GET", f"/api/streams/{name}")
    return found


def refused(answer: httpx.Response, status: int, code: str) -> dict[str, Any]:
    assert answer.status_code == status, answer.text
    found: dict[str, Any] = answer.json()
    assert found["code"] == code
    return found


def set_position(web: Web, name: str, **body: Any) -> dict[str, Any]:
    found: dict[str, Any] = web.call("PUT", f"/api/streams/{name}/position", {**body, "yes": True})
    return found


def stop(web: Web, name: str) -> None:
    """Until nobody has its stream."""
    web.call("POST", f"/api/datasources/{name}/stop")
    web.until(lambda: stream(web, f"{name}:0"), lambda found: found["owner"] is None)


def stopped(web: Web, name: str, **parts: Any) -> str:
    """A datasource that has moved something, and was stopped. Returns the name of its stream."""
    web.publish(name, **parts)
    web.wait_for(name, lambda d: d["metrics"].get("records_written", 0) > 10)
    stop(web, name)
    return f"{name}:0"


def add_labelled(web: Web, datasource: str, label: str) -> None:
    """A stream as a program makes it that pushes."""
    web.execute(
        "INSERT INTO headgate.stream (id, datasource, label)"
        f" SELECT '{uuid4()}', id, '{label}' FROM headgate.datasource WHERE name = '{datasource}'"
    )


def happened(web: Web, type: str) -> list[dict[str, Any]]:
    """Events of this type that belong to no datasource."""
    rows = web.rows(
        "SELECT actor, payload->>'node' AS node, payload->>'streams' AS streams FROM headgate.datasource_events"
        " WHERE type = $1 AND datasource IS NULL ORDER BY id",
        type,
    )
    return [dict(row) for row in rows]


def lines(web: Web, name: str) -> str:
    return " ".join(web.call("GET", f"/api/datasources/{name}/explain")["lines"])


# Looking at streams.


def test_a_stream_is_shown_with_everything_about_it_by_its_name_and_by_its_id(web: Web, name: str) -> None:
    web.publish(name)
    web.running(name)
    node = this(web)
    found = stream(web, f"{name}:0")
    assert (found["name"], found["datasource"], found["index"], found["label"]) == (f"{name}:0", name, 0, None)
    assert (found["owner"], found["node"], found["version"]) == (node["id"], node["name"], 1)
    assert (found["epoch"] >= 2, found["generation"], found["rests"], found["unable"]) == (True, 0, False, [])
    assert (found["state"]["worker_status"], found["state"]["detail"]) == ("RUNNING", "running")
    assert found["state"]["error"] is None
    assert stream(web, found["id"])["name"] == f"{name}:0"
    (listed,) = [one for one in web.call("GET", "/api/streams")["items"] if one["datasource"] == name]
    assert listed.keys() == found.keys() - {"state", "unable", "wish"}
    assert (listed["id"], listed["node"], listed["owner"]) == (found["id"], node["name"], node["id"])


def test_a_position_moves_with_the_records(web: Web, name: str) -> None:
    web.publish(name, source=FASTER)
    found = web.until(lambda: stream(web, f"{name}:0"), lambda s: s["position"] is not None)
    web.until(
        lambda: stream(web, f"{name}:0"),
        lambda s: s["position"] > found["position"] and s["commits"] > found["commits"],
    )


def test_a_stream_whose_source_has_ended_rests(web: Web, name: str) -> None:
    web.publish(name, source={"type": "generator", "count": 3})
    found = web.until(lambda: stream(web, f"{name}:0"), lambda s: s["rests"])
    assert (found["owner"], found["position"]) == (None, 2)
    web.until(lambda: stream(web, f"{name}:0")["state"]["detail"], lambda detail: detail == "finished")
    set_position(web, f"{name}:0", position=1)
    web.until(lambda: stream(web, f"{name}:0"), lambda s: s["rests"] and s["position"] == 2)


def test_a_stream_that_never_ran_has_no_state(web: Web, name: str) -> None:
    web.publish(name, enabled=False)
    found = stream(web, f"{name}:0")
    assert (found["state"], found["owner"], found["position"], found["version"]) == (None, None, None, None)
    assert web.call("GET", f"/api/streams/{name}:0/history") == {"items": []}


def test_a_stream_that_a_program_pushes_has_a_label(web: Web, name: str) -> None:
    web.publish(name, enabled=False)
    for label in ("host-7", "a:b@c=d+e~f.g", "straße"):
        add_labelled(web, name, label)
        found = stream(web, f"{name}:{label}")
        assert (found["name"], found["label"], found["index"]) == (f"{name}:{label}", label, None)
        set_position(web, f"{name}:{label}", position=7)
        assert stream(web, found["id"])["position"] == 7
    listed = [one["name"] for one in web.call("GET", "/api/streams")["items"] if one["datasource"] == name]
    assert len(listed) == 4


def test_a_name_that_two_streams_have_is_refused_and_an_id_means_one(web: Web, name: str) -> None:
    web.publish(name, enabled=False)
    add_labelled(web, name, "0")
    found = refused(web.ask("GET", f"/api/streams/{name}:0"), 409, "ambiguous")
    ids = [one["id"] for one in web.call("GET", "/api/streams")["items"] if one["datasource"] == name]
    assert all(id in found["hint"] for id in ids)
    assert [stream(web, id)["id"] for id in ids] == ids


UNKNOWN = UUID(int=7)


@pytest.mark.parametrize(
    "id",
    ["nobody:0", "nobody", "for-streams:1", "for-streams", "for-streams:", ":0", "%FF", "%00", "a%2Fb", str(UNKNOWN)],
)
def test_an_unknown_stream_is_not_found_on_every_path(web: Web, id: str) -> None:
    web.publish("for-streams")
    for method, rest, body in (
        ("GET", "", None),
        ("GET", "/history", None),
        ("PUT", "/position", {"position": 1}),
        ("PUT", "/position", {"undo": True}),
        ("POST", "/move", {"node": None}),
    ):
        assert web.ask(method, f"/api/streams/{id}{rest}", json=body).status_code == 404


# History.


def test_history_says_who_had_it_and_where_it_stood_the_latest_first(web: Web, name: str) -> None:
    named = stopped(web, name)
    set_position(web, named, position=3)
    items = web.call("GET", f"/api/streams/{named}/history")["items"]
    assert [item["kind"] for item in items] == ["edited", "released", "acquired", "granted"]
    node = this(web)["name"]
    assert [item["actor"] for item in items] == ["first", node, node, node]
    edited, released, acquired, granted = items
    assert acquired["epoch"] == granted["epoch"] + 1
    assert (edited["position"], edited["before"]) == (3, released["position"])
    assert (edited["generation"], edited["epoch"]) == (released["generation"] + 1, released["epoch"] + 1)
    assert (acquired["position"], acquired["commits"]) == (None, 0)
    assert "before" not in released
    assert [item["id"] for item in items] == sorted((item["id"] for item in items), reverse=True)
    assert web.call("GET", f"/api/streams/{named}/history?limit=1")["items"] == [edited]
    for limit in ("0", "-5", "99999"):
        assert web.call("GET", f"/api/streams/{named}/history?limit={limit}")["items"][0] == edited
    assert web.ask("GET", f"/api/streams/{named}/history?limit=x").status_code == 400


# Editing positions.


def test_an_edit_is_refused_while_a_node_has_the_stream(web: Web, name: str) -> None:
    web.publish(name)
    web.running(name)
    found = refused(web.ask("PUT", f"/api/streams/{name}:0/position", json={"position": 1}), 409, "active")
    assert this(web)["name"] in found["detail"]
    assert found["hint"] == f"headgate ds pause {name} first"
    refused(web.ask("PUT", f"/api/streams/{name}:0/position", json={"undo": True}), 409, "nothing_to_undo")
    assert stream(web, f"{name}:0")["generation"] == 0
    assert "position_edited" not in web.events(name)


def test_an_edit_wins_over_a_transactional_sink_that_is_ahead(web: Web, name: str) -> None:
    table = name.replace("-", "_")
    web.call("PUT", f"/api/secrets/{name}", {"value": web.database})
    web.execute(f"CREATE TABLE {table} (id bigint)")
    sink = {"type": "postgres", "url": {"$secret": name}, "table": table, "mode": "insert"}
    named = stopped(web, name, source=FASTER, mapping={"set": {"id": "id"}}, sink=sink)
    (before,) = web.rows(f"SELECT max(id) AS last FROM {table}")
    done = set_position(web, named, position=4)
    assert (done["name"], done["before"], done["position"], done["generation"]) == (named, before["last"], 4, 1)
    web.call("POST", f"/api/datasources/{name}/start")

    def written() -> dict[int, int]:
        rows = web.rows(f"SELECT id, count(*) AS times FROM {table} GROUP BY id")
        return {row["id"]: row["times"] for row in rows}

    found = web.until(written, lambda times: max(times) > before["last"] + 1)
    assert found == {id: 2 if 4 < id <= before["last"] else 1 for id in range(max(found) + 1)}


def test_null_is_the_beginning(web: Web, name: str) -> None:
    named = stopped(web, name)
    assert set_position(web, named, position=None)["position"] is None
    assert stream(web, named)["position"] is None
    assert web.call("GET", f"/api/streams/{named}/history?limit=1")["items"][0]["position"] is None


@pytest.mark.parametrize(
    "position", [0, -1, 10**30, 1.5, "", "text \u0001 é", True, [], [1, [2]], {"file": "a", "at": 7}]
)
def test_any_json_may_be_a_position(web: Web, position: Any) -> None:
    if not web.ask("GET", "/api/datasources/for-positions").is_success:
        web.publish("for-positions", enabled=False)
    assert set_position(web, "for-positions:0", position=position)["position"] == position
    assert stream(web, "for-positions:0")["position"] == position


def test_an_edit_can_be_undone_and_undoing_twice_is_doing_it_again(web: Web, name: str) -> None:
    named = stopped(web, name)
    before = stream(web, named)["position"]
    set_position(web, named, position=3)
    undone = set_position(web, named, undo=True)
    assert (undone["before"], undone["position"]) == (3, before)
    again = set_position(web, named, undo=True)
    assert (again["before"], again["position"], again["generation"]) == (before, 3, 3)
    assert stream(web, named)["position"] == 3


def test_what_was_never_edited_cannot_be_undone(web: Web, name: str) -> None:
    web.publish(name, enabled=False)
    refused(web.ask("PUT", f"/api/streams/{name}:0/position", json={"undo": True}), 409, "nothing_to_undo")


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"undo": False},
        {"undo": None},
        {"undo": 1},
        {"undo": "true"},
        {"position": 1, "undo": True},
        {"position": 1, "undo": False},
        {"position": 1, "history": 1},
        {"history": 1, "undo": True},
        {"history": "1"},
        {"position": 1, "other": 2},
        {"pos": 1},
    ],
)
def test_a_body_with_neither_or_both_is_a_problem(web: Web, body: Any) -> None:
    web.publish("for-edits", enabled=False)
    found = refused(web.ask("PUT", "/api/streams/for-edits:0/position", json=body), 422, "invalid")
    if body.keys() <= {"position", "undo", "history"} and isinstance(body.get("undo", True), bool):
        text = "the body must have either `position`, `history` or `undo: true`"
        assert not isinstance(body.get("history", 1), int) or found["problems"][0]["message"] == text
    assert stream(web, "for-edits:0")["generation"] == 0


def test_an_edit_is_recorded_with_what_was_before_and_who_did_it(web: Web, name: str) -> None:
    web.publish(name, enabled=False)
    headers = bearer(web.token("operator"))
    web.call("PUT", f"/api/streams/{name}:0/position", {"position": {"at": 7}, "yes": True}, headers=headers)
    web.call("PUT", f"/api/streams/{name}:0/position", {"undo": True, "yes": True}, headers=headers)
    events = web.call("GET", f"/api/datasources/{name}/events")["items"][-2:]
    assert [event["type"] for event in events] == ["position_edited"] * 2
    assert [event["actor"].partition(" ")[0] for event in events] == ["operator"] * 2
    assert events[0]["payload"] == {"stream": f"{name}:0", "before": None, "after": {"at": 7}}
    assert events[1]["payload"] == {"stream": f"{name}:0", "before": {"at": 7}, "after": None}


def test_a_position_that_its_source_cannot_use_is_reported_and_can_be_undone(web: Web, name: str) -> None:
    named = stopped(web, name)
    before = stream(web, named)["position"]
    set_position(web, named, position="not a number")
    web.call("POST", f"/api/datasources/{name}/start")
    found = web.until(lambda: stream(web, named), lambda s: s["unable"] and s["state"]["error"] and not s["owner"])
    assert found["state"]["error"]["cause"] == "config"
    assert found["unable"][0]["node"] == this(web)["name"]
    assert "not a number" in found["unable"][0]["reason"]
    assert "It failed (config)" in lines(web, name)
    assert set_position(web, named, undo=True)["position"] == before
    web.call("POST", f"/api/datasources/{name}/restart")
    web.until(lambda: stream(web, named), lambda s: s["state"]["detail"] == "running" and not s["unable"])


# Roles.


def test_a_viewer_may_look_and_only_an_operator_may_act(web: Web, name: str) -> None:
    web.publish(name, enabled=False)
    viewer, operator = bearer(web.token("viewer")), bearer(web.token("operator"))
    for path in (f"/api/streams/{name}:0", f"/api/streams/{name}:0/history", "/api/streams", "/api/nodes"):
        assert web.ask("GET", path, headers=viewer).is_success
        assert httpx.get(web.node.url + path).status_code == 401
    for method, path, body in (
        ("PUT", f"/api/streams/{name}:0/position", {"position": 1, "yes": True}),
        ("POST", "/api/nodes/nobody/drain", None),
        ("POST", "/api/nodes/nobody/undrain", None),
        ("DELETE", "/api/nodes/nobody?yes=true", None),
    ):
        refused(web.ask(method, path, json=body, headers=viewer), 403, "forbidden")
        assert httpx.request(method, web.node.url + path, json=body).status_code == 401
        assert web.ask(method, path, json=body, headers=operator).status_code in (200, 404)
    assert stream(web, f"{name}:0")["generation"] == 1


# Nodes.


def test_nodes_are_listed_with_how_they_are_and_which_one_answers(web: Web, tmp_path: Path) -> None:
    with joined(web, tmp_path, "beta") as beta:
        here, there = this(web), this(beta)
        assert (there["name"], there["address"], there["status"], there["draining"]) == (
            "beta",
            beta.node.url,
            "up",
            False,
        )
        assert (here["silent_s"], here["id"] != there["id"]) == (0, True)
        assert [node["is_this"] for node in beta.call("GET", "/api/nodes")["items"]] == [False, True]
        assert 0 <= nodes(web)["beta"]["silent_s"] < 2.5
        assert beta.node.end() == 0
    assert len(names(web)) == 1


def test_a_node_that_does_not_beat_is_silent_and_then_not(web: Web, tmp_path: Path) -> None:
    with joined(web, tmp_path, "beta", HEADGATE_LEASE_S="30") as beta:
        beta.node.process.send_signal(signal.SIGSTOP)
        found = web.until(lambda: nodes(web)["beta"], lambda node: node["status"] == "silent")
        assert found["silent_s"] >= 2.5
        beta.node.process.send_signal(signal.SIGCONT)
        web.until(lambda: nodes(web)["beta"], lambda node: node["status"] == "up")
        beta.node.end()


def test_a_drained_node_gives_its_streams_to_another_and_takes_none_until_it_is_undrained(
    web: Web, name: str, tmp_path: Path
) -> None:
    with joined(web, tmp_path, "beta") as beta:
        here = this(web)
        try:
            first = web.call("POST", f"/api/nodes/{here['name']}/drain")
            assert (first["id"], first["draining"], first["others"]) == (here["id"], True, 1)
            assert first["streams"] == here["streams"]
            assert web.call("POST", f"/api/nodes/{here['id']}/drain")["draining"] is True
            web.until(lambda: this(web)["streams"], lambda left: left == 0)
            assert this(web)["status"] == "draining"
            web.publish(name)
            assert web.running(name)["node"] == "beta"
            assert beta.call("POST", "/api/nodes/beta/drain")["others"] == 0
            web.until(lambda: nodes(web)["beta"]["streams"], lambda left: left == 0)
            web.until(lambda: lines(web, name), lambda text: "It waits for a node: all are draining." in text)
        finally:
            done = web.call("POST", f"/api/nodes/{here['id']}/undrain")
        assert (done["draining"], done["streams"], done["others"]) == (False, 0, 0)
        assert web.running(name)["node"] == here["name"]
        assert web.call("POST", f"/api/nodes/{here['id']}/undrain")["draining"] is False
        beta.node.end()
    drained = [event for event in happened(web, "node_drained") if event["node"] in ("beta", here["name"])]
    assert drained[-2:] == [{"actor": "first", "node": node, "streams": None} for node in (here["name"], "beta")]
    assert happened(web, "node_undrained")[-1] == {"actor": "first", "node": here["name"], "streams": None}


def test_a_stream_that_nobody_has_taken_up_says_that_all_are_draining(web: Web, name: str) -> None:
    here = this(web)["id"]
    try:
        web.call("POST", f"/api/nodes/{here}/drain")
        web.until(lambda: this(web)["streams"], lambda left: left == 0)
        web.publish(name)
        assert lines(web, name).startswith("No node has taken it up yet. It waits for a node: all are draining.")
    finally:
        web.call("POST", f"/api/nodes/{here}/undrain")
    web.running(name)


def test_a_stream_that_no_node_can_run_says_why_for_each(web: Web, name: str, tmp_path: Path) -> None:
    with joined(web, tmp_path, "beta") as beta:
        sink = {"type": "files", "path": "/no/such/folder/file"}
        web.publish(name, source=GENERATOR, sink=sink)
        found = web.until(lambda: stream(web, f"{name}:0"), lambda s: len(s["unable"]) == 2 and not s["owner"])
        assert {row["node"] for row in found["unable"]} == {"beta", this(web)["name"]}
        assert all("does not exist" in row["reason"] for row in found["unable"])
        assert found["node"] is None
        # A node tries again now and then.
        text = web.until(lambda: lines(web, name), lambda text: "It waits for a node that can run it." in text)
        assert text.count("does not exist") == 3
        beta.call("POST", "/api/nodes/beta/drain")
        web.call("POST", f"/api/datasources/{name}/restart")
        web.until(lambda: lines(web, name), lambda text: "beta: draining" in text)
        beta.node.end()


def test_what_programs_push_waits_for_no_node(web: Web, name: str) -> None:
    web.publish(name, source={"type": "push"})
    assert lines(web, name) == "No program has pushed anything yet."


def test_a_node_is_named_by_the_beginning_of_its_id_and_not_by_less(web: Web) -> None:
    id = this(web)["id"]
    for letters in (id[:4], id[:8], id):
        assert web.call("POST", f"/api/nodes/{letters}/undrain")["id"] == id
    for unknown in (id[:3], f"{id}0", "nobody", "%FF", "%00", "a%2Fb", str(uuid4())):
        for method, rest in (("POST", "/drain"), ("POST", "/undrain"), ("DELETE", ""), ("DELETE", "?yes=true")):
            assert web.ask(method, f"/api/nodes/{unknown}{rest}").status_code == 404
    assert this(web)["draining"] is False


def test_a_name_that_two_nodes_have_is_refused(web: Web, tmp_path: Path) -> None:
    with joined(web, tmp_path / "1", "twin") as one, joined(web, tmp_path / "2", "twin") as two:
        ids = [this(one)["id"], this(two)["id"]]
        for method, rest in (("POST", "/drain"), ("POST", "/undrain"), ("DELETE", "?yes=true")):
            found = refused(web.ask(method, f"/api/nodes/twin{rest}"), 409, "ambiguous")
            assert all(id in found["hint"] for id in ids)
        assert web.call("POST", f"/api/nodes/{ids[1]}/drain")["others"] == 2
        assert [this(one)["draining"], this(two)["draining"]] == [False, True]
        one.node.end()
        two.node.end()


# Forgetting.


def test_a_node_that_may_be_alive_is_not_forgotten_unless_somebody_knows_better(
    web: Web, name: str, tmp_path: Path
) -> None:
    with joined(web, tmp_path, "beta", HEADGATE_LEASE_S="60") as beta:
        here = this(web)["id"]
        web.call("POST", f"/api/nodes/{here}/drain")
        web.publish(name)
        assert web.wait_for(name, lambda d: d["worker_status"] == "RUNNING")["node"] == "beta"
        web.call("POST", f"/api/nodes/{here}/undrain")
        beta.node.end(signal.SIGKILL)
        found = refused(web.ask("DELETE", "/api/nodes/beta"), 409, "alive")
        assert found["detail"].startswith("beta beat ")
        assert 50 <= int(found["detail"].split()[-3]) <= 60
        assert refused(web.ask("DELETE", "/api/nodes/beta?yes=false"), 409, "alive")
        assert stream(web, f"{name}:0")["node"] == "beta"
        had = nodes(web)["beta"]["streams"]
        assert web.call("DELETE", "/api/nodes/beta?yes=true")["streams"] == had > 0
        assert web.ask("DELETE", "/api/nodes/beta?yes=true").status_code == 404
        web.wait_for(name, lambda d: d["node"] == this(web)["name"] and d["worker_status"] == "RUNNING")
    assert happened(web, "node_forgotten")[-1] == {"actor": "first", "node": "beta", "streams": str(had)}
    kinds = [line["kind"] for line in web.call("GET", f"/api/streams/{name}:0/history")["items"]]
    assert (kinds[0], kinds[-1], kinds.count("revoked")) == ("acquired", "granted", 1)


def test_a_living_node_that_is_forgotten_begins_anew(web: Web, tmp_path: Path) -> None:
    with joined(web, tmp_path, "beta") as beta:
        before = this(beta)["id"]
        web.call("DELETE", "/api/nodes/beta?yes=true")
        web.until(lambda: nodes(web).get("beta", {}).get("id", before), lambda id: id != before)
        beta.node.end()


def test_a_node_that_was_silent_for_its_lease_is_forgotten_without_more_ado(web: Web) -> None:
    id = uuid4()
    web.execute(f"INSERT INTO headgate.node (id, name, lease_s, version) VALUES ('{id}', 'dead', 3, '0')")
    answer = web.until(lambda: web.ask("DELETE", "/api/nodes/dead"), lambda answer: answer.status_code != 409)
    assert answer.status_code in (200, 404)  # Others look for such nodes too, twice a second.
    assert "dead" not in names(web)


def test_a_node_that_answers_is_alive_whatever_anybody_says(web: Web) -> None:
    here = this(web)
    for query in ("", "?yes=true"):
        found = refused(web.ask("DELETE", f"/api/nodes/{here['id']}{query}"), 409, "alive")
        assert found["hint"] == f"headgate nodes drain {here['name']}"
    assert this(web)["id"] == here["id"]
    assert web.ask("DELETE", f"/api/nodes/{here['id']}?yes=x").status_code == 400
