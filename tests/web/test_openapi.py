"""The OpenAPI document: every body has a schema, every operation names its problems."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from litestar.datastructures import State

from headgate.web.app import make_api
from tests.web.test_api import refused
from tests.web_node import Web

OPEN = {"/healthz", "/readyz", "/api/installation"}  # They need no token.


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    return make_api(None, State()).openapi_schema.to_schema()


def operations(document: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, methods in document["paths"].items():
        yield from ((method, path, one) for method, one in methods.items())


def is_typed(schema: dict[str, Any]) -> bool:
    """Whether a generated client knows what is in it."""
    if "oneOf" in schema or "anyOf" in schema:
        return all(is_typed(one) for one in schema.get("oneOf", schema.get("anyOf")))
    return "$ref" in schema or "properties" in schema or schema.get("type") in ("string", "null")


def test_every_body_has_a_schema(document: dict[str, Any]) -> None:
    for method, path, operation in operations(document):
        bodies = list(operation.get("requestBody", {}).get("content", {}).values())
        for status, answer in operation["responses"].items():
            bodies += answer.get("content", {}).values()
            assert answer.get("content") or status == "204", (method, path, status)
        assert all(is_typed(body["schema"]) for body in bodies), (method, path)


def test_a_body_that_may_be_left_out_is_not_required_and_not_null(document: dict[str, Any]) -> None:
    bodies = {
        path: operation["requestBody"] for _, path, operation in operations(document) if "requestBody" in operation
    }
    assert {path for path, body in bodies.items() if not body["required"]} == {
        "/api/datasources/{name}/backfill",
        "/api/datasources/{name}/dead-letters/replay",
        "/api/datasources/{name}/publish",
        "/api/datasources/{name}/validate",
        "/api/dumps/{id}/verify",
        "/api/groups/{stream}/{name}/evaluate",
    }
    schemas = [content["schema"] for body in bodies.values() for content in body["content"].values()]
    assert all("$ref" in schema or schema["type"] == "object" for schema in schemas)


def test_no_two_components_have_the_same_name(document: dict[str, Any]) -> None:
    """Generators name their classes by the title; where Headgate has two of a name, one of them would be missing."""
    titles = [schema["title"] for schema in document["components"]["schemas"].values()]
    assert len(titles) == len(set(titles))


def test_every_component_has_fields(document: dict[str, Any]) -> None:
    for name, schema in document["components"]["schemas"].items():
        assert schema.get("properties") or schema.get("enum"), name


# Paths that name something in their query or body.
NAMING = ("/api/dead-letters", "/api/dead-letters/summary", "/api/notifications/test")


def test_every_operation_names_the_problems_it_may_answer_with(document: dict[str, Any]) -> None:
    problem = {"application/problem+json": {"schema": {"$ref": "#/components/schemas/ProblemDetails"}}}
    for method, path, operation in operations(document):
        if path in OPEN:
            continue
        expected = {"400", "401", "403", "503"}
        expected |= {"404"} if "{" in path or method == "delete" or path in NAMING else set()
        expected |= {"409"} if method != "get" else set()
        expected |= {"413", "422"} if "requestBody" in operation else set()
        runs_tests = path.endswith(("/test", "/validate", "/publish", "/apply", "/document", "/dead-letters/replay"))
        expected |= {"429"} if runs_tests and not path.startswith("/api/notifications") else set()
        expected |= {"409", "422"} if path.endswith("/tap") else set()  # It changes nothing, and is bounded.
        found = {status: answer for status, answer in operation["responses"].items() if status >= "400"}
        assert found.keys() == expected, (method, path)
        assert all(answer["content"].items() >= problem.items() for answer in found.values()), (method, path)


def test_a_wrong_method_is_answered_with_those_that_are_right(web: Web) -> None:
    for method, path, allowed in (
        ("PATCH", "/api/datasources", {"GET", "POST"}),
        ("POST", "/api/nodes", {"GET"}),
        ("DELETE", "/healthz", {"GET", "HEAD"}),
    ):
        answer = web.ask(method, path)
        refused(answer, 405)
        assert allowed <= {one.strip() for one in answer.headers["Allow"].split(",")}


@pytest.mark.parametrize("path", ["/healthz", "/readyz"])
def test_health_can_be_asked_for_without_a_body(web: Web, path: str) -> None:
    answer = web.ask("HEAD", path)
    assert (answer.status_code, answer.content) == (200, b"")
    assert web.ask("GET", path).json()["status"] == "ok"


def test_a_body_that_is_too_large_is_a_problem(web: Web) -> None:
    refused(web.ask("POST", "/api/plan", content=b" " * (17 * 1024 * 1024)), 413)


def test_a_field_that_is_missing_or_unknown_is_named(web: Web) -> None:
    found = refused(web.ask("POST", "/api/tokens", json={"role": "viewer"}), 422)
    assert [(one["path"], one["message"]) for one in found["problems"]] == [("name", "is missing")]
    found = refused(web.ask("POST", "/api/tokens", json={"name": "ada", "rolle": "viewer"}), 422)
    assert [(one["path"], one["message"]) for one in found["problems"]] == [("rolle", "is unknown")]


def test_a_body_that_may_be_left_out_must_not_be_null(web: Web, document: dict[str, Any]) -> None:
    optional = [
        path for _, path, one in operations(document) if "requestBody" in one and not one["requestBody"]["required"]
    ]
    for path in optional:
        filled = path.format(name="absent", id="0" * 8, stream="absent")
        found = refused(web.ask("POST", filled, content=b"null", headers={"Content-Type": "application/json"}), 422)
        assert found["detail"] == "the body must be a JSON object", path
