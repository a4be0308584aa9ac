"""Dead letters over HTTP, on a real node: found, understood, mended, replayed; and by whom that may be done."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.web_node import Web, bearer, started

MAPPING = {"set": {"id": "int(id)", "total": "total"}}


def hooked(web: Web, name: str, out: Path, **parts: Any) -> None:
    """A webhook into a file. What has no number as its id cannot be mapped."""
    sink = {"type": "files", "path": str(out)}
    web.publish(name, source={"type": "webhook"}, **{"mapping": MAPPING, "sink": sink, **parts})


def send(web: Web, name: str, *payloads: Any) -> None:
    """Hand payloads over."""
    for one in payloads:
        assert web.ask("POST", f"/hooks/{name}", json=one).status_code == 202


def numbers(web: Web, name: str) -> dict[str, Any]:
    found: dict[str, Any] = web.call("GET", f"/api/datasources/{name}/dead-letters")
    return found


def listed(web: Web, name: str, **params: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = web.call("GET", "/api/dead-letters", params={"datasource": name, **params})["items"]
    return found


def written(out: Path) -> list[Any]:
    return [json.loads(line) for line in out.read_text().splitlines()] if out.exists() else []


def test_a_stuck_record_is_found_understood_mended_and_replayed(web: Web, name: str, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    hooked(web, name, out)
    send(web, name, {"id": "1", "total": 5}, {"id": "one", "total": 7}, {"id": "3", "total": 9})
    web.until(lambda: numbers(web, name), lambda found: found["open"] == 1)
    (mapping,) = listed(web, name)
    assert (mapping["stage"], mapping["field"], mapping["outcome"]) == ("mapping", "set.id", "open")
    assert mapping["reason"] == "cannot read text as an int"
    assert mapping["datasource"] == name
    assert mapping["stream"] == f"{name}:0"
    assert "payload" not in mapping
    whole = web.call("GET", f"/api/dead-letters/{mapping['id'][:8]}")
    assert (whole["payload"], whole["mapped"], whole["is_kept"]) == ({"id": "one", "total": 7}, None, True)
    web.call("PUT", f"/api/dead-letters/{mapping['id']}", {"payload": {"id": "2", "total": 7}})
    done = web.call("POST", f"/api/datasources/{name}/dead-letters/replay", {"ids": [mapping["id"]]})
    assert (done["letters"], done["left_alone"], done["waits"]) == (1, [], None)
    web.until(lambda: numbers(web, name), lambda found: found["replayed"] == 1)
    assert sorted(one["id"] for one in written(out)) == [1, 2, 3]
    after = web.call("GET", f"/api/dead-letters/{mapping['id']}")
    assert (after["outcome"], after["is_kept"], after["payload"], after["actor"]) == ("replayed", False, None, "first")
    again = web.ask("POST", f"/api/datasources/{name}/dead-letters/replay", json={"ids": [mapping["id"]]}).json()
    assert (again["letters"], again["left_alone"][0]["letters"]) == (0, 1)
    refused = web.ask("PUT", f"/api/dead-letters/{mapping['id']}", json={"payload": {}})
    assert (refused.status_code, refused.json()["code"]) == (409, "not_open")
    assert {"letter_edited", "letters_replay_asked"} <= set(web.events(name))


def test_a_source_that_has_ended_is_run_again_for_a_replay(web: Web, name: str, tmp_path: Path) -> None:
    given, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    given.write_bytes(b'{"id": 1}\n{"id": 2,\n\xff{oops\n{"id": 3}\n')
    web.publish(name, source={"type": "files", "path": str(given)}, sink={"type": "files", "path": str(out)})
    web.wait_for(name, lambda found: found["detail"] == "finished")
    second, first = listed(web, name)
    assert {first["stage"], second["stage"]} == {"source"}
    shown = [web.call("GET", f"/api/dead-letters/{one['id']}") for one in (first, second)]
    assert [(one["base64"], one["text"], one["payload"]) for one in shown] == [
        ("eyJpZCI6IDIs", '{"id": 2,', None),
        ("/3tvb3Bz", None, None),
    ]
    stuck = first
    web.call("PUT", f"/api/dead-letters/{stuck['id']}", {"payload": {"id": 2}})
    assert web.call("GET", f"/api/dead-letters/{stuck['id']}")["payload"] == {"id": 2}
    assert web.call("POST", f"/api/datasources/{name}/dead-letters/replay")["waits"] is None
    web.until(lambda: numbers(web, name), lambda found: not found["waiting"])
    web.until(lambda: numbers(web, name), lambda found: found["replayed"] == 1)
    web.wait_for(name, lambda found: found["detail"] == "finished")
    assert sorted(one["id"] for one in written(out)) == [1, 2, 3]
    found = web.show(name)["letters"]
    assert (listed(web, name)[0]["id"], listed(web, name)[0]["attempts"]) == (second["id"], 2)
    assert found == {"open": 1, "replayed": 1, "superseded": 0, "discarded": 0, "expired": 0, "waiting": 0}


def test_letters_of_a_stopped_datasource_wait_for_its_start(web: Web, name: str, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    hooked(web, name, out)
    send(web, name, {"id": "x", "total": 1})
    web.until(lambda: numbers(web, name), lambda found: found["open"] == 1)
    web.call("POST", f"/api/datasources/{name}/stop")
    web.publish(name, source={"type": "webhook"}, sink={"type": "files", "path": str(out)}, enabled=False)
    done = web.call("POST", f"/api/datasources/{name}/dead-letters/replay")
    assert done["waits"] == f"{name} is stopped: they are replayed when it is started"
    assert numbers(web, name)["waits"] == done["waits"]
    assert numbers(web, name)["waiting"] == 1
    refused = web.ask("PUT", f"/api/dead-letters/{listed(web, name)[0]['id']}", json={"payload": {}})
    assert refused.status_code == 409  # A run may have read it already.
    web.call("POST", f"/api/datasources/{name}/start")
    web.until(lambda: numbers(web, name), lambda found: (found["replayed"], found["waiting"]) == (1, 0))
    assert written(out) == [{"id": "x", "total": 1}]


def test_a_letter_may_be_replayed_with_the_mapping_of_another_version(web: Web, name: str, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    hooked(web, name, out, mapping={"set": {"id": "id", "from": '"first"'}})
    hooked(web, name, out)
    web.wait_for(
        name, lambda found: found["published_version"] == 2 and found["detail"] in ("running", "not proved yet")
    )
    send(web, name, {"id": "x", "total": 1})
    web.until(lambda: numbers(web, name), lambda found: found["open"] == 1)
    path = f"/api/datasources/{name}/dead-letters/replay"
    assert web.ask("POST", path, json={"with_version": 9}).status_code == 404
    web.call("POST", path, {"with_version": 1})
    web.until(lambda: numbers(web, name), lambda found: found["replayed"] == 1)
    assert written(out) == [{"id": "x", "from": "first"}]


def test_who_publishes_a_repair_and_asks_at_once_gets_the_repair(web: Web, name: str, tmp_path: Path) -> None:
    """The old version still runs then, or would be the one to begin with."""
    given, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    given.write_text("".join(f'{{"id": {n}, "n": "x"}}\n' for n in range(20)) + '{"id": 20, "n": 1}\n')
    parts = {"source": {"type": "files", "path": str(given)}, "sink": {"type": "files", "path": str(out)}}
    web.publish(name, **parts, mapping={"set": {"id": "id", "n": "int(n)"}})
    web.wait_for(name, lambda found: found["detail"] == "finished")
    web.publish(name, **parts, mapping={"set": {"id": "id", "n": "0"}})
    assert web.call("POST", f"/api/datasources/{name}/dead-letters/replay")["letters"] == 20
    web.until(lambda: numbers(web, name), lambda found: (found["replayed"], found["waiting"]) == (20, 0))
    assert sorted(one["id"] for one in written(out)) == list(range(21))


@pytest.fixture(scope="module")
def many(web: Web, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A datasource with five letters of two kinds, and one that another version could not handle."""
    out = tmp_path_factory.mktemp("many") / "out.jsonl"
    hooked(web, "many", out, mapping={"set": {"id": "int(id)", "total": "int(total)"}})
    send(web, "many", *({"id": "x", "total": 1} for _ in range(3)), *({"id": 1, "total": "y"} for _ in range(2)))
    web.until(lambda: numbers(web, "many"), lambda found: found["open"] == 5)
    hooked(web, "many", out, mapping={"set": {"id": "float(id)"}})
    web.wait_for("many", lambda found: found["states"][0]["version"] == 2)
    send(web, "many", {"id": "z"})
    web.until(lambda: numbers(web, "many"), lambda found: found["open"] == 6)
    return "many"


