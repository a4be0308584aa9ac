"""What operators do over HTTP, and what they are told before they do it: pauses, deletes, edits of positions."""

from __future__ import annotations

from typing import Any
from uuid import UUID, uuid4

import httpx
import pytest

from tests.web_node import Web, bearer

HOOK = {"type": "webhook"}


def refused(answer: httpx.Response, code: str, status: int = 409) -> dict[str, Any]:
    assert answer.status_code == status, answer.text
    found: dict[str, Any] = answer.json()
    assert found["code"] == code
    return found


def post(web: Web, name: str, *ids: int) -> None:
    for id in ids:
        assert web.ask("POST", f"/hooks/{name}", content=b'{"id": %d}' % id).status_code == 202


def metric(web: Web, name: str, **labels: str) -> list[float]:
    lines = [line for line in web.ask("GET", "/metrics").text.splitlines() if line.startswith(name)]
    return [float(line.rpartition(" ")[2]) for line in lines if all(f'{k}="{v}"' in line for k, v in labels.items())]


def free(web: Web, name: str) -> dict[str, Any]:
    """Until nobody has its stream."""
    return web.until(lambda: web.call("GET", f"/api/streams/{name}:0"), lambda found: found["owner"] is None)


def last_event(web: Web, name: str) -> dict[str, Any]:
    found: dict[str, Any] = web.call("GET", f"/api/datasources/{name}/events?limit=1")["items"][-1]
    return found


# Pauses.


def test_a_paused_webhook_takes_payloads_and_shows_in_every_view(web: Web, name: str) -> None:
    web.publish(name, source=HOOK)
    web.opened(name)
    operator = bearer(web.token("operator"))
    done = web.call("POST", f"/api/datasources/{name}/pause", headers=operator)
    assert done == {"name": name, "action": "pause"}
    assert [event["type"] for event in web.call("GET", f"/api/datasources/{name}/events")["items"]].count("paused") == 1
    free(web, name)
    post(web, name, 1, 2, 3)
    found = web.wait_for(name, lambda d: d["detail"] == "paused" and d["metrics"]["backlog_records"] == 3)
    assert (found["health"], found["why"], found["enabled"], found["paused"]) == (
        "paused",
        "somebody paused it",
        True,
        True,
    )
    (listed,) = [one for one in web.call("GET", "/api/datasources")["items"] if one["name"] == name]
    assert (listed["health"], listed["paused"], listed["detail"]) == ("paused", True, "paused")
    assert web.call("GET", f"/api/datasources/{name}/explain")["lines"] == [
        "It is paused: nothing is read. Webhooks are still taken: 3 payloads wait. "
        f"Go on with: headgate ds start {name}"
    ]
    (group,) = [one for one in web.call("GET", "/api/groups")["items"] if one["stream"] == f"{name}:0"]
    assert group["status"] == "stopped"
    lines = web.call("GET", f"/api/groups/{name}:0/workers/explain")["lines"]
    assert any("its datasource is paused" in line for line in lines)
    # Lag and backlog grow while it is paused, and Prometheus can tell it from a stop.
    first = found["metrics"]["lag_s"]
    web.wait_for(name, lambda d: d["metrics"]["lag_s"] > first)
    web.until(lambda: metric(web, "headgate_backlog_records", datasource=name), lambda found: found == [3.0])
    assert metric(web, "headgate_lag_seconds", datasource=name)[0] > 0
    health = {"datasource": name, "status": "paused"}
    web.until(lambda: metric(web, "headgate_datasource_health", **health), lambda found: found == [1.0])
    assert metric(web, "headgate_worker_status", datasource=name, status="STOPPED") == [1.0]
    web.call("POST", f"/api/datasources/{name}/start")
    web.wait_for(name, lambda d: d["health"] == "ok" and d["metrics"]["records_written"] == 3)


