"""What a node tells of secrets and passwords: nothing, to nobody, whatever a document says."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.web_node import BLACKHOLE, GENERATOR, Web, bearer

PASSWORD = "Recognisable-hunter2"
VALUE = f"postgresql://ada:{PASSWORD}@127.0.0.1:1/db"


@pytest.fixture(scope="module")
def viewer(web: Web) -> dict[str, str]:
    """The header of a viewer."""
    return bearer(web.token("viewer"))


def store(web: Web, name: str, **parts: Any) -> None:
    """A datasource as an older release may have stored it, published, and not enabled."""
    web.publish(name, enabled=False)
    for part, value in parts.items():
        web.execute(
            f"UPDATE headgate.datasource_version SET {part} = '{json.dumps(value)}', secrets = '{{{name}}}' "
            f"WHERE datasource = (SELECT id FROM headgate.datasource WHERE name = '{name}')"
        )


@pytest.mark.parametrize(
    ("parts", "path"),
    [
        ({"source": {"type": "generator", "fields": {"a": ["SECRET"]}}}, "source.fields.a.0"),
        ({"source": {"type": "files", "path": "SECRET"}}, "source.path"),
        ({"sink": {"type": "postgres", "url": "SECRET", "table": "SECRET"}}, "sink.table"),
        ({"mapping": {"set": {"a": "SECRET"}}}, "mapping.set.a"),
        ({"description": "SECRET"}, "description"),
    ],
)
def test_a_secret_outside_a_secret_option_is_refused_by_validate_plan_publish_and_apply(
    web: Web, name: str, viewer: dict[str, str], parts: dict[str, Any], path: str
) -> None:
    web.call("PUT", f"/api/secrets/{name}", {"value": VALUE})
    text = json.dumps({"source": GENERATOR, "sink": BLACKHOLE, **parts})
    document = json.loads(text.replace('"SECRET"', json.dumps({"$secret": name})))
    web.call("PUT", f"/api/datasources/{name}", document)
    answers = [
        web.ask("POST", f"/api/datasources/{name}/validate"),
        web.ask("POST", f"/api/datasources/{name}/validate", headers=viewer),
        web.ask("POST", f"/api/datasources/{name}/publish"),
        web.ask("POST", "/api/plan", json={"datasources": {name: document}}),
        web.ask("POST", "/api/plan", json={"datasources": {name: document}}, headers=viewer),
        web.ask("POST", "/api/apply", json={"datasources": {name: document}}),
    ]
    for answer in answers:
        (problem,) = answer.json()["problems"]
        assert problem["path"].removeprefix(f"datasources.{name}.") == path
        assert problem["message"] == "no secret may stand here"
    assert PASSWORD not in " ".join(answer.text for answer in answers)


@pytest.mark.parametrize("value", ["", "x", "mysql://h/db", f"postgresql://ada:{PASSWORD}/x@h/db", "y" * 5000])
def test_what_a_viewer_is_told_does_not_depend_on_a_value(
    web: Web, name: str, viewer: dict[str, str], value: str
) -> None:
    """A good value and another one get the same answers; an operator is told what is wrong."""
    document = {"source": GENERATOR, "sink": {"type": "postgres", "url": {"$secret": name}, "table": "t"}}
    webhook = {"source": {"type": "webhook", "signature": {"secret": {"$secret": name}}}, "sink": BLACKHOLE}

    def told(headers: dict[str, str]) -> list[tuple[int, str]]:
        answers = [
            web.ask("POST", f"/api/datasources/{name}/validate", json=document, headers=headers),
            web.ask("POST", f"/api/datasources/{name}/validate", json=webhook, headers=headers),
            web.ask(
                "POST", "/api/plan", json={"datasources": {name: document, f"{name}-hook": webhook}}, headers=headers
            ),
        ]
        return [(answer.status_code, answer.text) for answer in answers]

    web.call("PUT", f"/api/secrets/{name}", {"value": VALUE})
    before = told(viewer)
    web.call("PUT", f"/api/secrets/{name}", {"value": value or " "})
    assert told(viewer) == before
    operator = bearer(web.token("operator"))
    assert "sink.url" in told(operator)[0][1]
    assert PASSWORD not in str(told(operator))


def test_a_draft_with_a_password_is_refused_and_not_stored(web: Web, name: str) -> None:
    bad = {"source": GENERATOR, "sink": {"type": "postgres", "url": VALUE + "?PASS%57ORD=x", "table": "t"}}
    web.call("PUT", f"/api/datasources/{name}", {"source": GENERATOR, "sink": BLACKHOLE})
    asked = [
        ("POST", "/api/datasources", {"name": f"{name}-new", **bad}),
        ("PUT", f"/api/datasources/{name}", bad),
        ("PUT", f"/api/datasources/{name}/draft", bad),
        ("POST", "/api/plan", {"datasources": {name: bad}}),
        ("POST", "/api/apply", {"datasources": {name: bad}}),
    ]
    for method, path, body in asked:
        answer = web.ask(method, path, json=body)
        (problem,) = answer.json()["problems"]
        assert (answer.status_code, problem["path"].removeprefix(f"datasources.{name}.")) == (422, "sink.url")
        assert "{$secret: NAME}" in problem["hint"]
        assert PASSWORD not in answer.text
    assert PASSWORD not in str(web.rows("SELECT * FROM headgate.datasource_version"))


def test_a_document_of_an_older_release_is_shown_without_its_password(
    web: Web, name: str, viewer: dict[str, str]
) -> None:
    url = f"postgresql://h/db?pass%77ord={PASSWORD}"
    source = {"type": "webhook", "signature": {"secret": PASSWORD}}
    store(web, name, sink={"type": "postgres", "url": url, "table": "t"}, source=source)
    web.call("PUT", f"/api/datasources/{name}/draft", {"source": GENERATOR, "sink": BLACKHOLE})
    paths = [
        f"/api/datasources/{name}",
        f"/api/datasources/{name}/versions",
        f"/api/datasources/{name}/versions/1",
        f"/api/datasources/{name}/diff",
        f"/api/datasources/{name}/explain",
        "/api/export",
        "/api/datasources",
    ]
    answers = {path: web.ask("GET", path, headers=viewer).text for path in paths}
    document = {"datasources": {name: {"source": GENERATOR, "sink": BLACKHOLE}}}
    answers["plan"] = web.ask("POST", "/api/plan", json=document, headers=viewer).text
    assert {path: text for path, text in answers.items() if PASSWORD in text} == {}
    assert "pass%77ord=***" in answers[f"/api/datasources/{name}"]
    assert "pass%77ord=***" in answers["plan"]


def test_an_older_version_with_a_secret_in_the_wrong_place_does_not_run(web: Web, name: str) -> None:
    web.call("PUT", f"/api/secrets/{name}", {"value": VALUE})
    store(web, name, source={"type": "generator", "fields": {"a": [{"$secret": name}]}})
    web.call("POST", f"/api/datasources/{name}/start")
    found = web.wait_for(name, lambda found: found["worker_status"] == "ERROR")
    assert "source.fields.a.0: no secret may stand here" in found["error"]["message"]
    assert PASSWORD not in json.dumps(found)
