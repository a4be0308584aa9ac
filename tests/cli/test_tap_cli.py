"""`headgate ds tap`: what it asks for, and how records look."""

from __future__ import annotations

import json
from typing import Any, get_args

from fake_node import FakeNode, Run

from headgate.cli.tap import Place
from headgate.core.tap import At

PATH = "/api/datasources/orders/tap"
ENDED = {"shown": None, "dropped": 0, "ended": "limit"}


def shown(**more: Any) -> dict[str, Any]:
    record = {"stream": "orders:0", "node": "left", "place": "line 7", "record": {"id": 1}, **more}
    return {"shown": record, "dropped": 0, "ended": None}


def dropped(number: int) -> dict[str, Any]:
    return {"shown": None, "dropped": number, "ended": None}


def test_the_places_of_the_command_are_those_of_a_tap() -> None:
    assert get_args(Place) == get_args(At)


def test_records_are_lines_with_their_place_and_what_was_dropped_is_said_apart(node: FakeNode, run: Run) -> None:
    node.on("GET", PATH, [shown(), dropped(1204), shown(record={"id": 2}), ENDED])
    done = run("ds", "tap", "orders", "--limit", "2", "--where", "id > 0", "--sample", "3", "--for", "30s")
    assert done.exit_code == 0
    assert done.stdout.splitlines() == ['orders:0 line 7  {"id": 1}', 'orders:0 line 7  {"id": 2}']
    assert done.stderr == "1,204 records dropped\n"
    query = node.asked[-1].query
    assert query == {"at": "source", "where": "id > 0", "sample": "3", "limit": "2", "for": "30s"}


def test_a_dead_record_says_why_and_control_characters_are_shown(node: FakeNode, run: Run) -> None:
    bad = shown(record={"a": "\x1b[2J"}, stage="mapping", field="set.total", reason="expects text", is_cut=True)
    node.on("GET", PATH, [bad, shown(is_deletion=True), ENDED])
    done = run("ds", "tap", "orders", "--at", "dead")
    assert done.stdout.splitlines() == [
        'orders:0 line 7, mapping: set.total: expects text, cut  {"a": "\\u001b[2J"}',
        'orders:0 line 7, deletion  {"id": 1}',
    ]


def test_machines_get_what_the_node_sent_line_by_line(node: FakeNode, run: Run) -> None:
    node.on("GET", PATH, [shown(), dropped(3), ENDED])
    done = run("ds", "tap", "orders", "--json")
    assert [json.loads(line) for line in done.stdout.splitlines()] == [shown(), dropped(3)]
    assert done.stderr == ""


def test_a_node_that_goes_away_is_an_error(node: FakeNode, run: Run) -> None:
    node.on("GET", PATH, [shown()])
    done = run("ds", "tap", "orders")
    assert done.exit_code == 1
    assert "ended the stream" in done.stderr


def test_a_place_that_there_is_not_is_refused_here(node: FakeNode, run: Run) -> None:
    assert run("ds", "tap", "orders", "--at", "sink").exit_code == 2
    assert node.asked == []
