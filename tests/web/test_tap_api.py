"""A tap over HTTP, on real nodes: who may look, what is written down, and how it ends."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from headgate.core.tap import MOST_TAPS
from headgate.testing.processes import NodeProcess
from tests.waiting import LONG_S
from tests.web_node import Web, bearer


@contextmanager
def tapping(web: Web, name: str, token: str = "", **params: Any) -> Iterator[Iterator[dict[str, Any]]]:
    """What a tap shows, step by step."""
    headers = bearer(token or web.node.token)
    with httpx.stream(
        "GET", f"{web.node.url}/api/datasources/{name}/tap", params=params, headers=headers, timeout=LONG_S
    ) as answer:
        assert answer.status_code == 200, answer.read()
        lines = answer.iter_lines()
        yield (json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: "))


def shown(steps: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    return (step["shown"] for step in steps if step["shown"])


def asked(web: Web, name: str, token: str = "", **params: Any) -> httpx.Response:
    """The answer to a tap that is refused."""
    return httpx.get(
        f"{web.node.url}/api/datasources/{name}/tap",
        params=params,
        headers=bearer(token or web.node.token),
        timeout=LONG_S,
    )


def nobody_looks(web: Web) -> None:
    query = "SELECT FROM headgate.tap UNION ALL SELECT FROM headgate.tapped"
    web.until(lambda: web.rows(query), lambda rows: not rows)


@pytest.fixture(autouse=True)
def alone(web: Web) -> Iterator[None]:
    """What one test leaves is not in the way of the next."""
    yield
    nobody_looks(web)


def test_records_come_as_they_flow_and_it_ends_at_the_limit(web: Web, name: str) -> None:
    web.publish(name)
    with tapping(web, name, limit=5, where="id >= 0") as steps:
        *found, last = steps
    assert last == {"shown": None, "dropped": 0, "ended": "limit"}
    records = [step["shown"] for step in found if step["shown"]]
    assert len(records) == 5
    assert all(one["stream"] == f"{name}:0" and one["record"]["id"] >= 0 and one["place"] for one in records)


def test_it_ends_when_its_time_is_over(web: Web, name: str) -> None:
    web.publish(name, enabled=False)
    with tapping(web, name, **{"for": "1s"}) as steps:
        assert [step["ended"] for step in steps] == ["time"]


def test_who_looked_is_written_down_and_no_value(web: Web, name: str) -> None:
    web.publish(name)
    token = web.token("operator")
    with tapping(web, name, token, where='kind != "Ada Lovelace"', at="mapped", limit=1) as steps:
        next(shown(steps))
    (event,) = [one for one in web.call("GET", f"/api/datasources/{name}/events")["items"] if one["type"] == "tapped"]
    assert event["actor"].startswith("operator")
    assert event["payload"] == {"at": "mapped", "has_condition": True, "sample": 1}
    assert "Ada Lovelace" not in web.node.log()


def test_a_viewer_may_not_look_and_a_bound_operator_only_at_what_it_names(web: Web, name: str) -> None:
    web.publish(name)
    assert asked(web, name, web.token("viewer")).status_code == 403
    bound = web.token("operator", datasources=[f"{name}-other"])
    assert asked(web, name, bound).status_code == 403
    with tapping(web, name, web.token("operator", datasources=[name])) as steps:
        next(shown(steps))
    assert web.events(name).count("tapped") == 1


def test_it_ends_with_the_token(web: Web, name: str) -> None:
    web.publish(name)
    made = web.call("POST", "/api/tokens", {"name": f"for {name}", "role": "operator"})
    with tapping(web, name, made["token"]) as steps:
        next(shown(steps))
        web.call("DELETE", f"/api/tokens/{made['id']}")
        for _ in steps:
            pass


@pytest.mark.parametrize(
    ("params", "status"),
    [
        ({"where": "id >"}, 422),
        ({"where": "x" * 2001}, 400),
        ({"for": "2h"}, 422),
        ({"for": "0s"}, 422),
        ({"for": "soon"}, 422),
        ({"sample": 0}, 400),
        ({"limit": 0}, 400),
        ({"at": "sink"}, 400),
    ],
    ids=lambda value: "",
)
def test_what_cannot_be_shown_is_a_problem(web: Web, name: str, params: dict[str, Any], status: int) -> None:
    web.publish(name, enabled=False)
    answer = asked(web, name, **params)
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    assert "tapped" not in web.events(name)


def test_one_too_many_is_refused(web: Web, name: str) -> None:
    web.publish(name, enabled=False)
    views = [tapping(web, name) for _ in range(MOST_TAPS)]
    for view in views:
        view.__enter__()
    answer = asked(web, name)
    for view in views:
        view.__exit__(None, None, None)
    assert (answer.status_code, answer.json()["code"]) == (409, "too_many")


def test_a_datasource_that_there_is_not_is_a_problem(web: Web) -> None:
    assert asked(web, "nobody").status_code == 404


def test_of_a_node_that_is_killed_the_tap_ends_and_the_stream_of_the_other_goes_on(
    web: Web, name: str, tmp_path: Path
) -> None:
    """The stream is on one node and the person on another, which is killed with records on their way to it."""
    web.publish(name)
    web.running(name)
    here = web.show(name)["node"]
    node = NodeProcess.start(
        tmp_path, database=web.database, token=web.node.token, environment={"HEADGATE_NODE_NAME": "other"}
    )
    try:
        with httpx.Client(base_url=node.url, headers=bearer(node.token), timeout=LONG_S) as client:
            other = Web(node, web.database, client)
            web.call("POST", f"/api/streams/{name}:0/move", {"node": here})
            with pytest.raises(httpx.TransportError), tapping(other, name, at="written") as steps:
                next(one for one in shown(steps) if one["node"] == here)
                os.kill(node.process.pid, signal.SIGKILL)
                for _ in steps:
                    pass
        nobody_looks(web)
        with tapping(web, name, at="written", limit=3) as steps:
            assert len(list(shown(steps))) == 3
    finally:
        node.end(signal.SIGKILL)
