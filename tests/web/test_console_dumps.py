"""The console's pages of dumps, in a real browser against a real node that runs them."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

import asyncpg
import httpx
import pytest
from playwright.sync_api import Browser, BrowserContext, expect

from headgate.core.chunks.outcome import Status
from headgate.runtime.dumps.control import parse_chunks
from headgate.store.embedded import EmbeddedServer
from headgate.testing.processes import NodeProcess
from headgate.web.console.dumps import MARKS, ranges
from headgate.web.origin import HEADER
from tests.waiting import wait_until
from tests.web.browser import WAIT_MS, needs_chromium, opened, say

T = TypeVar("T")

ROWS = 3000
HOSTILE = "<img src=x onerror='window.pwned = 1'>"
SCHEMA = f"""
CREATE TABLE orders (id integer PRIMARY KEY, name text);
INSERT INTO orders SELECT n, 'name ' || n FROM generate_series(1, {ROWS}) n;
CREATE TABLE tags (id integer PRIMARY KEY, tag text);
INSERT INTO tags SELECT n, 'tag' FROM generate_series(1, 400) n
"""
TARGET = "CREATE TABLE bad (id integer, tag text, CONSTRAINT not_this CHECK (id <> 77))"


async def _execute(url: str, *statements: str) -> None:
    connection = await asyncpg.connect(url)
    for statement in statements:
        await connection.execute(statement)
    await connection.close()


@pytest.fixture(scope="module")
def places(server: EmbeddedServer) -> Iterator[dict[str, str]]:
    """A source and a target. They are not on the node's own server, whose files no document reaches."""
    names = {side: f"pages_{side}_{os.getpid()}" for side in ("source", "target")}
    urls = {side: server.url.replace("/headgate?", f"/{name}?") for side, name in names.items()}
    asyncio.run(_execute(server.url, *(f"CREATE DATABASE {name}" for name in names.values())))
    asyncio.run(_execute(urls["source"], SCHEMA))
    asyncio.run(_execute(urls["target"], TARGET))
    yield urls
    asyncio.run(_execute(server.url, *(f"DROP DATABASE {name} WITH (FORCE)" for name in names.values())))


def _begin(node: NodeProcess, places: dict[str, str], table: str, **more: Any) -> dict[str, Any]:
    made: dict[str, Any] = node.call("POST", "/api/dumps", {**places, "tables": [table], **more})
    return made


async def _fetch(url: str, query: str) -> int:
    connection = await asyncpg.connect(url)
    try:
        return int(await connection.fetchval(query))
    finally:
        await connection.close()


def _count(url: str, table: str) -> int:
    return _apart(_fetch(url, f"SELECT count(*) FROM {table}"))


def _apart(work: Coroutine[Any, Any, T]) -> T:
    """While a browser is open, this thread has a loop already."""
    with ThreadPoolExecutor(1) as threads:
        return threads.submit(asyncio.run, work).result()


@needs_chromium
def test_a_dump_is_watched_paused_slowed_resumed_and_verified(
    node: NodeProcess, places: dict[str, str], context: BrowserContext, tmp_path: Path
) -> None:
    made = _begin(node, places, "orders=watched", rate="100", chunk_rows=50)
    page, complaints = opened(context, node, "/")
    page.get_by_role("link", name="Dumps").click()
    row = page.locator(f"tr[data-dump='{made['id']}']")
    expect(row).to_contain_text("running")
    row.get_by_role("link").click()
    expect(page.locator(".map i[data-state='done']").first).to_be_visible()
    page.get_by_role("button", name="Pause").click()
    expect(page.locator("#status")).to_have_text("paused")
    page.get_by_label("Rate", exact=True).fill("fast")
    page.get_by_role("button", name="Set").click()
    expect(page.locator("#outcome [role=alert]")).to_contain_text("is not a rate")
    for width in (390, 1280):
        page.set_viewport_size({"width": width, "height": 800})
        page.screenshot(path=tmp_path / f"paused-{width}.png", full_page=True)
        assert page.evaluate("document.scrollingElement.scrollWidth <= innerWidth")
    page.get_by_label("Rate", exact=True).fill("1000000")
    page.get_by_role("button", name="Set").click()
    expect(page.locator("#facts")).to_contain_text("1000000 a second at most")
    expect(page.locator("#outcome [role=alert]")).to_have_text("")
    page.get_by_role("button", name="Resume").click()
    expect(page.locator("#status")).to_have_text("completed")
    expect(page.locator("#percent")).to_have_text("100 %")
    assert page.locator(".map i").count() == ROWS // 50
    page.get_by_role("button", name="Verify", exact=True).click()
    expect(page.get_by_label("Verification")).to_contain_text("Equal: 1 table, 60 chunks, 3,000 rows compared")
    _apart(_execute(places["target"], "DELETE FROM watched WHERE id = 7"))
    page.get_by_role("button", name="Verify", exact=True).click()
    expect(page.get_by_label("Verification")).to_contain_text("chunk 1: 50 rows in the source, 49 in the target")
    page.get_by_role("button", name="Verify and repair").click()
    say(page, "Verify and repair")
    expect(page.get_by_label("Verification")).to_contain_text("repaired")
    assert _count(places["target"], "watched") == ROWS
    assert complaints == []


