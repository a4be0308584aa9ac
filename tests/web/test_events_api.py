"""What happened, on pages: of all, of one datasource, of one type, since a time; also of what is gone."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

from headgate.cli import app
from tests.web_node import Web, bearer


def page(web: Web, client: httpx.Client | None = None, **query: Any) -> dict[str, Any]:
    answer = (client or web.client).get("/api/events", params={"follow": "false", **query})
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def types(found: dict[str, Any]) -> list[str]:
    return [item["type"] for item in found["items"]]


def put(web: Web, name: str, number: int = 1, type: str = "reloaded", ago: str = "0 s") -> None:
    """Events of this name, straight into the table."""
    web.execute(
        "INSERT INTO headgate.datasource_events (name, type, payload, actor, at)"
        f" SELECT '{name}', '{type}', json_build_object('n', n), 'me', now() - interval '{ago}'"
        f" FROM generate_series(1, {number}) AS n"
    )


def test_what_happened_to_a_datasource_is_read_after_it_was_deleted(web: Web, name: str) -> None:
    web.publish(name, enabled=False)
    web.call("DELETE", f"/api/datasources/{name}")
    assert web.ask("GET", f"/api/datasources/{name}/events").status_code == 404
    found = page(web, datasource=name)
    assert types(found) == ["created", "published", "deleted"]
    assert {item["name"] for item in found["items"]} == {name}
    assert types(page(web, datasource=name, type="deleted")) == ["deleted"]


def test_pages_lead_to_the_beginning_and_leave_nothing_out(web: Web, name: str) -> None:
    put(web, name, 25)
    found, before = [], None
    while True:
        one = page(web, datasource=name, limit=10, **({} if before is None else {"before": before}))
        found = one["items"] + found
        before = one["before"]
        if before is None:
            break
    assert [item["payload"]["n"] for item in found] == list(range(1, 26))


def test_since_a_time(web: Web, name: str) -> None:
    put(web, name, type="old", ago="2 days")
    put(web, name, type="new")
    since = "2026-01-01T00:00:00Z"
    assert types(page(web, datasource=name, since=since)) == ["old", "new"]
    (old, new) = page(web, datasource=name)["items"]
    assert types(page(web, datasource=name, since=new["at"])) == ["new"]
    assert types(page(web, datasource=name, since=old["at"])) == ["old", "new"]


@pytest.mark.parametrize(
    "query", ["since=yesterday", "since=2026-01-01T00:00:00", "limit=0", "limit=1001", "type=a%00"]
)
def test_a_wrong_parameter_is_named(web: Web, query: str) -> None:
    answer = web.ask("GET", f"/api/events?follow=false&{query}")
    assert answer.status_code == 400
    assert answer.json()["problems"][0]["path"] == query.partition("=")[0]


def test_a_name_that_nothing_can_have_has_no_events(web: Web) -> None:
    assert page(web, datasource="a%00'b")["items"] == []


def test_a_token_sees_what_it_names_however_much_else_there_is(web: Web, name: str) -> None:
    put(web, f"{name}-mine")
    put(web, f"{name}-other", 2500)
    token = web.token("viewer", datasources=[f"{name}-mine"])
    with httpx.Client(base_url=web.node.url, headers=bearer(token), timeout=60) as bound:
        found, before = [], None
        while not found:
            one = page(web, bound, limit=10, **({} if before is None else {"before": before}))
            found, before = one["items"], one["before"]
            assert found or before is not None
        assert {item["name"] for item in found} == {f"{name}-mine"}
        assert page(web, bound, datasource=f"{name}-other")["items"] == []
        assert page(web, bound, type="token_created")["items"] == []
    with httpx.Client(base_url=web.node.url, headers=bearer(web.token("viewer")), timeout=60) as viewer:
        assert page(web, viewer, type="token_created")["items"] != []


def test_live_events_of_one_datasource_and_one_type(web: Web, name: str) -> None:
    with web.client.stream("GET", f"/api/events?datasource={name}&type=published") as stream:
        web.publish(f"{name}-other", enabled=False)
        web.publish(name, enabled=False)
        line = next(line for line in stream.iter_lines() if line.startswith("data:"))
    assert (f'"name":"{name}"' in line, '"type":"published"' in line) == (True, True)


def test_the_command_shows_all_pages(web: Web, name: str) -> None:
    put(web, name, 1200)
    command = ["events", "--datasource", name, "--url", web.node.url, "--token", web.node.token]
    whole = CliRunner().invoke(app, [*command, "--since", "1h"])
    assert [line.partition("n=")[2] for line in whole.stdout.splitlines()] == [f"{n} by me" for n in range(1, 1201)]
    few = CliRunner().invoke(app, [*command, "--limit", "2", "--json"])
    assert [item["payload"]["n"] for item in json.loads(few.stdout)["items"]] == [1199, 1200]