def test_only_an_operator_pauses_and_what_does_not_exist_is_not_found(web: Web, name: str) -> None:
    web.publish(name)
    viewer = bearer(web.token("viewer"))
    refused(web.ask("POST", f"/api/datasources/{name}/pause", headers=viewer), "forbidden", 403)
    bound = bearer(web.token("operator", datasources=["others-*"]))
    refused(web.ask("POST", f"/api/datasources/{name}/pause", headers=bound), "forbidden", 403)
    refused(web.ask("POST", "/api/datasources/nobody/pause"), "not_found", 404)
    assert not web.show(name)["paused"]


def test_a_stopped_webhook_turns_callers_away_and_a_pause_lets_them_in(web: Web, name: str) -> None:
    web.publish(name, source=HOOK, enabled=False)
    assert web.ask("POST", f"/hooks/{name}", content=b"{}").status_code == 503
    web.call("POST", f"/api/datasources/{name}/pause")
    web.until(lambda: web.ask("POST", f"/hooks/{name}", content=b"{}").status_code, lambda status: status == 202)
    found = web.wait_for(name, lambda d: d["metrics"]["backlog_records"] == 1)
    assert (found["health"], found["states"]) == ("paused", [])  # It has never run.


# Deletes.


def held(web: Web, name: str, **changes: Any) -> UUID:
    """A paused webhook with three payloads, an open letter, and a backfill that no process runs. Returns that one."""
    web.publish(name, source=HOOK)
    web.opened(name)
    web.call("POST", f"/api/datasources/{name}/pause")
    free(web, name)
    post(web, name, 1, 2, 3)
    dump = uuid4()
    found = f"FROM headgate.stream s JOIN headgate.datasource d ON d.id = s.datasource WHERE d.name = '{name}'"
    web.execute(
        "INSERT INTO headgate.dead_letter (id, datasource, stream, place, stage, reason, cause, version, first_at,"
        " last_at, size_bytes, payload, in_sink) SELECT gen_random_uuid(), d.id, s.id, 'payload 1', 'mapping', 'why',"
        f" 'bad_record', 1, now(), now(), 2, '1', false {found} AND NOT d.deleted;"
        "INSERT INTO headgate.dump (id, source, target, options, datasource, place, actor)"
        f" SELECT '{dump}', 'a', 'b', '{{}}', d.id, 'here', 'ada' {found} AND NOT d.deleted"
    )
    return dump


def test_a_delete_says_what_would_be_lost_and_needs_a_yes_for_it(web: Web, name: str) -> None:
    dump = held(web, name)
    stake = web.call("GET", f"/api/datasources/{name}/deletion", headers=bearer(web.token("viewer")))
    assert stake == {"name": name, "payloads": 3, "letters": 1, "dumps": [str(dump)]}
    found = refused(web.ask("DELETE", f"/api/datasources/{name}"), "would_lose")
    assert found["counts"] == {"payloads": 3, "letters": 1, "dumps": 1}
    assert [(one["path"], one["message"]) for one in found["problems"]] == [
        (name, "3 accepted payloads wait"),
        (name, "1 dead letter is open"),
        (name, f"dump {str(dump)[:13]} is not over"),
    ]
    assert web.show(name)["paused"]  # Nothing was done.
    web.call("DELETE", f"/api/datasources/{name}?yes=true")
    refused(web.ask("GET", f"/api/datasources/{name}"), "not_found", 404)
    (event,) = web.rows(
        "SELECT payload::text, actor FROM headgate.datasource_events WHERE name = $1 AND type = 'deleted'", name
    )
    assert tuple(event) == ('{"payloads":3,"letters":1,"dumps":1}', "first")
    (row,) = web.rows("SELECT status, wanted, error FROM headgate.dump WHERE id = $1", dump)
    assert tuple(row) == ("cancelled", "cancel", "its datasource was deleted")


