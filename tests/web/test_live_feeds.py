"""Events and log lines as they come, of a real node: who sees which, and that both pages are live in a browser."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.sync_api import BrowserContext, Page, expect

from headgate.testing.processes import NodeProcess
from headgate.web import sse
from tests.waiting import LONG_S
from tests.web.browser import needs_chromium, opened, running_node
from tests.web_node import Web, bearer

TICKING = {"source": {"type": "generator", "rate": 1}, "sink": {"type": "blackhole"}}


@contextmanager
def following(web: Web, path: str, token: str) -> Iterator[Iterator[dict[str, Any]]]:
    """What a token is sent, from now on."""
    headers = {**bearer(token), "Accept": sse.MEDIA_TYPE}
    with httpx.stream("GET", f"{web.node.url}{path}", headers=headers, timeout=LONG_S) as answer:
        assert answer.status_code == 200, answer.read()
        lines = answer.iter_lines()
        next(lines)  # It follows.
        yield (json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: "))


@pytest.mark.parametrize("path", ["/api/events", "/api/logs"])
def test_a_bound_token_follows_only_what_it_names(web: Web, name: str, path: str) -> None:
    bound = web.token("viewer", datasources=[f"{name}-mine"])
    with following(web, path, bound) as mine, following(web, path, web.token("viewer")) as all_of_it:
        for other in (f"{name}-others", f"{name}-mine"):
            web.publish(other)
            web.opened(other)
            web.call("POST", f"/api/datasources/{other}/stop")
        seen: list[str] = []
        while f"{name}-mine" not in seen:
            seen.append(next(all_of_it)["name"])
        assert f"{name}-others" in seen
        found: list[dict[str, Any]] = []
        while not found or "stopped" not in (found[-1].get("type"), found[-1].get("text")):
            found.append(next(mine))
        assert {one["name"] for one in found} == {f"{name}-mine"}


def test_who_follows_one_datasource_gets_nothing_of_another(web: Web, name: str) -> None:
    for one in (f"{name}-a", f"{name}-b"):
        web.publish(one, enabled=False)
    with following(web, f"/api/datasources/{name}-b/events/stream", web.node.token) as items:
        web.call("POST", f"/registry/reload/{name}-a")
        web.call("POST", f"/registry/reload/{name}-b")
        assert [next(items)["type"] for _ in range(3)] == ["created", "published", "reloaded"]


# In a browser.


def watch(page: Page, address: str) -> None:
    page.goto(address)
    expect(page.locator("#link")).to_have_text("live")
    page.evaluate("window.stayed = true")


@needs_chromium
@pytest.mark.parametrize(
    ("path", "row"), [("/events", "#events tr"), ("/datasources/ticking/logs", "#lines tr")], ids=["events", "logs"]
)
def test_what_is_new_is_on_the_page_without_a_reload_also_after_a_restart(
    context: BrowserContext, tmp_path: Path, path: str, row: str
) -> None:
    with running_node(tmp_path / "node") as node:
        node.apply({"ticking": TICKING})
        page, complaints = opened(context, node)
        watch(page, node.url + path)
        node.call("POST", "/api/datasources/ticking/stop")
        stopped = page.locator(row).filter(has_text="stop" if "logs" in path else "ticking")
        expect(stopped.first).to_be_visible()
        assert page.evaluate("window.stayed")
        node.end()
        expect(page.locator("#link")).to_have_text("reconnecting")
        again = NodeProcess.start(tmp_path / "node", port=int(node.url.rpartition(":")[2]))
        try:
            expect(page.locator("#link")).to_have_text("live")
            before = page.locator(row).count()
            again.call("POST", "/api/datasources/ticking/start")
            expect(page.locator(row).nth(before)).to_be_visible()
            assert page.evaluate("window.stayed")
            ids = page.evaluate("[...document.querySelectorAll('[data-id]')].map((one) => one.dataset.id)")
            assert len(ids) == len(set(ids))
            assert complaints == []
        finally:
            again.end()
