"""Pages that stay fresh: what they cost, however many look; who sees what; and that they are live in a browser."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
from litestar import Response
from playwright.sync_api import BrowserContext, expect

from headgate.errors import NotFound, StoreError
from headgate.testing.processes import NodeProcess
from headgate.web import sse
from headgate.web.console.live import MAIN, LivePages, View
from tests.waiting import until
from tests.web.browser import needs_chromium, opened, running_node
from tests.web_node import Databases, Web, execute, session_cookie

VIEW = View("http://node", "/streams?", "admin", None)
TICKING = {"source": {"type": "generator", "rate": 20}, "sink": {"type": "blackhole"}}
HOOK = {"source": {"type": "webhook"}, "mapping": {"set": {"id": "int(id)"}}, "sink": {"type": "blackhole"}}
STREAM = {"Accept": sse.MEDIA_TYPE}


class Page:
    """A page that a test draws."""

    def __init__(self) -> None:
        self.text, self.drawn, self.failure = "one", 0, None
        self.may_go = asyncio.Event()
        self.may_go.set()

    failure: Exception | None

    async def draw(self) -> Response[str]:
        """As a handler would."""
        self.drawn += 1
        text = self.text
        await self.may_go.wait()
        if self.failure is not None:
            raise self.failure
        return Response(f"<body>{MAIN[0]}{text}{MAIN[1]}<footer></footer></body>", status_code=200)


def said(event: bytes) -> Any:
    return json.loads(event.removeprefix(b"data: "))


async def changed(events: AsyncIterator[bytes]) -> Any:
    """The next event that is more than a sign of life."""
    while (event := await anext(events)) == sse.ALIVE:
        pass
    return said(event)


# What it costs.


async def test_all_who_look_share_what_is_drawn_and_get_what_changes() -> None:
    page, pages = Page(), LivePages(every_s=3600.0)  # It is drawn only because somebody asks.
    page.may_go.clear()
    streams = [pages.events(VIEW, page.draw) for _ in range(50)]
    first = [asyncio.ensure_future(anext(one)) for one in streams]
    await until(lambda: page.drawn == 1)
    await asyncio.sleep(0)  # All have asked by now.
    page.may_go.set()
    assert [said(one) for one in await asyncio.gather(*first)] == [{"status": 200, "main": "one"}] * 50
    assert page.drawn <= 2  # One for who was first, one for those who asked while it was drawn.
    page.text = "two"
    late = pages.events(VIEW, page.draw)
    assert said(await anext(late))["main"] == "two"
    assert {(await changed(one))["main"] for one in streams} == {"two"}
    for one in [*streams, late]:
        await one.aclose()  # type: ignore[attr-defined]


async def test_who_begins_to_look_gets_what_was_drawn_after_it_asked() -> None:
    page, pages = Page(), LivePages(every_s=3600.0)
    page.may_go.clear()
    early = pages.events(VIEW, page.draw)
    first = asyncio.ensure_future(anext(early))
    await until(lambda: page.drawn == 1)
    page.text = "after the act"
    late = pages.events(VIEW, page.draw)
    second = asyncio.ensure_future(anext(late))
    await asyncio.sleep(0)
    page.may_go.set()
    assert said(await second)["main"] == "after the act"
    assert (said(await first)["status"], page.drawn) == (200, 2)


async def test_a_page_that_nobody_looks_at_is_not_drawn() -> None:
    page, pages = Page(), LivePages(every_s=0.001)
    events = pages.events(VIEW, page.draw)
    await anext(events)
    await until(lambda: page.drawn > 3)
    await events.aclose()  # type: ignore[attr-defined]
    await until(lambda: not pages._drawings)
    drawn = page.drawn
    await asyncio.sleep(0.05)
    assert page.drawn == drawn


async def test_others_see_another_page_and_share_nothing() -> None:
    mine, yours, pages = Page(), Page(), LivePages(every_s=3600.0)
    yours.text = "yours"
    other = View("http://node", "/streams?", "viewer", None)
    found = [said(await anext(pages.events(*one))) for one in ((VIEW, mine.draw), (other, yours.draw))]
    assert [one["main"] for one in found] == ["one", "yours"]


async def test_a_page_that_cannot_be_drawn_ends_and_begins_anew() -> None:
    page, pages = Page(), LivePages(every_s=0.001)
    events = pages.events(VIEW, page.draw)
    await anext(events)
    page.failure = StoreError("the database does not answer")
    assert [one async for one in events if one != sse.ALIVE] == []
    with pytest.raises(StoreError):
        await anext(pages.events(VIEW, page.draw))
    page.failure = RuntimeError("a mistake")
    with pytest.raises(StoreError):
        await anext(pages.events(VIEW, page.draw))
    page.failure = NotFound("it is gone")
    with pytest.raises(NotFound):
        await anext(pages.events(VIEW, page.draw))
    page.failure = None
    assert said(await anext(pages.events(VIEW, page.draw)))["main"] == "one"


# Who sees what.


@contextmanager
def stream(web: Web, path: str, token: str = "") -> Iterator[Iterator[Any]]:
    """What a signed-in browser is sent of a page."""
    headers = {**STREAM, "Cookie": session_cookie(web, token)}
    with httpx.stream("GET", f"{web.node.url}{path}", headers=headers, timeout=60.0) as answer:
        assert answer.headers["content-type"].startswith(sse.MEDIA_TYPE), answer.read()
        yield (json.loads(line[5:]) for line in answer.iter_lines() if line.startswith("data:"))


def test_a_page_shows_to_each_what_it_may_see_and_ends_with_its_token(web: Web, name: str) -> None:
    web.publish(name)
    web.publish(f"{name}-hidden")
    bound = web.call("POST", "/api/tokens", {"name": f"of {name}", "role": "viewer", "datasources": [name]})
    with stream(web, "/streams") as all_of_it, stream(web, "/streams", bound["token"]) as part:
        assert f"{name}-hidden:0" in next(one["main"] for one in all_of_it if f"{name}-hidden:0" in one["main"])
        seen = next(one["main"] for one in part if f"{name}:0" in one["main"])
        assert f"{name}-hidden" not in seen
        web.call("DELETE", f"/api/tokens/{bound['id']}")
        assert all(f"{name}-hidden" not in one["main"] for one in part)  # To its end.


def test_what_is_not_there_or_not_allowed_is_no_stream(web: Web) -> None:
    viewer = web.token("viewer")
    for path, token, status in (("/streams/none:0", "", 200), ("/letters", viewer, 403), ("/nowhere", "", 404)):
        headers = {**STREAM, "Cookie": session_cookie(web, token)}
        with httpx.stream("GET", f"{web.node.url}{path}", headers=headers, timeout=60.0) as answer:
            assert answer.status_code == status, path
            if status == 200:
                lines = (line for line in answer.iter_lines() if line.startswith("data:"))
                assert json.loads(next(lines)[5:]) == {"status": 404}
    assert httpx.get(f"{web.node.url}/streams", headers=STREAM).status_code == 401


# In a browser.


@pytest.fixture(scope="module")
def places(databases: Databases) -> dict[str, str]:
    """A source with a row, and a target."""
    places = {side: databases.make() for side in ("source", "target")}
    rows = "CREATE TABLE copied (id integer PRIMARY KEY); INSERT INTO copied VALUES (1)"
    asyncio.run(execute(places["source"], rows))
    return places


@needs_chromium
def test_what_happens_is_on_every_page_without_a_reload(
    places: dict[str, str], node: NodeProcess, context: BrowserContext
) -> None:
    page, complaints = opened(context, node)

    def watch(path: str) -> None:
        page.goto(node.url + path)
        expect(page.locator("#link")).to_have_text("live")
        page.evaluate("window.stayed = true")

    watch("/streams")
    node.apply({"ticking": TICKING, "orders": HOOK})
    expect(page.get_by_role("row", name="ticking:0")).to_contain_text("running")
    expect(page.get_by_role("row", name="orders:0")).to_be_visible()
    node.call("POST", "/api/datasources/ticking/stop")
    expect(page.get_by_role("row", name="ticking:0")).to_contain_text("stopped")
    assert page.evaluate("window.stayed")

    watch("/letters")
    node.call("POST", "/hooks/orders", {"id": "seven"})
    expect(page.locator("tr[data-letter]")).to_have_count(1)
    assert page.evaluate("window.stayed")

    watch("/nodes")
    (id,) = (one["id"] for one in node.call("GET", "/api/nodes")["items"])
    node.call("POST", f"/api/nodes/{id}/drain")
    expect(page.locator("tbody")).to_contain_text("draining")
    node.call("POST", f"/api/nodes/{id}/undrain")
    expect(page.locator("tbody")).not_to_contain_text("draining")
    assert page.evaluate("window.stayed")

    watch("/events")
    node.call("POST", "/api/tokens", {"name": "seen at once", "role": "viewer"})
    expect(page.locator("#events tr").first).to_contain_text("seen at once")
    assert page.evaluate("window.stayed")

    watch("/dumps")
    node.call("POST", "/api/dumps", {**places, "tables": ["copied"]})
    expect(page.locator("tbody")).to_contain_text("completed")
    assert page.evaluate("window.stayed")
    assert complaints == []


@needs_chromium
def test_a_page_is_live_again_after_its_node_has_restarted(context: BrowserContext, tmp_path: Any) -> None:
    with running_node(tmp_path / "node") as node:
        node.apply({"ticking": TICKING})
        page, complaints = opened(context, node, "/streams")
        page.evaluate("window.stayed = true")
        node.end()
        expect(page.locator("#link")).to_have_text("reconnecting")
        port = int(node.url.rpartition(":")[2])
        again = NodeProcess.start(tmp_path / "node", port=port)
        try:
            expect(page.locator("#link")).to_have_text("live")
            again.apply({"later": TICKING})
            expect(page.get_by_role("row", name="later:0")).to_contain_text("running")
            assert page.evaluate("window.stayed")
            assert complaints == []
        finally:
            again.end()