def test_what_loses_nothing_is_deleted_at_once(web: Web, name: str) -> None:
    web.publish(name, source=HOOK)
    web.opened(name)
    post(web, name, 1, 2)
    web.wait_for(name, lambda d: d["metrics"]["records_written"] == 2)
    web.until(lambda: web.call("GET", f"/api/datasources/{name}/deletion")["payloads"], lambda waiting: waiting == 0)
    assert web.ask("DELETE", f"/api/datasources/{name}").status_code == 204


def test_a_backfill_that_a_process_runs_is_told_to_end(web: Web, name: str) -> None:
    dump = held(web, name)
    web.execute(f"UPDATE headgate.dump SET until = now() + interval '1 h' WHERE id = '{dump}'")
    web.call("DELETE", f"/api/datasources/{name}?yes=true")
    (row,) = web.rows("SELECT status, wanted FROM headgate.dump WHERE id = $1", dump)
    assert tuple(row) == ("running", "cancel")


def test_a_backfill_whose_process_died_before_it_could_end_is_ended_by_a_node(web: Web, name: str) -> None:
    dump = held(web, name)
    web.execute(f"UPDATE headgate.dump SET until = now() + interval '1 h', place = 'nodes' WHERE id = '{dump}'")
    web.call("DELETE", f"/api/datasources/{name}?yes=true")
    web.execute(f"UPDATE headgate.dump SET until = now() WHERE id = '{dump}'")
    web.until(
        lambda: web.rows("SELECT status FROM headgate.dump WHERE id = $1", dump)[0]["status"],
        lambda status: status == "cancelled",
    )


def test_a_file_that_deletes_what_would_be_lost_needs_a_yes_and_changes_nothing_without(web: Web, name: str) -> None:
    held(web, name)
    others = web.call("GET", "/api/datasources")["items"]
    documents = {one["name"]: web.show(one["name"])["published"] for one in others if one["name"] != name}
    kept = {one: found["document"] for one, found in documents.items() if found}
    body = {"datasources": {**kept, f"{name}-new": {"source": {"type": "generator"}, "sink": {"type": "blackhole"}}}}
    found = refused(web.ask("POST", "/api/apply?prune=true", json=body), "would_lose")
    assert (name, "3 accepted payloads wait") in [(one["path"], one["message"]) for one in found["problems"]]
    assert web.ask("GET", f"/api/datasources/{name}-new").status_code == 404
    assert web.show(name)["paused"]
    done = web.call("POST", "/api/apply?prune=true&yes=true", body)["changes"]
    assert {one["name"]: one["action"] for one in done}[name] == "delete"
    assert web.ask("GET", f"/api/datasources/{name}").status_code == 404


def test_a_token_with_bounds_learns_of_its_own_datasources_only(web: Web, name: str) -> None:
    held(web, name)
    bound = bearer(web.token("operator", datasources=["others-*"]))
    refused(web.ask("GET", f"/api/datasources/{name}/deletion", headers=bound), "forbidden", 403)


# Positions.


def edit(web: Web, stream: str, **body: Any) -> httpx.Response:
    return web.ask("PUT", f"/api/streams/{stream}/position", json=body)


def test_an_edit_says_first_what_it_would_skip_or_read_again(web: Web, name: str) -> None:
    web.publish(name, source={"type": "generator", "count": 100})
    found = web.until(lambda: web.call("GET", f"/api/streams/{name}:0"), lambda s: s["rests"])
    said = refused(edit(web, f"{name}:0", position=49), "unconfirmed")
    assert said["detail"] == f"{name}:0: 99 → 49: records 50 to 99 are read again"
    assert "--yes" in said["hint"]
    said = refused(edit(web, f"{name}:0", position={"a": [1]}), "unconfirmed")
    assert said["detail"].startswith(f'{name}:0: 99 → {{"a":[1]}}: no run could continue after this')
    assert web.call("GET", f"/api/streams/{name}:0")["generation"] == found["generation"]
    assert "position_edited" not in web.events(name)
    assert edit(web, f"{name}:0", position=49, yes=True).json()["position"] == 49


