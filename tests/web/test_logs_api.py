"""What all datasources log: pages by datasource, level and text, as far as a caller sees, and what is logged now."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import httpx
import pytest

from tests.waiting import LONG_S
from tests.web_node import Web, bearer


def put(web: Web, name: str, level: str, text: str, number: int = 1) -> None:
    """Lines of this datasource, straight into the table."""
    web.execute(
        "INSERT INTO headgate.log_line (stream, at, level, text, fields)"
        f" SELECT s.id, now(), '{level}', '{text}', json_build_object('n', n)"
        " FROM headgate.stream s JOIN headgate.datasource d ON d.id = s.datasource,"
        f" generate_series(1, {number}) AS n WHERE d.name = '{name}'"
    )


def page(web: Web, client: httpx.Client | None = None, **query: Any) -> dict[str, Any]:
    answer = (client or web.client).get("/api/logs", params={"follow": "false", **query})
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def texts(found: dict[str, Any]) -> list[str]:
    return [item["text"] for item in found["items"]]


@pytest.fixture(scope="module")
def both(web: Web) -> tuple[str, str]:
    """Two datasources that have logged a few lines that only these tests write."""
    names = ("log-one", "log-two")
    for name in names:
        web.publish(name)
        web.opened(name)
    put(web, "log-one", "info", "Marked alpha")
    put(web, "log-two", "warning", "marked BETA")
    put(web, "log-one", "error", "marked gamma")
    return names


def test_lines_of_all_are_found_by_datasource_level_and_text(web: Web, both: tuple[str, str]) -> None:
    assert texts(page(web, search="MARKED")) == ["Marked alpha", "marked BETA", "marked gamma"]
    assert texts(page(web, search="marked", level="warning")) == ["marked BETA", "marked gamma"]
    assert texts(page(web, search="marked", datasource="log-one")) == ["Marked alpha", "marked gamma"]
    assert texts(page(web, search='"n": 1', datasource="log-two")) == ["marked BETA"]
    assert page(web, datasource="no%00name")["items"] == []
    one = page(web, search="marked", limit=2)
    assert texts(one) == ["marked BETA", "marked gamma"]
    assert texts(page(web, search="marked", before=one["before"])) == ["Marked alpha"]


def test_a_bound_token_sees_the_lines_of_what_it_names(web: Web, both: tuple[str, str]) -> None:
    token = web.token("viewer", datasources=["log-two"])
    with httpx.Client(base_url=web.node.url, headers=bearer(token), timeout=LONG_S) as client:
        assert texts(page(web, client, search="marked")) == ["marked BETA"]
        assert texts(page(web, client, search="marked", datasource="log-one")) == []


@pytest.mark.parametrize("query", ["level=loud", "limit=0", "limit=1001", "before=x", f"search={'x' * 201}"])
def test_a_wrong_parameter_is_refused_by_name(web: Web, query: str) -> None:
    answer = web.ask("GET", f"/api/logs?follow=false&{query}")
    assert answer.status_code == 400
    assert answer.json()["problems"][0]["path"] == query.partition("=")[0]


def test_lines_are_followed_as_they_come_each_once(web: Web, both: tuple[str, str]) -> None:
    """By the command itself, which begins with the last lines."""
    words = ["logs", "--follow", "--search", "delta", "--json", "--url", web.node.url, "--token", web.node.token]
    process = subprocess.Popen([sys.executable, "-m", "headgate.cli", *words], stdout=subprocess.PIPE, text=True)
    try:
        put(web, "log-one", "info", "delta", 3)
        assert process.stdout is not None
        first = [json.loads(process.stdout.readline())["fields"]["n"] for _ in range(3)]
        put(web, "log-two", "info", "other", 2)
        put(web, "log-two", "info", "delta", 4)
        then = [json.loads(process.stdout.readline()) for _ in range(4)]
    finally:
        process.kill()
        process.wait()
    assert first == [1, 2, 3]
    assert [(one["name"], one["fields"]["n"]) for one in then] == [("log-two", n) for n in range(1, 5)]