@needs_chromium
def test_a_dump_is_given_up_only_if_that_is_meant(
    node: NodeProcess, places: dict[str, str], context: BrowserContext
) -> None:
    made = _begin(node, places, "orders=given_up", rate="200", chunk_rows=50, mode="replace")
    page, _ = opened(context, node, f"/dumps/{made['short']}")
    page.locator("#actions").get_by_role("button", name="Cancel").click()
    page.keyboard.press("Escape")
    assert node.call("GET", f"/api/dumps/{made['id']}")["status"] != "cancelled"
    page.locator("#actions").get_by_role("button", name="Cancel").click()
    page.get_by_role("dialog").locator("button[value=yes]").click()
    expect(page.locator("#status")).to_have_text("cancelled")
    page.get_by_role("button", name="Delete").click()
    say(page, "Delete")
    expect(page).to_have_url(f"{node.url}/dumps")
    expect(page.locator(f"tr[data-dump='{made['id']}']")).to_have_count(0)


@pytest.fixture(scope="module")
def broken(node: NodeProcess, places: dict[str, str]) -> dict[str, Any]:
    """A dump of which one chunk of one table could not be written."""
    tables = ["orders=copied", "tags=bad", f'tags="{HOSTILE}"']
    made = node.call("POST", "/api/dumps", {**places, "tables": tables, "chunk_rows": 20, "workers": 4})
    wait_until(lambda: node.call("GET", f"/api/dumps/{made['id']}")["status"] == "incomplete")
    return dict(node.call("GET", f"/api/dumps/{made['id']}"))


@needs_chromium
@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (1280, "dark"), (390, "light")])
def test_what_went_wrong_is_first_and_nothing_runs_over_the_edge(
    node: NodeProcess, broken: dict[str, Any], browser: Browser, tmp_path: Path, width: int, scheme: Any
) -> None:
    """Screenshots are left beside, to be looked at."""
    context = browser.new_context(viewport={"width": width, "height": 812}, color_scheme=scheme)
    context.set_default_timeout(WAIT_MS)
    page, complaints = opened(context, node, f"/dumps/{broken['id']}")
    first = page.locator(".copied").first
    expect(first).to_have_attribute("data-state", "failed")
    expect(first).to_contain_text("not_this")
    assert first.locator(".map i[data-state='failed']").count() == 1
    assert first.locator(".map i").count() == 20
    expect(page.locator("main")).to_contain_text(HOSTILE)
    assert page.evaluate("window.pwned") is None
    for path, name in ((f"/dumps/{broken['id']}", "one"), ("/dumps", "all")):
        page.goto(f"{node.url}{path}")
        expect(page.locator("#link")).to_have_text("live")
        page.screenshot(path=tmp_path / f"{name}-{width}-{scheme}.png", full_page=True)
        assert page.evaluate("document.scrollingElement.scrollWidth <= innerWidth")
    assert complaints == []
    context.close()


@needs_chromium
def test_whoever_may_only_look_has_no_buttons(
    node: NodeProcess, places: dict[str, str], context: BrowserContext
) -> None:
    made = _begin(node, places, "tags=looked_at")
    token = node.call("POST", "/api/tokens", {"name": "one viewer", "role": "viewer"})["token"]
    page, _ = opened(context, node, f"/dumps/{made['id']}", token)
    expect(page.locator("#status")).to_have_text("completed")
    expect(page.locator("#actions")).to_have_count(0)