def test_of_a_webhook_the_payloads_between_are_counted(web: Web, name: str) -> None:
    web.publish(name, source=HOOK)
    web.opened(name)
    post(web, name, *range(5))
    web.wait_for(name, lambda d: d["metrics"]["records_written"] == 5)
    web.call("POST", f"/api/datasources/{name}/pause")
    position = free(web, name)["position"]
    post(web, name, 5, 6)
    ids = [row["id"] for row in web.rows(f"SELECT i.id FROM headgate.inbox i JOIN headgate.datasource d ON"
                                         f" d.id = i.datasource WHERE d.name = '{name}' ORDER BY i.id")]  # fmt: skip
    assert (len(ids), ids[4]) == (7, position)
    back = refused(edit(web, f"{name}:0", position=ids[1]), "unconfirmed")
    assert back["counts"] == {"read_again": 3}
    assert back["detail"].endswith("3 payloads that the inbox still has are read again")
    ahead = refused(edit(web, f"{name}:0", position=ids[-1]), "unconfirmed")
    assert (ahead["counts"], ahead["detail"].endswith("2 payloads of the inbox are skipped")) == ({"skipped": 2}, True)
    assert refused(edit(web, f"{name}:0", position=None), "unconfirmed")["counts"] == {"read_again": 5}
    assert "no run could continue" in refused(edit(web, f"{name}:0", position="x"), "unconfirmed")["detail"]


def test_of_a_source_that_is_read_in_parts_each_part_that_changes_is_told(web: Web, name: str) -> None:
    web.publish(name, source={"type": "generator", "count": 30, "parts": 3})
    found = web.until(lambda: web.call("GET", f"/api/streams/{name}:0"), lambda s: s["rests"])
    assert found["position"] == {"0": 27, "1": 28, "2": 29}
    said = refused(edit(web, f"{name}:0", position={"1": 7, "2": None}), "unconfirmed")["detail"]
    assert said.endswith("part 1: records 8 to 28 are read again; part 2: records 0 to 29 are read again")


def test_a_source_that_says_nothing_leaves_it_to_the_operator(web: Web, name: str) -> None:
    web.call("PUT", f"/api/datasources/{name}", {"source": {"type": "generator"}, "sink": {"type": "blackhole"}})
    said = refused(edit(web, f"{name}:0", position=7), "unconfirmed")["detail"]
    assert said == f"{name}:0: null → 7: its source does not say what that skips or reads again"


def test_every_line_of_history_can_be_restored_and_that_is_an_edit_like_any_other(web: Web, name: str) -> None:
    web.publish(name, source={"type": "generator", "count": 100})
    web.until(lambda: web.call("GET", f"/api/streams/{name}:0"), lambda s: s["rests"])
    web.call("POST", f"/api/datasources/{name}/pause")
    for position in (10, {"any": "thing"}):
        assert edit(web, f"{name}:0", position=position, yes=True).is_success
    lines = web.call("GET", f"/api/streams/{name}:0/history")["items"]
    assert {"granted", "acquired", "released", "edited"} == {line["kind"] for line in lines}
    for line in lines:
        said = refused(edit(web, f"{name}:0", history=line["id"]), "unconfirmed")
        assert said["detail"].startswith(f"{name}:0: ")
        done = edit(web, f"{name}:0", history=line["id"], yes=True).json()
        assert done["position"] == line["position"]
    event = last_event(web, name)
    assert (event["type"], event["payload"]["after"]) == ("position_edited", lines[-1]["position"])
    refused(edit(web, f"{name}:0", history=1 << 62, yes=True), "not_found", 404)


@pytest.mark.parametrize("line", [0, -1, 1 << 63, 1.5, "1", True, None])
def test_what_cannot_be_a_line_is_a_problem_of_the_body(web: Web, line: Any) -> None:
    web.publish("for-lines", enabled=False)
    assert refused(edit(web, "for-lines:0", history=line, yes=True), "invalid", 422)["problems"]
