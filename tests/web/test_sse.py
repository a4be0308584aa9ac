"""Server-sent events of a real node: each item once, in order, live, and again from where one left off."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

from tests.waiting import LONG_S
from tests.web_node import Web


@contextmanager
def listening(web: Web, path: str, **headers: str) -> Iterator[Iterator[dict[str, Any]]]:
    """What comes over this path, item by item: its id, and its data."""
    with web.client.stream("GET", path, headers=headers, timeout=LONG_S) as answer:
        assert answer.status_code == 200, answer.read()
        assert answer.headers["content-type"].startswith("text/event-stream")
        yield _items(answer)


def _items(answer: httpx.Response) -> Iterator[dict[str, Any]]:
    id = None
    for line in answer.iter_lines():
        if line.startswith("id: "):
            id = int(line.removeprefix("id: "))
        elif line.startswith("data: "):
            yield {"sse": id, **json.loads(line.removeprefix("data: "))}


def types(items: Iterator[dict[str, Any]], number: int) -> list[str]:
    return [next(items)["type"] for _ in range(number)]


def listed(web: Web, name: str) -> list[int]:
    """The ids of what happened to a datasource."""
    return [item["id"] for item in web.call("GET", f"/api/datasources/{name}/events?limit=1000")["items"]]


def test_events_of_a_datasource_come_from_the_beginning_and_then_as_they_happen(web: Web, name: str) -> None:
    web.publish(name, enabled=False)
    with listening(web, f"/api/datasources/{name}/events/stream") as items:
        assert types(items, 2) == ["created", "published"]
        web.call("POST", f"/registry/reload/{name}")
        assert types(items, 1) == ["reloaded"]
        web.call("DELETE", f"/api/datasources/{name}")
        assert types(items, 1) == ["deleted"]


def test_events_of_all_come_from_now_on(web: Web, name: str) -> None:
    web.publish(f"{name}-before", enabled=False)
    with listening(web, "/api/events") as items:
        web.publish(name, enabled=False)
        # A token may be noted as used at any moment.
        ours = (item for item in items if item["name"] in (name, f"{name}-before"))
        found = [next(ours), next(ours)]
        assert [(item["name"], item["type"]) for item in found] == [(name, "created"), (name, "published")]
        assert all(item["sse"] == item["id"] for item in found)


@pytest.mark.parametrize("how", ["after", "last-event-id"])
def test_whoever_comes_back_gets_what_was_missed_once_and_in_order(web: Web, name: str, how: str) -> None:
    web.publish(name, enabled=False)
    seen: list[int] = []
    for _ in range(3):
        # Some of it happens while nobody listens, some while somebody does.
        web.call("POST", f"/registry/reload/{name}")
        path, headers = f"/api/datasources/{name}/events/stream", {}
        if seen and how == "after":
            path += f"?after={seen[-1]}"
        elif seen:
            headers = {"Last-Event-ID": str(seen[-1])}
        with listening(web, path, **headers) as items:
            seen.append(next(items)["id"])
            web.call("POST", f"/registry/reload/{name}")
            while seen[-1] < listed(web, name)[-1]:
                seen.append(next(items)["id"])
    assert seen == listed(web, name)
    assert len(seen) == 8


def test_what_a_browser_saw_last_wins_over_where_it_once_began(web: Web, name: str) -> None:
    web.publish(name, enabled=False)
    first, second = listed(web, name)
    with listening(web, f"/api/events?after={first - 1}", **{"Last-Event-ID": str(first)}) as items:
        assert next(items)["id"] == second


@pytest.mark.parametrize("header", ["", "x", "-1", "²", "9" * 40, "1e3"])
def test_a_last_id_that_is_none_is_passed_over(web: Web, name: str, header: str) -> None:
    web.publish(name, enabled=False)
    raw = [(b"Last-Event-ID", header.encode("latin-1"))]
    with web.client.stream("GET", f"/api/datasources/{name}/events/stream", headers=raw, timeout=LONG_S) as answer:
        assert next(_items(answer))["type"] == "created"


def test_a_long_past_comes_whole_and_in_order(web: Web, name: str) -> None:
    """More than one read returns."""
    id = web.publish(name, enabled=False)["id"]
    web.execute(
        "INSERT INTO headgate.datasource_events (datasource, name, type, actor)"
        f" SELECT '{id}', '{name}', 'noted', 'a test' FROM generate_series(1, 1200)"
    )
    with listening(web, f"/api/datasources/{name}/events/stream") as items:
        ids = [next(items)["id"] for _ in range(1202)]
    assert ids == sorted(set(ids))


def test_log_lines_come_as_they_are_written(web: Web, name: str) -> None:
    web.publish(name)
    with listening(web, f"/api/datasources/{name}/logs") as items:
        assert next(items)["text"] == "running"
        web.call("POST", f"/api/datasources/{name}/stop")
        assert next(items)["text"] == "stopped"


def test_the_overview_comes_again_when_it_has_changed(web: Web, name: str) -> None:
    with listening(web, "/api/overview") as items:
        assert name not in [row["name"] for row in next(items)["datasources"]]
        web.publish(name, enabled=False)
        found = next(found for found in items if name in [row["name"] for row in found["datasources"]])
        assert [node["name"] for node in found["nodes"]]


def test_an_unknown_datasource_is_a_problem_and_no_stream(web: Web) -> None:
    for path in ("/api/datasources/nobody/events/stream", "/api/datasources/nobody/logs"):
        answer = web.ask("GET", path)
        assert answer.status_code == 404
        assert answer.headers["content-type"] == "application/problem+json"


def test_many_who_leave_without_a_word_leave_nothing_behind(web: Web, name: str) -> None:
    web.publish(name, enabled=False)
    for _ in range(30):
        with listening(web, f"/api/datasources/{name}/events/stream") as items:
            next(items)
    with listening(web, f"/api/datasources/{name}/events/stream") as items:
        assert types(items, 2) == ["created", "published"]
    assert "Traceback" not in web.node.log()