@pytest.mark.parametrize(
    ("params", "letters"),
    [
        ({}, 6),
        ({"stage": "mapping"}, 6),
        ({"stage": "sink"}, 0),
        ({"field": "set.total"}, 2),
        ({"reason": "AS AN INT"}, 5),
        ({"version": 2}, 1),
        ({"version": 2, "field": "set.total"}, 0),
        ({"since": (datetime.now(UTC) - timedelta(hours=2)).isoformat()}, 6),
        ({"until": (datetime.now(UTC) - timedelta(hours=2)).isoformat()}, 0),
        ({"outcome": "replayed"}, 0),
        ({"outcome": "all"}, 6),
    ],
)
def test_lists_have_what_fits_the_filter(web: Web, many: str, params: dict[str, Any], letters: int) -> None:
    assert len(listed(web, many, **params)) == letters
    lines = web.ask("GET", f"/api/datasources/{many}/dead-letters/export", params=params).text.splitlines()
    assert len(lines) == letters


def test_a_list_goes_on_where_the_page_before_ended(web: Web, many: str) -> None:
    seen, after = [], None
    while True:
        params = {"datasource": many, "limit": 2, **({"after": after} if after else {})}
        page = web.call("GET", "/api/dead-letters", params=params)
        seen += [one["id"] for one in page["items"]]
        if (after := page["after"]) is None:
            break
    assert seen == [one["id"] for one in listed(web, many)]
    assert len(set(seen)) == 6


