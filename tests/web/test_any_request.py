"""Requests of every shape that the OpenAPI document allows, and of many that it does not: whatever comes, the answer is
one that the document names, in the shape that it says, and none is an error of the node.

The requests are drawn by Schemathesis, the same ones every time.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis import Case, GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.core.failures import FailureGroup
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from tests.waiting import LONG_S
from tests.web_node import Web, bearer

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]
YAML, TEXT = "text/yaml", CHECKS[:3]  # The document says that it is text, and Schemathesis would read it.
ENDLESS = ("/api/datasources/{name}/events/stream",)  # Live streams, which do not end.
SCHEMA = "application/schema+json"  # A document about documents, sent as it is.
# Live unless told otherwise.
LIVE = ("/api/overview", "/api/overview/rows", "/api/events", "/api/logs", "/api/datasources/{name}/logs")
OURS = ("authorization", "user-agent")
KNOWN = {"name": "known", "stream": "known:0", "number": 1}


@pytest.fixture(scope="module")
def schema(web: Web) -> schemathesis.BaseSchema:
    """What the node says of itself."""
    return schemathesis.openapi.from_dict(web.call("GET", "/api/schema"))


def operations(schema: schemathesis.BaseSchema) -> Iterator[Any]:
    for found in schema.get_all_operations():
        operation = found.ok()
        if operation.path not in ENDLESS:
            yield operation


@pytest.mark.parametrize(
    ("role", "mode", "examples"),
    [
        ("admin", GenerationMode.POSITIVE, 3),
        ("admin", GenerationMode.NEGATIVE, 2),
        ("viewer", GenerationMode.POSITIVE, 2),
    ],
)
def test_every_answer_is_one_that_the_document_names(
    web: Web, schema: schemathesis.BaseSchema, role: str, mode: GenerationMode, examples: int
) -> None:
    failures: list[str] = []
    with httpx.Client(base_url=web.node.url, headers=bearer(web.token(role)), timeout=LONG_S) as client:
        for operation in operations(schema):
            if mode is GenerationMode.NEGATIVE and not _takes_anything(operation):
                continue
            if operation.method != "get":
                web.publish("known", enabled=False)  # It may have been deleted.
            try:
                _ask(client, operation, mode, examples)
            except (AssertionError, FailureGroup) as error:
                failures.append(f"{operation.label}: {error}"[:1500])
    assert not failures, "\n\n".join(failures)
    assert web.call("GET", "/healthz")["status"] == "ok"
    assert "Traceback" not in web.node.log()


def _takes_anything(operation: Any) -> bool:
    """Without parameters and without a body there is nothing to do wrong."""
    return bool(operation.body or operation.path_parameters or operation.query)


def _ask(client: httpx.Client, operation: Any, mode: GenerationMode, examples: int) -> None:
    @settings(
        max_examples=examples,
        derandomize=True,
        database=None,
        deadline=None,
        phases=[Phase.generate],  # What fails is shown as it came: to shrink it would take minutes.
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(generation_mode=mode), is_known=st.booleans())
    def ask(case: Case, is_known: bool) -> None:
        answer = _call(client, case, is_known=is_known)
        is_text = answer.headers.get("content-type", "").startswith((YAML, SCHEMA))
        case.validate_response(answer, checks=TEXT if is_text else CHECKS)
        if answer.is_error and operation.method != "head":
            assert answer.headers["content-type"] == "application/problem+json", answer.text
            assert answer.json()["status"] == answer.status_code, answer.text

    ask()


def _call(client: httpx.Client, case: Case, *, is_known: bool) -> httpx.Response:
    """Send it; sometimes to what exists."""
    if is_known and not case.path.startswith("/api/nodes"):
        for name, value in KNOWN.items():
            if name in (case.path_parameters or {}):
                case.path_parameters[name] = value
        if case.path.startswith("/api/streams/"):
            case.path_parameters["id"] = "known:0"
    if case.path in LIVE:
        case.query = {**(case.query or {}), "follow": "false"}
    if case.path.endswith("/tap"):
        case.query = {**(case.query or {}), "for": "1s"}  # An hour by default.
    kwargs = case.as_transport_kwargs(base_url=str(client.base_url))
    body = kwargs.get("json")
    return client.request(
        kwargs["method"],
        kwargs["url"],
        params=kwargs.get("params"),
        headers={name: value for name, value in dict(kwargs.get("headers") or {}).items() if name.lower() not in OURS},
        content=kwargs.get("data") if body is None else json.dumps(body).encode(),
    )
