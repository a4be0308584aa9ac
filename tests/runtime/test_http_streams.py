"""HTTP on a real node: the documents of the how-to run, and what servers answer is what people see."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from headgate.store.letters import Filter
from tests.connectors.http_server import Asked, HttpServer, Said, Serve, serve
from tests.runtime.conftest import Harness, postgres
from tests.waiting import until

__all__ = ["serve"]  # A fixture.

PAGE = Path(__file__).parent.parent.parent / "docs" / "howto" / "http.md"


def documents(server: HttpServer) -> dict[str, Any]:
    """Those of the page, with the server of the test in place of the one that is named there."""
    found: dict[str, Any] = {}
    for text in re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), re.DOTALL):
        found |= yaml.safe_load(text.replace("https://api.example.com", server.url))["datasources"]
    return found


class Shop:
    """What the page tells of: orders to poll, and a place to send them to."""

    def __init__(self) -> None:
        self.orders = [{"id": id, "updated_at": f"2024-05-01T00:00:{id:02}Z", "total": id / 2} for id in range(25)]
        self.sent: dict[str, Any] = {}
        self.deleted: list[str] = []

    def __call__(self, asked: Asked) -> Said:
        if asked.path == "/oauth/token":
            return Said({"access_token": "t0ken", "expires_in": 60})
        if asked.headers.get("authorization") != "Bearer t0ken":
            return Said(status=401)
        if asked.method == "GET":
            return self._page(asked)
        if asked.method == "DELETE":
            self.deleted.append(asked.path)
            return Said(status=204)
        self.sent[asked.headers["idempotency-key"]] = (asked.path, asked.json["id"])
        return Said(status=422 if asked.json["id"] == 13 else 201)

    def _page(self, asked: Asked) -> Said:
        since, after = asked.params.get("updated_since", ""), int(asked.params.get("cursor", "0"))
        found = [order for order in self.orders if order["updated_at"] >= since]
        some = found[after : after + int(asked.params["limit"])]
        following = after + len(some) if after + len(some) < len(found) else None
        return Said({"data": {"items": some}, "next_cursor": following})


async def test_the_documents_of_the_how_to_run(hg: Harness, serve: Serve, url: str) -> None:
    shop = Shop()
    server = await serve(shop)
    await hg.node.registry.set_secret("shop-client", "s3cret", "tester")
    await hg.node.registry.set_secret("warehouse", url, "tester")
    await hg.node.registry.set_secret("shop-token", "t0ken", "tester")
    named = documents(server)
    assert set(named) == {"orders", "orders-out"}
    await hg.apply(orders=named["orders"])
    await until(lambda: _ids(hg, list(range(25))))
    shop.orders += [{"id": 25, "updated_at": "2024-05-01T00:01:00Z", "total": 1}]
    await until(lambda: _ids(hg, list(range(26))))
    await hg.apply(orders_out=named["orders-out"])
    await until(lambda: _reasons(hg))
    assert shop.deleted == ["/archive/0"]
    assert sorted(shop.sent.values()) == [(f"/archive/{id}", id) for id in sorted(range(1, 26), key=str)]
    assert await _reasons(hg) == ["the server answered 422 Unprocessable Entity"]


async def _ids(hg: Harness, wanted: list[int]) -> bool:
    return await hg.ids("orders") == wanted


async def _reasons(hg: Harness) -> list[str]:
    return [letter.reason for letter in await hg.node.letters.page(Filter(), "open", 10)]


@pytest.mark.parametrize(
    ("status", "cause", "status_word"),
    [(401, "auth", "quarantined"), (404, "config", "quarantined"), (500, "network", "backing off")],
)
async def test_what_a_server_answers_is_what_people_see(
    hg: Harness, serve: Serve, status: int, cause: str, status_word: str
) -> None:
    server = await serve(lambda asked: Said(b"a value", status))
    await hg.apply(orders={"source": {"type": "http", "url": server.url}, "sink": {"type": "blackhole"}})
    state = await hg.until("orders", status="ERROR", detail=status_word)
    assert state["error"]["cause"] == cause
    assert str(status) in state["error"]["message"]
    assert "a value" not in repr(state)


async def test_a_pause_that_is_asked_for_stops_nothing(hg: Harness, serve: Serve, url: str) -> None:
    limits = [Said(status=429, headers={"Retry-After": "1"}), Said(status=503, headers={"Retry-After": "1"})]
    server = await serve(lambda asked: limits.pop() if limits and asked.params["page"] == "2" else _three(asked))
    source = {"type": "http", "url": server.url, "interval_s": None, "paging": {"type": "page"}}
    await hg.apply(orders={"source": source, "mapping": {"set": {"id": "id"}}, "sink": postgres(url)})
    await until(lambda: _rows(hg, [1, 2, 3]))
    assert "worker_failed" not in await hg.events("orders")


def _three(asked: Asked) -> Said:
    page = int(asked.params["page"])
    return Said([{"id": page}] if page < 4 else [])


async def _rows(hg: Harness, wanted: list[int]) -> bool:
    return await hg.ids() == wanted