@pytest.mark.parametrize(
    "params",
    [
        {"stage": "moon"},
        {"outcome": "lost"},
        {"version": 0},
        {"version": 2**31},
        {"since": "2026-07-01T12:00:00"},
        {"since": "yesterday"},
        {"until": "0001-01-01T00:00:00+14:00"},
        {"after": "here"},
        {"after": "2026-07-01T12:00:00Z_nobody"},
        {"limit": 1001},
        {"limit": 0},
        {"reason": "x" * 501},
        {"field": "a\0b"},
    ],
)
def test_what_no_letter_could_fit_is_refused(web: Web, many: str, params: dict[str, Any]) -> None:
    answer = web.ask("GET", "/api/dead-letters", params=params)
    assert answer.status_code in (400, 422), answer.text
    if "limit" not in params and "after" not in params:
        body = {**params, "outcome": None} if "outcome" in params else params
        assert web.ask("POST", f"/api/datasources/{many}/dead-letters/discard", json=body).status_code in (400, 422)
    assert numbers(web, many)["open"] == 6


def test_an_export_has_the_records(web: Web, many: str) -> None:
    answer = web.ask("GET", f"/api/datasources/{many}/dead-letters/export")
    assert answer.headers["content-type"].startswith("text/jsonl")
    found = [json.loads(line) for line in answer.text.splitlines()]
    assert found[0]["payload"] == {"id": "z"}
    assert [one["id"] for one in found] == [one["id"] for one in listed(web, many)]


def test_unknown_names_and_ids_are_told_with_what_is_close(web: Web, many: str) -> None:
    answer = web.ask("GET", "/api/dead-letters", params={"datasource": "mani"})
    assert (answer.status_code, answer.json()["hint"]) == (404, "did you mean 'many'?")
    for id in ("00000000", "0000", "x" * 40, "00000000-0000-0000-0000-000000000000", "%00", "zzzzzzzz"):
        assert web.ask("GET", f"/api/dead-letters/{id}").status_code == 404, id
    assert web.ask("POST", "/api/datasources/nobody/dead-letters/replay").status_code == 404


def test_letters_are_discarded_by_a_filter_and_all_only_if_that_is_said(web: Web, name: str, tmp_path: Path) -> None:
    hooked(web, name, tmp_path / "out.jsonl", mapping={"set": {"id": "int(id)", "total": "int(total)"}})
    send(web, name, {"id": "pearl", "total": 1}, {"id": 1, "total": "pearl"}, {"id": 2, "total": "pearl"})
    web.until(lambda: numbers(web, name), lambda found: found["open"] == 3)
    path = f"/api/datasources/{name}/dead-letters/discard"
    refused = web.ask("POST", path, json={})
    assert (refused.status_code, refused.json()["code"]) == (409, "which_letters")
    assert web.call("POST", path, {"field": "set.id"}) == {"datasource": name, "letters": 1}
    (gone,) = listed(web, name, outcome="discarded")
    assert (gone["outcome"], gone["actor"]) == ("discarded", "first")
    assert web.call("GET", f"/api/dead-letters/{gone['id']}")["is_kept"] is False
    assert web.call("POST", path, {"all": True})["letters"] == 2
    found = web.show(name)["letters"]
    assert (found["open"], found["discarded"]) == (0, 3)
    events = web.call("GET", f"/api/datasources/{name}/events")["items"]
    told = [(one["payload"], one["actor"]) for one in events if one["type"] == "letters_discarded"]
    assert told == [({"letters": 1}, "first"), ({"letters": 2}, "first")]
    assert "pearl" not in json.dumps(events)


