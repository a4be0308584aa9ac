"""Payloads that cost much, beside lawful ones: neither the node nor its other streams suffer from them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.web_node import Web

ITEMS = [{"q": 1, "p": 2}] * 39_000  # As many as one payload may have.
HOSTILE: dict[str, tuple[dict[str, Any], Any]] = {
    "a mapping over a list": ({"set": {"id": "id", "all": "count([x.q * x.p for x in xs])"}}, {"xs": ITEMS}),
    "one record per element": ({"unnest": "xs", "set": {"id": "id", "q": "item.q * 2 + 1"}}, {"xs": ITEMS}),
    "loops in loops": ({"set": {"id": "id", "n": "count([1 for x in xs for y in xs])"}}, {"xs": ITEMS}),
    "decimal powers": ({"set": {"id": "id", "n": "count([decimal(x) ** 0.7 for x in xs])"}}, {"xs": ["1.7"] * 99_000}),
    "a long text": ({"set": {"id": "id", "n": "length(s * 300000)"}}, {"s": "x" * 900_000}),
    "equal hashes": (
        {"set": {"id": "id", "n": "count(unique(xs))"}},
        {"xs": [number * (2**61 - 1) for number in range(2, 20_000)]},
    ),
    "many lists": ({"set": {"id": "id"}}, {"xs": [[]] * 66_000}),
    "deep lists": ({"set": {"id": "id", "s": "text(xs)"}}, {"xs": json.loads("[" * 400 + "]" * 400)}),
    "a long number": ({"set": {"id": "id", "n": "xs * xs"}}, {"xs": int("9" * 4_000)}),
}


@pytest.fixture(scope="module", autouse=True)
def _secret(web: Web) -> None:
    web.call("PUT", "/api/secrets/warehouse", {"value": web.database})


def hook(web: Web, name: str, mapping: dict[str, Any]) -> None:
    sink = {"type": "postgres", "url": {"$secret": "warehouse"}, "table": name.replace("-", "_"), "create": True}
    web.publish(name, source={"type": "webhook"}, mapping=mapping, sink=sink, on_error="skip")


def test_payloads_of_every_dear_kind_leave_the_node_and_its_other_streams_at_work(web: Web, name: str) -> None:
    before = incarnations(web)
    hook(web, f"{name}-lawful", {"set": {"id": "id"}})
    for number, (mapping, payload) in enumerate(HOSTILE.values()):
        hook(web, f"{name}-{number}", mapping)
        body = json.dumps({"id": number, **payload}, separators=(",", ":"))
        for text in (body, body, json.dumps({"id": -1, "xs": [], "s": ""})):
            answer = web.ask("POST", f"/hooks/{name}-{number}", content=text)
            assert answer.status_code == 202, answer.text
        web.call("POST", f"/hooks/{name}-lawful", {"id": number})

    web.wait_for(f"{name}-lawful", lambda found: found["metrics"].get("records_read") == len(HOSTILE))
    for number in range(len(HOSTILE)):
        # An element of a list counts as a record.
        web.wait_for(f"{name}-{number}", lambda found: found["metrics"].get("records_read", 0) >= 3)
    assert incarnations(web) == before


def incarnations(web: Web) -> list[str]:
    """A node that ends itself as blocked comes back as another incarnation, or not at all."""
    return [node["id"] for node in web.call("GET", "/api/nodes")["items"]]
