"""Lists that people page through, on a real node: streams, heaps of dead letters, secrets and who uses them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from tests.web_node import Web, bearer

STREAMS = 7


@pytest.fixture(scope="module")
def filled(web: Web) -> Web:
    """Streams that nobody runs: of one datasource seven, of another one, with pushed ones next to it."""
    web.publish("many", streams=STREAMS, enabled=False)
    web.publish("few", enabled=False)
    web.publish("pushed", source={"type": "push"}, enabled=False)
    web.execute(
        "INSERT INTO headgate.stream (id, datasource, label) SELECT gen_random_uuid(), d.id, l.label "
        "FROM headgate.datasource d, unnest(ARRAY['b', 'a']) AS l (label) WHERE d.name = 'pushed'"
    )
    return web


def names(found: dict[str, Any]) -> list[str]:
    return [one["name"] for one in found["items"]]


def paged(web: Web, limit: int, **query: Any) -> list[str]:
    """All pages, one after another."""
    found: list[str] = []
    after = None
    while True:
        page = web.call("GET", "/api/streams", params={"limit": limit, **query, **({"after": after} if after else {})})
        assert 0 < len(page["items"]) <= limit
        found += names(page)
        after = page["after"]
        if after is None:
            return found


def test_pages_of_streams_are_all_streams_in_their_order(filled: Web) -> None:
    whole = names(filled.call("GET", "/api/streams"))
    assert whole == ["few:0", *(f"many:{n}" for n in range(STREAMS)), "pushed:a", "pushed:b"]
    for limit in (1, 3, 100):
        assert paged(filled, limit) == whole
    assert paged(filled, 2, datasource="many") == [f"many:{n}" for n in range(STREAMS)]
    assert paged(filled, 100, search="MANY:3") == ["many:3"]
    assert paged(filled, 100, kind="free") == whole
    for query in ({"kind": "owned"}, {"owner": "nobody"}, {"datasource": "none"}, {"search": "%"}):
        assert filled.call("GET", "/api/streams", params=query)["items"] == []


def test_streams_are_found_by_their_node_and_by_how_they_are(filled: Web, name: str) -> None:
    one, two = f"{name}-a", f"{name}-b"
    for each in (one, two):
        filled.publish(each)
        filled.running(each)
    (node,) = filled.call("GET", "/api/nodes")["items"]
    for owner in (node["name"], node["id"]):
        assert paged(filled, 1, owner=owner) == [f"{one}:0", f"{two}:0"]
    assert paged(filled, 9, kind="owned") == [f"{one}:0", f"{two}:0"]
    filled.call("POST", f"/api/streams/{two}:0/move", {"node": node["id"]})
    assert paged(filled, 9, kind="pinned") == [f"{two}:0"]
    for kind in ("moving", "failed"):
        assert filled.call("GET", "/api/streams", params={"kind": kind})["items"] == []


def test_a_token_with_bounds_pages_through_what_it_names(filled: Web) -> None:
    headers = bearer(filled.token("viewer", datasources=["few", "push*"]))
    for query in ({}, {"limit": 100}, {"search": ""}):
        found = filled.call("GET", "/api/streams", params=query, headers=headers)
        assert names(found) == ["few:0", "pushed:a", "pushed:b"]
    assert filled.call("GET", "/api/streams", params={"datasource": "many"}, headers=headers)["items"] == []
    assert filled.call("GET", "/api/streams", headers=bearer(filled.token("viewer", datasources=["no"])))["items"] == []


@pytest.mark.parametrize(
    "query",
    [
        {"after": "x"},
        {"after": "many#-1"},
        {"after": "many#99999999999"},
        {"after": "many#²"},
        {"search": "a\0b"},
        {"search": "x" * 401},
        {"kind": "odd"},
        {"limit": 0},
    ],
)
def test_what_cannot_be_asked_of_streams(filled: Web, query: dict[str, Any]) -> None:
    assert filled.ask("GET", "/api/streams", params=query).status_code == 400


def test_letters_are_summed_up_by_what_is_wrong_with_them(web: Web, name: str) -> None:
    mapping = {"set": {"id": "int(id)", "at": "timestamp(at)"}}
    web.publish(name, source={"type": "webhook"}, mapping=mapping)
    good = "2026-07-01T00:00:00Z"
    for one in ({"id": "x", "at": good}, {"id": "y", "at": good}, {"id": "1", "at": "never"}):
        assert web.ask("POST", f"/hooks/{name}", json=one).status_code == 202

    def heaps(**query: Any) -> list[dict[str, Any]]:
        return list(web.call("GET", "/api/dead-letters/summary", params={"datasource": name, **query})["items"])

    found = web.until(heaps, lambda all: sum(one["letters"] for one in all) == 3)
    assert [(one["field"], one["letters"], one["version"], one["stage"]) for one in found] == [
        ("set.id", 2, 1, "mapping"),
        ("set.at", 1, 1, "mapping"),
    ]
    assert found[0]["first_at"] <= found[0]["last_at"]
    assert [one["field"] for one in heaps(field="set.at")] == ["set.at"]
    assert heaps(version=2) == []
    short = web.call("GET", "/api/dead-letters/summary", params={"datasource": name, "limit": 1})
    assert (len(short["items"]), short["more"]) == (1, True)
    web.call("POST", f"/api/datasources/{name}/dead-letters/discard", {"field": "set.id"})
    assert [one["letters"] for one in heaps()] == [1]
    bound = bearer(web.token("operator", datasources=["another"]))
    assert web.call("GET", "/api/dead-letters/summary", headers=bound)["items"] == []
    assert web.ask("GET", "/api/dead-letters/summary", headers=bearer(web.token("viewer"))).status_code == 403


def test_a_secret_says_who_uses_it_and_never_its_value(web: Web, name: str) -> None:
    for secret in ("used-one", "unused"):
        web.call("PUT", f"/api/secrets/{secret}", {"value": "hush-hush-hush"})
    source = {"type": "webhook", "signature": {"scheme": "github", "secret": {"$secret": "used-one"}}}
    web.publish(name, source=source, enabled=False)
    web.call("PUT", f"/api/datasources/{name}/draft", {"source": source, "sink": {"type": "stdout"}})
    answer = web.ask("GET", "/api/secrets")
    found = {one["name"]: one["used_by"] for one in answer.json()["items"]}
    assert (found["used-one"], found["unused"]) == ([name], [])
    assert "hush" not in answer.text


def test_events_until_a_time(web: Web, name: str) -> None:
    web.publish(name, enabled=False)
    between = datetime.now(UTC).isoformat()
    web.call("POST", f"/api/datasources/{name}/start")

    def types(**query: Any) -> set[str]:
        found = web.call("GET", "/api/events", params={"follow": "false", "datasource": name, **query})["items"]
        return {one["type"] for one in found}

    assert types(until=between) == {"created", "published"}
    assert "started" in types(since=between)
    assert types(since=between, until=between) == set()
    assert web.ask("GET", "/api/events", params={"follow": "false", "until": "2026-07-01"}).status_code == 400


def test_the_lineage_of_an_installation_is_told_to_those_who_see_everything(web: Web) -> None:
    found = web.call("GET", "/api/installation/lineage")
    assert found["installation"] == web.call("GET", "/api/installation")["installation"]
    assert (found["era"], found["standbys"], found["synchronous"]) == (0, 0, 0)
    assert found["system"].isdecimal()
    bound = bearer(web.token("viewer", datasources=["few"]))
    assert web.ask("GET", "/api/installation/lineage", headers=bound).status_code == 403