def test_a_letter_without_a_key_is_replayed_over_newer_rows_only_if_that_is_said(
    web: Web, name: str, tmp_path: Path
) -> None:
    web.call("PUT", f"/api/secrets/{name}", {"value": web.database})
    table = name.replace("-", "_")
    sink = {"type": "postgres", "url": {"$secret": name}, "table": table, "mode": "upsert"}
    mapping = {"key": ["id"], "set": {"id": "int(id)", "total": "int(total)"}}
    web.publish(name, source={"type": "webhook"}, mapping=mapping, sink=sink)
    send(web, name, {"id": 1, "total": 1}, {"id": "two", "total": 2}, {"id": 3, "total": "three"})
    web.until(lambda: numbers(web, name), lambda found: found["open"] == 2)
    keyless, keyed = sorted(listed(web, name), key=lambda one: one["has_key"])
    assert (keyless["field"], keyed["field"]) == ("set.id", "set.total")
    web.call("PUT", f"/api/dead-letters/{keyless['id']}", {"payload": {"id": 2, "total": 2}})
    web.call("PUT", f"/api/dead-letters/{keyed['id']}", {"payload": {"id": 3, "total": 3}})
    assert [one["has_key"] for one in listed(web, name, field="set.total")] == [True]
    path = f"/api/datasources/{name}/dead-letters/replay"
    done = web.call("POST", path)
    assert (done["letters"], [one["letters"] for one in done["left_alone"]]) == (1, [1])
    assert "overwrite" in done["left_alone"][0]["reason"]
    web.until(lambda: numbers(web, name), lambda found: found["replayed"] == 1)
    assert web.call("POST", path, {"overwrite": True})["letters"] == 1
    web.until(lambda: numbers(web, name), lambda found: found["replayed"] == 2)
    assert [tuple(row) for row in web.rows(f"SELECT id, total FROM {table} ORDER BY id")] == [(1, 1), (2, 2), (3, 3)]
    outcomes = ("open", "replayed", "superseded", "discarded", "expired")
    assert sum(numbers(web, name)[one] for one in outcomes) == 2
    web.until(lambda: dead_lettered(web, name), lambda found: found == 2)


def dead_lettered(web: Web, name: str) -> int:
    """How many records of a datasource could not be handled, as its streams count them."""
    query = "SELECT sum(records_dead_lettered)::bigint AS n FROM headgate.stream s JOIN headgate.datasource d"
    return int(web.rows(f"{query} ON d.id = s.datasource WHERE d.name = $1", name)[0]["n"])


def test_what_is_discarded_is_gone_from_the_sink_too(web: Web, name: str) -> None:
    web.call("PUT", f"/api/secrets/{name}", {"value": web.database})
    sink = {"type": "postgres", "url": {"$secret": name}, "table": name.replace("-", "_")}
    web.publish(name, source={"type": "webhook"}, mapping=MAPPING, sink=sink)
    send(web, name, {"id": "x", "total": 1}, {"id": 1, "total": 1})
    web.until(lambda: numbers(web, name), lambda found: found["open"] == 1)
    (stuck,) = listed(web, name)
    kept = "SELECT outcome, content = remains AS is_gone FROM headgate_dead_letter WHERE id = $1::text::uuid"
    assert not web.rows(kept, stuck["id"])[0]["is_gone"]
    web.call("POST", f"/api/datasources/{name}/dead-letters/discard", {"ids": [stuck["id"]]})
    web.until(lambda: tuple(web.rows(kept, stuck["id"])[0]), lambda row: row == ("discarded", True))
    assert numbers(web, name)["discarded"] == 1


def test_a_letter_whose_key_was_edited_may_be_older_than_a_row_that_nobody_compared(web: Web, name: str) -> None:
    web.call("PUT", f"/api/secrets/{name}", {"value": web.database})
    sink = {"type": "postgres", "url": {"$secret": name}, "table": name.replace("-", "_"), "mode": "upsert"}
    mapping = {"key": ["id"], "set": {"id": "int(id)", "total": "int(total)"}}
    web.publish(name, source={"type": "webhook"}, mapping=mapping, sink=sink)
    send(web, name, {"id": 1, "total": "one"}, {"id": 2, "total": 2})
    web.until(lambda: numbers(web, name), lambda found: found["open"] == 1)
    (stuck,) = listed(web, name)
    assert stuck["has_key"]
    assert web.call("PUT", f"/api/dead-letters/{stuck['id']}", {"payload": {"id": 2, "total": 1}})["has_key"] is False


