"""Following shows each item once and in order, over connections that break."""

from __future__ import annotations

import json
from typing import Any

import pytest
from fake_node import FakeNode

from headgate.cli import history
from headgate.cli.call import Call
from headgate.cli.client import Interrupted, _events
from headgate.errors import NotFound
from headgate.web.bodies.datasources import Event, Line


def event(id: int) -> dict[str, Any]:
    return {
        "id": id,
        "name": "orders",
        "type": f"type{id}",
        "payload": {},
        "actor": "ada",
        "at": "2026-01-01T00:00:00Z",
    }


class Enough(Exception):
    """The test has seen what it wanted."""


@pytest.fixture(autouse=True)
def pauses(monkeypatch: pytest.MonkeyPatch, node: FakeNode) -> list[float]:
    """Instead of waiting, look at what the node answers next: more events each time, then no more."""
    found: list[float] = []

    def sleep(pause_s: float) -> None:
        found.append(pause_s)
        if len(found) == 3:
            raise Enough
        node.on("GET", "/api/datasources/orders/events/stream", [event(i) for i in range(1, 3 + 2 * len(found))])

    monkeypatch.setattr(history.time, "sleep", sleep)
    return found


def test_each_event_is_shown_once_over_broken_connections(node: FakeNode, capsys: pytest.CaptureFixture[str]) -> None:
    node.on("GET", "/api/datasources/orders/events", {"items": [event(1)]})
    node.on("GET", "/api/datasources/orders/events/stream", [event(1), event(2)])
    with pytest.raises(Enough):
        history.events(Call(node.url, as_json=True), "orders", follow=True)
    out = capsys.readouterr()
    assert [json.loads(line)["id"] for line in out.out.splitlines()] == [1, 2, 3, 4, 5, 6]
    assert out.err == ""
    assert [asked.query["after"] for asked in node.asked[1:]] == ["1", "2", "4"]


def test_following_all_events_begins_behind_the_newest_of_any_kind(
    node: FakeNode, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is wanted may never have happened: what happened before is not shown as new."""
    node.on("GET", "/api/events", {"items": [event(7)], "before": None})
    with pytest.raises(Enough):
        history.all_events(Call(node.url, as_json=True), name="orders", type="type9", since="1h", follow=True)
    newest, latest, *live = [asked.query for asked in node.asked]
    assert newest == {"follow": "false", "limit": "1"}
    assert (latest["datasource"], latest["type"], latest["follow"]) == ("orders", "type9", "false")
    assert "since" in latest
    assert {(one["follow"], one["after"], one["datasource"]) for one in live} == {("true", "7", "orders")}


def test_a_datasource_that_is_deleted_meanwhile_ends_it(node: FakeNode) -> None:
    node.on("GET", "/api/datasources/orders/logs", {"items": []})
    with pytest.raises(NotFound):
        for _ in history._followed(Call(node.url).node, "/api/datasources/gone/logs", Line, []):
            pass


def test_a_node_that_goes_away_is_mentioned_once(node: FakeNode, capsys: pytest.CaptureFixture[str]) -> None:
    away = Call(node.url).node
    node.close()
    with pytest.raises(Enough):
        list(history._followed(away, "/api/datasources/orders/logs", Line, []))
    assert capsys.readouterr().err.count("waiting for it") == 1


def test_a_stream_that_ends_says_so(node: FakeNode) -> None:
    node.on("GET", "/stream", [event(1)])
    found = Call(node.url).node.stream("/stream", Event)
    assert next(found).value.id == 1
    with pytest.raises(Interrupted):
        next(found)


def test_events_may_have_comments_other_fields_and_several_lines() -> None:
    lines = [": hi", "", "event: x", "id: 4", 'data: {"id":', "data: 4}", "", "data: no json", "", "data: [1]", ""]
    assert list(_events(iter(lines))) == [{"id": 4}]
