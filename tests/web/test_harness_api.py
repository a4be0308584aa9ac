"""Tests of drafts, fixtures and connections, over the real API of a real node."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests import harness_connector
from tests.proxy import proxied
from tests.web_node import Databases, Web, bearer, execute, numbers, started

ROOT = Path(__file__).parents[2]
MAPPING = {"where": "total > 0", "set": {"id": "id", "cents": "total * 100"}, "key": "id"}
DOCUMENT = {"source": {"type": "webhook"}, "mapping": MAPPING, "sink": {"type": "blackhole"}}
PAYLOAD = '{"id": 1, "total": 2}\n{"id": 2, "total": 0}\n{"id": 3, "total": "x"}\n'


@pytest.fixture(scope="module")
def web(databases: Databases, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Web]:
    """A node that has a master key and knows the connector of these tests."""
    installed = tmp_path_factory.mktemp("installed")
    harness_connector.install(installed)
    key = base64.b64encode(b"k" * 32).decode()
    path = f"{installed}:{ROOT}:{ROOT / 'src'}"
    with started(tmp_path_factory.mktemp("node"), databases.make(), PYTHONPATH=path, HEADGATE_MASTER_KEY=key) as node:
        yield node


@pytest.fixture
def name(web: Web) -> str:
    """A datasource with a published version."""
    found = f"orders-{next(numbers)}"
    web.publish(found, **DOCUMENT)
    return found


def tried(web: Web, name: str, **body: Any) -> Any:
    return web.call("POST", f"/api/datasources/{name}/test", body)


def refused(web: Web, path: str, status: int, body: Any = None, **kwargs: Any) -> Any:
    answer = web.ask("POST", path, json=body if body is not None else {}, **kwargs)
    assert answer.status_code == status, answer.text
    return answer.json()


def draft(web: Web, name: str, **parts: Any) -> None:
    web.call("PUT", f"/api/datasources/{name}/draft", {**DOCUMENT, **parts})


# A test.


def test_each_record_is_shown_before_and_after_with_its_outcome(web: Web, name: str) -> None:
    found = tried(web, name, payload=PAYLOAD)
    assert (found["read"], found["written"], found["filtered"], found["dead_lettered"]) == (3, 1, 1, 1)
    first, second, third = found["records"]
    assert first["before"] == {"id": 1, "total": 2}
    assert first["results"][0]["after"] == {"id": 1, "cents": 200}
    assert second["results"][0]["outcome"] == "filtered"
    assert third["results"][0] == {
        "outcome": "dead_lettered",
        "after": None,
        "is_delete": False,
        "stage": "mapping",
        "field": third["results"][0]["field"],
        "reason": third["results"][0]["reason"],
    }
    assert found["trouble"] == ""
    assert found["figures"]["bytes_in"] > 0
    assert found["figures"]["took_ms"] > 0


def test_a_draft_is_shown_next_to_the_published_version(web: Web, name: str) -> None:
    draft(web, name, mapping={**MAPPING, "set": {"id": "id", "cents": "total * 10"}})
    found = tried(web, name, payload='{"id": 1, "total": 2}')
    assert found["version"] == 2
    assert found["compared_with"] == 1
    assert found["records"][0]["changes"] == [{"place": "0.cents", "before": 200, "after": 20}]
    assert tried(web, name, payload='{"id": 1, "total": 2}', version=1)["records"][0]["changes"] == []


def test_a_document_that_is_nowhere_yet_is_tested(web: Web) -> None:
    found = tried(web, f"new-{next(numbers)}", document=DOCUMENT, payload='[{"id": 1, "total": 1}]')
    assert found["written"] == 1
    assert found["version"] is None


def test_what_is_wrong_with_the_document_or_the_question_is_told(web: Web, name: str) -> None:
    path = f"/api/datasources/{name}/test"
    wrong = {**DOCUMENT, "mapping": {"set": {"a": "nope("}}}
    assert refused(web, path, 422, {"document": wrong, "payload": "{}"})["problems"][0]["path"] == "mapping.set.a"
    for body in ({}, {"payload": "{}", "fetch": 1}, {"fetch": 1001}, {"payload_base64": "?"}, {"nope": 1}):
        assert refused(web, path, 422, body)["code"] == "invalid"
    assert refused(web, path, 409, {"fetch": 1})["detail"] == "webhook is sent its records, so none can be fetched"
    assert (
        refused(
            web,
            path,
            404,
            {
                "fixture": "none",
            },
        )["code"]
        == "not_found"
    )
    assert refused(web, path, 404, {"dead_letter": "none"})["code"] == "not_found"
    assert refused(web, path, 404, {"version": 99, "payload": "{}"})["code"] == "not_found"
    assert refused(web, path, 409, {"payload": "{}", "sink": "rollback"})["code"] == "no_rollback"
    many = "\n".join(["{}"] * 1001)
    assert "1001 records" in tried(web, name, payload=many)["trouble"]


@pytest.mark.parametrize("value", ["{null: 1}", '"\\ud800"', ".nan", "{1: 2}", "!!binary aGk="])
def test_yaml_that_json_cannot_say_is_told_and_comes_back_without_a_document(web: Web, value: str) -> None:
    text = f"source: {{type: push}}\nsink: {{type: blackhole, labels: {value}}}\n"
    found = web.call("POST", "/api/datasources/edited/document", {"yaml": text})
    assert (found["yaml"], found["document"]) == (text, None)
    assert any(one["path"].startswith("sink.labels") for one in found["problems"])


def test_the_last_webhooks_are_tested_and_stay(web: Web, name: str) -> None:
    for number in range(3):
        web.call("POST", f"/hooks/{name}", {"id": number, "total": 5})
    found = tried(web, name, inbox=2)
    assert [one["results"][0]["after"]["id"] for one in found["records"]] == [1, 2]
    rows = web.rows(
        "SELECT count(*) FROM headgate.inbox i JOIN headgate.datasource d ON d.id = i.datasource WHERE d.name = $1",
        name,
    )
    assert rows[0][0] == 3


def test_records_are_fetched_from_the_real_source_and_nothing_else_changes(web: Web) -> None:
    name = f"made-{next(numbers)}"
    document = {"source": {"type": "generator", "count": 50, "fields": {"id": "sequence"}}, "sink": {"type": "stdout"}}
    web.call("POST", "/api/datasources", {"name": name, **document})
    streams = (
        "SELECT s.commits, s.position FROM headgate.stream s JOIN headgate.datasource d ON d.id = s.datasource"
        " WHERE d.name = $1"
    )
    before = web.rows(streams, name)
    found = tried(web, name, fetch=5)
    assert found["written"] == 5
    assert len(found["records"]) == 5
    assert web.rows(streams, name) == before
    events = web.call("GET", f"/api/datasources/{name}/events")["items"]
    assert [one["type"] for one in events] == ["created", "tested"]
    assert events[-1]["payload"] == {
        "version": 1,
        "input": "fetch",
        "sink": "none",
        "read": 5,
        "written": 5,
        "filtered": 0,
        "dead_lettered": 0,
        "ended": True,
    }


def test_a_sink_that_can_take_it_back_says_what_it_would_refuse(web: Web) -> None:
    document = {"source": {"type": "webhook"}, "sink": {"type": "rogue"}}
    lines = [{"id": 0}, {"id": 1, "refuse": "by name"}, {"id": 2}, {"id": 3, "refuse": "silently"}, {"id": 4}]
    payload = "\n".join(map(str, lines)).replace("'", '"')
    found = tried(web, f"new-{next(numbers)}", document=document, payload=payload, sink="rollback")
    outcomes = [(one["results"][0]["outcome"], one["results"][0]["stage"]) for one in found["records"]]
    good, bad = ("written", None), ("dead_lettered", "sink")
    assert outcomes == [good, bad, good, bad, good]
    assert found["records"][1]["results"][0]["field"] == "refuse"


@pytest.mark.parametrize("way", ["socket", "address"])
async def test_the_database_itself_says_what_it_would_refuse(web: Web, way: str) -> None:
    """Into the real table, in a transaction that is rolled back: also what only the server knows. A test that root has
    begun runs as nobody, who cannot open the socket of the embedded server: the node lets it through."""
    await execute(web.database, "DROP TABLE IF EXISTS public.bills")
    await execute(web.database, "CREATE TABLE public.bills (id bigint PRIMARY KEY, cents integer CHECK (cents > 0))")
    await execute(web.database, "INSERT INTO public.bills VALUES (7, 7)")
    rows = [{"id": 1, "cents": 1}, {"id": 2, "cents": -1}, {"id": 3, "cents": 2**40}, {"id": 7, "cents": 1}]
    rows += [{"id": 4, "cents": 4, "more": 1}, {"id": 5, "cents": 5}]
    async with reached(web, way) as url:
        found = await asyncio.to_thread(rehearsed, web, url, rows)
    assert found["trouble"] == ""
    outcomes = [one["results"][0] for one in found["records"]]
    assert [one["outcome"] for one in outcomes] == ["written", *["dead_lettered"] * 4, "written"]
    assert {one["stage"] for one in outcomes} == {None, "sink"}
    assert {"code": "no_column", "place": "more", "message": "is no column of the sink's table"} in found["warnings"]
    left = await asyncio.to_thread(web.rows, "SELECT * FROM public.bills")
    assert [tuple(row) for row in left] == [(7, 7)]
    made = await asyncio.to_thread(web.rows, "SELECT to_regclass('headgate_position')")
    assert made[0][0] is None


@asynccontextmanager
async def reached(web: Web, way: str) -> AsyncIterator[str]:
    """The database by an address, or by its socket, which only its owner and root may open."""
    if way == "socket":
        yield web.database
        return
    async with proxied(web.database) as (_, url):
        yield url


async def test_what_a_process_does_is_done_as_the_urls_own_user(web: Web) -> None:
    """The server would believe it whoever it says it is."""
    role = f"demo_{next(numbers)}"
    await execute(web.database, f"CREATE ROLE {role} LOGIN; CREATE TABLE public.notes (id int)")
    try:
        url = web.database.replace("//headgate@", f"//{role}@")
        found = await asyncio.to_thread(rehearsed, web, url, [{"id": 1}], "public.notes")
        assert "permission denied for table notes" in found["trouble"]
    finally:
        await execute(web.database, f"DROP ROLE {role}; DROP TABLE public.notes")


def rehearsed(web: Web, url: str, rows: list[dict[str, Any]], table: str = "public.bills") -> Any:
    secret = f"url-{next(numbers)}"
    web.call("PUT", f"/api/secrets/{secret}", {"value": url})
    sink = {"type": "postgres", "url": {"$secret": secret}, "table": table, "create": False}
    document = {"source": {"type": "webhook"}, "mapping": {"key": "id"}, "sink": sink}
    return tried(web, f"bills-{next(numbers)}", document=document, payload=json.dumps(rows), sink="rollback")


def test_the_record_of_a_dead_letter_is_tested_again(web: Web, name: str) -> None:
    web.call("POST", f"/hooks/{name}", {"id": 1, "total": "x"})
    (letter,) = web.until(
        lambda: web.rows(
            "SELECT l.id FROM headgate.dead_letter l JOIN headgate.datasource d ON d.id = l.datasource"
            " WHERE d.name = $1",
            name,
        ),
        lambda rows: len(rows) == 1,
    )
    draft(web, name, mapping={"set": {"id": "id", "cents": "int(total, 0)"}})
    found = tried(web, name, dead_letter=str(letter["id"]), version=1)
    assert found["records"][0]["before"] == {"id": 1, "total": "x"}
    assert found["dead_lettered"] == 1
    tried(web, name, dead_letter=str(letter["id"]), version=1, save="from-a-letter")
    other = f"other-{next(numbers)}"
    web.publish(other, **DOCUMENT)
    refused(web, f"/api/datasources/{other}/test", 404, {"dead_letter": str(letter["id"])})


def test_a_connector_that_dies_is_an_answer_and_the_node_goes_on(web: Web) -> None:
    document = {"source": {"type": "rogue", "does": "exit"}, "sink": {"type": "blackhole"}}
    found = tried(web, f"new-{next(numbers)}", document=document, fetch=1)
    assert found["trouble"] == "the process exited with code 3, while reading, after 0 records"
    slow = {"source": {"type": "rogue", "does": "sleep"}, "sink": {"type": "blackhole"}}
    found = tried(web, f"new-{next(numbers)}", document=slow, fetch=1, timeout_s=0.5)
    assert found["trouble"].startswith("it took longer than 500 ms")
    assert web.ask("GET", "/healthz").status_code == 200


def test_warnings_name_what_is_hardly_meant(web: Web, name: str) -> None:
    draft(web, name, mapping={"where": "total > 0", "set": {"id": "idd", "x": "value"}, "key": "id"})
    payload = '[{"id": 1, "total": 2, "value": 1}, {"id": 1, "total": 2, "value": "a"}]'
    found = {(one["code"], one["place"]) for one in tried(web, name, payload=payload)["warnings"]}
    assert found == {
        ("never_present", "mapping.set.id"),
        ("always_null", "mapping.set.id"),
        ("where_always", "mapping.where"),
        ("varying_types", "x"),
        ("key_null", "mapping.key"),
        ("key_repeated", "mapping.key"),
    }


def test_records_are_for_operators(web: Web, name: str) -> None:
    tried(web, name, payload=PAYLOAD, save="seen")
    viewer = bearer(web.token("viewer"))
    for method, path in (("POST", "test"), ("GET", "fixtures/seen"), ("DELETE", "fixtures/seen")):
        answer = web.ask(method, f"/api/datasources/{name}/{path}", headers=viewer, json={"payload": "{}"})
        assert answer.status_code == 403, path
    listed = web.call("GET", f"/api/datasources/{name}/fixtures", headers=viewer)["items"]
    assert [(one["name"], one["inputs"]) for one in listed] == [("seen", 3)]
    assert "fixtures:" not in web.ask("GET", "/api/export?fixtures=true", headers=viewer).text
    path = f"/api/datasources/{name}/validate?connect=true"
    assert web.ask("POST", path, headers=viewer, json=DOCUMENT).status_code == 403


# Fixtures.


def test_a_fixture_is_kept_encrypted_and_run_again(web: Web, name: str) -> None:
    assert tried(web, name, payload=PAYLOAD, save="basic")["saved"] == "basic"
    (row,) = web.rows(
        "SELECT f.* FROM headgate.fixture f JOIN headgate.datasource d ON d.id = f.datasource WHERE d.name = $1", name
    )
    assert b"total" not in row["ciphertext"]
    shown = web.call("GET", f"/api/datasources/{name}/fixtures/basic")
    assert shown["inputs"][0]["given"] == '{"id": 1, "total": 2}'
    assert shown["inputs"][0]["expected"][0]["after"] == {"id": 1, "cents": 200}
    assert tried(web, name, fixture="basic")["read"] == 3
    web.call("DELETE", f"/api/datasources/{name}/fixtures/basic")
    assert web.call("GET", f"/api/datasources/{name}/fixtures")["items"] == []
    assert web.ask("DELETE", f"/api/datasources/{name}/fixtures/basic").status_code == 404
    assert web.events(name)[-4:] == ["fixture_saved", "tested", "tested", "fixture_deleted"]


def test_what_cannot_be_a_fixture_is_refused(web: Web, name: str) -> None:
    path = f"/api/datasources/{name}/test"
    for payload in ("[]", json.dumps({"text": "x" * 300_000}), json.dumps({"text": "x" * 2_000_000})):
        assert refused(web, path, 422, {"payload": payload, "save": "basic"})["problems"][0]["path"] == "save"
    assert refused(web, path, 422, {"payload": "{}", "save": "No Name"})["problems"][0]["path"] == "save"
    unknown = f"/api/datasources/new-{next(numbers)}/test"
    assert refused(web, unknown, 409, {"document": DOCUMENT, "payload": "{}", "save": "basic"})
    many = json.dumps([{"id": 1, "total": 1}] * 101)
    assert "at most 100 inputs" in refused(web, path, 422, {"payload": many, "save": "basic"})["detail"]


def test_a_publish_that_changes_an_expected_result_is_refused_until_it_is_accepted(web: Web, name: str) -> None:
    tried(web, name, payload=PAYLOAD, save="basic")
    draft(web, name, mapping={**MAPPING, "set": {"id": "id", "cents": "total * 10"}})
    problem = {"path": "fixtures.basic.0.0.cents", "message": "is 20, and was 200", "hint": ""}
    assert web.call("POST", f"/api/datasources/{name}/validate")["problems"] == [problem]
    found = refused(web, f"/api/datasources/{name}/publish", 409)
    assert found["code"] == "fixtures_changed"
    assert found["problems"] == [problem]
    assert web.show(name)["published_version"] == 1
    web.call("POST", f"/api/datasources/{name}/publish", {"accept": True})
    assert web.show(name)["published_version"] == 2
    shown = web.call("GET", f"/api/datasources/{name}/fixtures/basic")
    assert shown["inputs"][0]["expected"][0]["after"] == {"id": 1, "cents": 20}
    web.call("POST", f"/api/datasources/{name}/rollback", {"version": 1})  # In a hurry: nothing holds it up.
    assert web.show(name)["published_version"] == 3


def test_a_publish_that_changes_nothing_passes_its_fixtures(web: Web, name: str) -> None:
    tried(web, name, payload=PAYLOAD, save="basic")
    draft(web, name, mapping={**MAPPING, "set": {"id": "id", "cents": "100 * total"}})
    assert web.call("POST", f"/api/datasources/{name}/validate")["problems"] == []
    web.call("POST", f"/api/datasources/{name}/publish", {})


def test_an_apply_is_held_to_fixtures_too(web: Web, name: str) -> None:
    tried(web, name, payload=PAYLOAD, save="basic")
    body = {"datasources": {name: {**DOCUMENT, "mapping": {}}}}
    assert refused(web, "/api/apply", 409, body)["code"] == "fixtures_changed"
    web.call("POST", "/api/apply?accept=true", body)
    web.call("POST", "/api/apply", body)


def test_fixtures_travel_in_export_and_import(web: Web, name: str) -> None:
    tried(web, name, payload='{"id": 1, "total": 2, "text": "a\\u0000b"}', save="basic")
    exported = yaml.safe_load(web.ask("GET", "/api/export?fixtures=true").text)["datasources"][name]
    assert list(exported["fixtures"]) == ["basic"]
    assert "fixtures" not in yaml.safe_load(web.ask("GET", "/api/export").text)["datasources"][name]
    copy = f"{name}-copy"
    web.call("POST", "/api/apply", {"datasources": {copy: exported}})
    first, second = (web.call("GET", f"/api/datasources/{one}/fixtures/basic") for one in (name, copy))
    assert first == second
    exported["mapping"]["set"]["cents"] = "total"
    assert refused(web, "/api/apply", 409, {"datasources": {copy: exported}})["code"] == "fixtures_changed"
    found = refused(web, "/api/datasources", 422, {"name": f"{name}-alone", **exported})
    assert found["problems"][0]["path"] == "fixtures"
    exported["fixtures"]["basic"]["given"] = ["nonsense"]
    found = refused(web, "/api/apply", 422, {"datasources": {copy: exported}})
    assert found["problems"][0]["path"] == f"datasources.{copy}.fixtures.basic"


def test_a_file_that_is_wrong_in_its_shape_is_not_applied_in_part(web: Web, name: str) -> None:
    tried(web, name, payload=PAYLOAD, save="basic")
    good, bad = f"good-{next(numbers)}", f"bad-{next(numbers)}"
    body = {"datasources": {good: DOCUMENT, bad: {**DOCUMENT, "enabled": "yes"}}}
    for path in ("/api/apply", "/api/apply?connect=true"):
        assert refused(web, path, 422, body)["problems"][0]["path"] == f"datasources.{bad}.enabled"
        assert web.ask("GET", f"/api/datasources/{good}").status_code == 404


def test_a_deleted_datasource_leaves_no_records_behind(web: Web, name: str) -> None:
    tried(web, name, payload=PAYLOAD, save="basic")
    web.call("DELETE", f"/api/datasources/{name}")
    rows = web.rows(
        "SELECT * FROM headgate.fixture f JOIN headgate.datasource d ON d.id = f.datasource WHERE d.name = $1", name
    )
    assert rows == []


# Connections.


def test_a_validate_that_connects_names_the_side_that_refuses(web: Web) -> None:
    rogue, away = {"type": "rogue"}, {"type": "rogue", "does": "refuse"}
    name = f"new-{next(numbers)}"
    path = f"/api/datasources/{name}/validate"
    assert web.call("POST", path, {"source": away, "sink": away})["problems"] == []
    found = web.call("POST", f"{path}?connect=true", {"source": rogue, "sink": away})["problems"]
    assert found == [{"path": "sink", "message": "network: the rogue is away", "hint": ""}]
    assert web.call("POST", f"{path}?connect=true", {"source": rogue, "sink": rogue})["problems"] == []


def test_an_apply_that_connects_names_the_sink_that_refuses_connections(web: Web) -> None:
    name = f"new-{next(numbers)}"
    sink = {"type": "postgres", "url": "postgresql://nobody@127.0.0.1:1/x", "table": "t"}
    body = {"datasources": {name: {"source": {"type": "webhook"}, "sink": sink}}}
    found = refused(web, "/api/apply?connect=true", 409, body)
    assert found["code"] == "unreachable"
    assert found["problems"][0]["path"] == f"{name}.sink"
    assert web.ask("GET", f"/api/datasources/{name}").status_code == 404
    web.call("POST", "/api/apply", body)
    draft(web, name, sink=sink, description="new")
    found = refused(web, f"/api/datasources/{name}/publish", 409, {"connect": True})
    assert found["code"] == "unreachable"


# A function of one's own, on a node that runs.


def test_a_function_that_ends_its_process_ends_no_node(web: Web) -> None:
    """An operator publishes it, an admin has allowed its module, and what it does to one record is that record's."""
    name, operator = f"orders-{next(numbers)}", bearer(web.token("operator"))
    document = {**DOCUMENT, "mapping": {"python": "tests.harness_connector:obey"}}
    body = {"datasources": {name: document}}
    answer = web.ask("POST", "/api/apply", json=body, headers=operator)
    assert answer.status_code == 422
    assert "headgate allow add module tests.harness_connector" in answer.text
    web.call("POST", "/api/allowed", {"kind": "module", "value": "tests.harness_connector"})
    web.until(lambda: web.ask("POST", "/api/apply", json=body, headers=operator).status_code, lambda code: code == 200)
    web.running(name)
    for deed in (None, "raise", "exit", "segfault", None):
        record = {"id": 1, **({} if deed is None else {"do": deed})}
        assert web.ask("POST", f"/hooks/{name}", json=record).status_code == 202
    found = web.wait_for(name, lambda found: found["metrics"]["records_read"] == 5)
    assert (found["metrics"]["records_written"], found["health"]) == (2, "ok")
    letters = web.until(
        lambda: web.call("GET", f"/api/dead-letters?datasource={name}")["items"], lambda items: len(items) == 3
    )
    assert {one["reason"] for one in letters} == {
        "the function raised RuntimeError",
        "the function ended its process: exit code 3",
        "the function ended its process: signal 11",
    }