@needs_chromium
def test_a_dump_is_begun_from_the_form_and_its_failed_chunk_is_tried_again(
    node: NodeProcess, places: dict[str, str], context: BrowserContext
) -> None:
    """By names of secrets: no password is on the page. What the target refuses is put right, and only that is done
    again."""
    for side, url in places.items():
        node.call("PUT", f"/api/secrets/{side}-of-form", {"value": url})
    _apart(_execute(places["target"], "CREATE TABLE formed (id integer, tag text, CHECK (id <> 200))"))
    page, complaints = opened(context, node, "/dumps")
    page.get_by_role("link", name="New dump").click()
    page.get_by_label("Source", exact=True).fill("${secret:source-of-form}")
    page.get_by_label("Target", exact=True).fill("${secret:target-of-form}")
    page.get_by_label("Tables", exact=True).fill("tags=formed\norders=ordered\n")
    page.get_by_label("Rows of a chunk", exact=True).fill("50")
    expect(page.locator("#as")).to_contain_text("headgate dump '${secret:source-of-form}' '${secret:target-of-form}'")
    expect(page.locator("#as")).to_contain_text("--table tags=formed --table orders=ordered --chunk-rows 50")
    page.get_by_role("button", name="Begin").click()
    expect(page.locator("#status")).to_have_text("incomplete")
    assert _count(places["target"], "formed") == 350
    (failed,) = page.get_by_role("button", name="Retry 1 chunk").all()
    _apart(_execute(places["target"], "ALTER TABLE formed DROP CONSTRAINT formed_id_check"))
    failed.click()
    expect(page.locator("#status")).to_have_text("completed")
    assert (_count(places["target"], "formed"), _count(places["target"], "ordered")) == (400, ROWS)
    page.goto(f"{node.url}/dumps/new")
    page.get_by_label("Source", exact=True).fill("${secret:source-of-form}")
    page.get_by_label("Target", exact=True).fill("${secret:target-of-form}")
    page.get_by_label("Tables", exact=True).fill("tags=formed")
    page.get_by_role("button", name="Begin").click()
    expect(page.get_by_role("dialog")).to_contain_text("formed has rows already")
    say(page, "Cancel")
    assert complaints == []


def test_answers_without_a_browser(node: NodeProcess, places: dict[str, str]) -> None:
    """A cookie alone changes nothing: another site's page could send it. What an operator may reach is judged."""
    id = _begin(node, places, "tags=asked_for", rate="1", chunk_rows=10)["id"]
    viewer = node.call("POST", "/api/tokens", {"name": "another viewer", "role": "viewer"})["token"]
    operator = node.call("POST", "/api/tokens", {"name": "one operator", "role": "operator"})["token"]
    acts = {HEADER: "1"}
    with httpx.Client(base_url=node.url) as client:
        for path in ("/dumps", "/dumps/new", f"/dumps/{id}"):
            assert client.get(path).status_code == 401
        assert client.post(f"/api/dumps/{id}/pause", headers=acts).status_code == 401
        client.headers["Origin"] = node.url
        client.post("/login", data={"token": viewer})
        assert client.post(f"/api/dumps/{id}/pause", headers=acts).status_code == 403
        assert client.get("/dumps/new").status_code == 403
        client.post("/login", data={"token": operator})
        assert client.get("/dumps/new").status_code == 200
        refused = client.post("/api/dumps", json={"source": "/etc/passwd.csv", "target": "b.db"}, headers=acts)
        assert refused.status_code in (403, 409, 422)
        client.post("/login", data={"token": node.token})
        assert client.get("/dumps/ffffffff").status_code == 404
        assert client.post(f"/api/dumps/{id}/pause").status_code == 401
        assert client.post(f"/api/dumps/{id}/cancel", headers=acts).status_code == 200


def test_every_status_has_a_mark() -> None:
    assert set(MARKS) == set(Status)


def test_numbers_of_chunks_are_written_as_the_api_reads_them() -> None:
    assert ranges([9, 3, 7, 8]) == "3,7-9"
    assert parse_chunks(ranges([1, 2, 5])) == [1, 2, 5]