def test_what_is_skipped_counts_as_discarded(web: Web, name: str, tmp_path: Path) -> None:
    given = tmp_path / "in.jsonl"
    given.write_text('{"id": 1}\n{oops\n{oops\n')
    sink = {"type": "files", "path": str(tmp_path / "out.jsonl")}
    web.publish(name, source={"type": "files", "path": str(given)}, sink=sink, on_error="skip")
    web.wait_for(name, lambda found: found["detail"] == "finished")
    found = web.show(name)["letters"]
    assert (found["open"], found["discarded"]) == (0, 2)


# Who may.


def test_a_token_with_bounds_sees_and_touches_only_its_own_letters(web: Web, name: str, tmp_path: Path) -> None:
    hooked(web, name, tmp_path / "out.jsonl")
    other = f"{name}-other"
    hooked(web, other, tmp_path / "other.jsonl")
    for one in (name, other):
        send(web, one, {"id": "x", "total": 1})
        web.until(lambda one=one: numbers(web, one), lambda found: found["open"] == 1)  # type: ignore[misc]
    bound = bearer(web.token("operator", datasources=[name]))
    seen = web.ask("GET", "/api/dead-letters", headers=bound).json()["items"]
    assert {one["datasource"] for one in seen} == {name}
    assert web.ask("GET", "/api/dead-letters", params={"datasource": other}, headers=bound).status_code == 403
    (own,), (foreign,) = listed(web, name), listed(web, other)
    assert web.ask("GET", f"/api/dead-letters/{own['id']}", headers=bound).status_code == 200
    assert web.ask("GET", f"/api/dead-letters/{own['id'][:8]}", headers=bound).status_code == 200
    for id in (foreign["id"], foreign["id"][:8], "00000000"):
        assert web.ask("GET", f"/api/dead-letters/{id}", headers=bound).status_code == 403
    assert web.ask("PUT", f"/api/dead-letters/{foreign['id']}", json={"payload": 1}, headers=bound).status_code == 403
    # To name a letter of another datasource under one's own does nothing to it.
    path = f"/api/datasources/{name}/dead-letters"
    done = web.ask("POST", f"{path}/discard", json={"ids": [foreign["id"]]}, headers=bound).json()
    assert done["letters"] == 0
    done = web.ask("POST", f"{path}/replay", json={"ids": [foreign["id"]]}, headers=bound).json()
    assert (done["letters"], done["left_alone"][0]["letters"]) == (0, 1)
    assert numbers(web, other)["open"] == 1
    assert numbers(web, other)["waiting"] == 0


def test_a_viewer_sees_how_many_there_are_and_no_letter(web: Web, many: str) -> None:
    viewer = bearer(web.token("viewer"))
    assert web.ask("GET", f"/api/datasources/{many}", headers=viewer).json()["letters"]["open"] == 6
    for path in ("/api/dead-letters", f"/api/datasources/{many}/dead-letters/export"):
        assert web.ask("GET", path, headers=viewer).status_code == 403


# Keys.


def test_rotation_rewraps_letters_and_the_old_key_is_needed_no_more(tmp_path: Path, databases: Any) -> None:
    keys = ["A" * 43 + "=", "B" * 42 + "A="]
    database, home = databases.make(), tmp_path / "home"
    with started(home, database, HEADGATE_MASTER_KEY=keys[0]) as web:
        hooked(web, "orders", tmp_path / "out.jsonl")
        send(web, "orders", {"id": "pearl", "total": 1})
        web.until(lambda: numbers(web, "orders"), lambda found: found["open"] == 1)
    with started(home, database, HEADGATE_MASTER_KEY=f"{keys[1]},{keys[0]}") as web:
        assert web.call("POST", "/api/secrets/rotate")["letters"] == 1
        assert web.call("POST", "/api/secrets/rotate")["letters"] == 0
    with started(home, database, HEADGATE_MASTER_KEY=keys[1]) as web:
        (stuck,) = listed(web, "orders")
        assert web.call("GET", f"/api/dead-letters/{stuck['id']}")["payload"] == {"id": "pearl", "total": 1}
    with started(home, database, HEADGATE_MASTER_KEY=keys[0]) as web:
        answer = web.ask("GET", f"/api/dead-letters/{stuck['id']}")
        assert (answer.status_code, answer.json()["code"]) == (409, "no_master_key")
        assert web.call("POST", "/api/secrets/rotate")["letters_stuck"] == 1
