"""The console's pages of groups, in a real browser against a real node."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from playwright.sync_api import Browser, BrowserContext, expect
from websockets.sync.client import connect

from headgate.core.groups.explain import STATUSES
from headgate.testing.processes import NodeProcess
from headgate.web.console.groups import MARKS
from headgate.web.origin import HEADER
from tests.waiting import LONG_S
from tests.web.browser import WAIT_MS, needs_chromium, opened
from tests.web.members import joined

TICKING = {"source": {"type": "generator", "rate": 20}, "sink": {"type": "blackhole"}}
HOSTILE = "<script>window.pwned = 1</script><img src=x onerror='window.pwned = 1'>"


@needs_chromium
def test_groups_come_and_go_and_lead_to_their_page(node: NodeProcess, context: BrowserContext) -> None:
    """The stream that the node runs, and a program's group."""
    node.apply({"ticking": TICKING})
    page, complaints = opened(context, node, "/")
    page.get_by_role("link", name="Groups").click()
    row = page.locator("tr[data-stream='ticking:0']")
    expect(row.locator("td").first).to_have_text("active")
    with joined(node, "jobs/7", "a b", "first"):
        row = page.locator("tr[data-stream='jobs/7']")
        expect(row).to_contain_text("first")
        row.get_by_role("link").click()
        expect(page.locator("#status")).to_have_text("active")
        expect(page.locator("#lines")).to_contain_text("is active under epoch")
        expect(page.get_by_role("table", name="Consumers")).to_contain_text("connected")
        expect(page.get_by_role("table", name="Last transitions")).to_contain_text("register")
    expect(page.locator("h1")).to_have_text("There is no such group")
    page.goto(f"{node.url}/groups/one?stream=ticking:0&name=workers")
    expect(page.locator("#lines")).to_contain_text("has it under epoch")
    assert complaints == []


@needs_chromium
def test_a_consumer_that_is_gone_is_dropped_once_somebody_says_yes(node: NodeProcess, context: BrowserContext) -> None:
    """It left without a word, so it may still believe that it has its turn."""
    with connect(node.url.replace("http", "ws") + "/groups", compression=None) as socket:
        socket.send(msgspec.msgpack.encode(["join", 1, node.token, "left/8", "a b", None, "gone", None, 60.0]))
        epoch = 0
        while not epoch:
            kind, *rest = msgspec.msgpack.decode(socket.recv(timeout=LONG_S))
            if kind == "active":
                consumer, epoch = rest[0], rest[2]
        socket.send(msgspec.msgpack.encode(["confirm", consumer, epoch, "active"]))
    page, complaints = opened(context, node, "/groups/one?stream=left%2F8&name=a%20b")
    expect(page.get_by_role("table", name="Consumers")).to_contain_text("disconnected")
    page.get_by_role("button", name="Evaluate").click()
    page.get_by_role("dialog").get_by_role("button", name="Evaluate").click()
    expect(page.get_by_role("dialog")).to_contain_text("may still believe that they are active: gone")
    expect(page.get_by_role("dialog")).to_contain_text("headgate groups evaluate left/8 'a b' --yes")
    page.get_by_role("dialog").get_by_role("button", name="Cancel").click()
    assert node.call("GET", "/api/groups/left%2F8/a%20b")["consumers"] == 1
    page.get_by_role("button", name="Evaluate").click()
    page.get_by_role("dialog").get_by_role("button", name="Evaluate").click()
    expect(page.get_by_role("dialog")).to_contain_text("may still believe")
    page.get_by_role("dialog").get_by_role("button", name="Evaluate").click()
    expect(page.locator("h1")).to_have_text("There is no such group")
    viewer = node.call("POST", "/api/tokens", {"name": "viewer of groups", "role": "viewer"})["token"]
    with joined(node, "seen/1", "g", "one"), httpx.Client(base_url=node.url, headers={"Origin": node.url}) as client:
        client.post("/login", data={"token": viewer})
        assert "Evaluate" not in client.get("/groups/one?stream=seen%2F1&name=g").text
        path = "/api/groups/seen%2F1/g/evaluate"
        assert client.post(path, headers={HEADER: "1"}).status_code == 403
    assert complaints == []


@needs_chromium
def test_nothing_that_strangers_wrote_is_run(node: NodeProcess, context: BrowserContext) -> None:
    """Names and labels are any text."""
    with joined(node, HOSTILE, HOSTILE, HOSTILE):
        page, complaints = opened(context, node, "/groups")
        expect(page.locator("main")).to_contain_text(HOSTILE)
        page.locator("main").get_by_role("link", name="pwned").click()
        expect(page.locator("#lines")).to_contain_text(HOSTILE)
        expect(page.locator("#link")).to_have_text("live")
        assert page.evaluate("window.pwned") is None
        assert page.locator("main script, main img").count() == 0
        assert complaints == []


@needs_chromium
@pytest.mark.parametrize(("width", "scheme"), [(1280, "dark"), (800, "light"), (375, "light")])
def test_nothing_runs_over_the_edge(
    node: NodeProcess, browser: Browser, tmp_path: Path, width: int, scheme: Any
) -> None:
    """Screenshots are left beside, to be looked at."""
    context = browser.new_context(viewport={"width": width, "height": 812}, color_scheme=scheme)
    context.set_default_timeout(WAIT_MS)
    with joined(node, "x" * 150, "y" * 150, "z" * 200):
        for path in ("/groups", f"/groups/one?stream={'x' * 150}&name={'y' * 150}"):
            page, _ = opened(context, node, path)
            page.screenshot(path=tmp_path / f"{width}-{len(path)}.png", full_page=True)
            assert page.evaluate("document.scrollingElement.scrollWidth <= innerWidth")
    context.close()


def test_answers_without_a_browser(node: NodeProcess) -> None:
    with httpx.Client(base_url=node.url) as client:
        for path in ("/groups", "/groups/one?stream=a&name=b"):
            assert client.get(path).status_code == 401
            elsewhere = client.get(path, headers={"Sec-Fetch-Site": "cross-site"})
            assert f"url={path.replace('&', '&amp;')}" in elsewhere.text
        client.post("/login", data={"token": node.token}, headers={"Origin": node.url})
        assert client.get("/groups").status_code == 200
        assert client.get("/groups/one?stream=a&name=b").status_code == 404
        assert client.get("/groups/one").status_code == 404
        assert client.get("/groups/one?stream=%00&name=workers").status_code == 404


def test_every_status_has_a_mark() -> None:
    assert set(MARKS) == set(STATUSES)
