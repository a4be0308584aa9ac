"""The console's pages of streams, nodes, events and settings, in a real browser against two real nodes: each action is
performed on the page, and looked for through the API."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.sync_api import Browser, BrowserContext, Locator, Page, expect

from headgate.testing.processes import NodeProcess
from headgate.web.console.nodes import MARKS
from headgate.web.origin import HEADER
from tests.waiting import wait_until
from tests.web.browser import needs_chromium, opened, say

WAIT_MS = 60_000
HOSTILE = "<img src=x onerror='window.pwned = 1'>"
TICKING = {"source": {"type": "generator", "rate": 20}, "sink": {"type": "blackhole"}}
HOOK = {"source": {"type": "webhook"}, "sink": {"type": "blackhole"}}
PAYLOADS = 5
LONG_LEASE_S = "60"  # Of the second node: it is silent for some time before it is ended.

PAGES = (
    "/streams",
    "/streams/ticking:0",
    "/streams/placed:0",
    "/nodes",
    "/events",
    "/groups",
    "/dumps",
    "/dumps/new",
    "/letters",
    "/settings/secrets",
    "/settings/tokens",
    "/settings/allowed",
    "/settings/connectors",
    "/settings/notifications",
    "/settings/installation",
)
# What only operators, or admins, may open.
CLOSED_TO_VIEWERS = (
    "/dumps/new",
    "/letters",
    "/settings/secrets",
    "/settings/tokens",
    "/settings/allowed",
    "/settings/notifications",
)


@dataclass(frozen=True)
class Pair:
    """Two nodes of one installation."""

    first: NodeProcess
    second: NodeProcess

    def call(self, method: str, path: str, body: Any = None) -> Any:
        return self.first.call(method, path, body)

    def row(self, name: str) -> dict[str, Any]:
        """The row of a node, by its name."""
        found: list[dict[str, Any]] = self.call("GET", "/api/nodes")["items"]
        return next(one for one in found if one["name"] == name)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    home = tmp_path_factory.mktemp("home")
    first = NodeProcess.start(home, flags=("--name", "node-a"))
    try:
        lease = {"HEADGATE_LEASE_S": LONG_LEASE_S}
        second = NodeProcess.start(home, flags=("--name", "node-b"), token=first.token, environment=lease)
        try:
            found = Pair(first, second)
            _fill(found)
            yield found
        finally:
            second.go_on()
            second.end()
    finally:
        first.end()


def _fill(pair: Pair) -> None:
    """Something to look at: a stream that runs, one that is paused after it has read, and hostile names."""
    pair.first.apply({"ticking": TICKING, "placed": HOOK, "other": {**HOOK, "enabled": False}})
    for number in range(PAYLOADS):
        pair.call("POST", "/hooks/placed", {"n": number})
    wait_until(lambda: pair.call("GET", "/api/streams/placed:0")["position"] == PAYLOADS, "all are read")
    pair.call("POST", "/api/datasources/placed/pause")
    wait_until(lambda: pair.call("GET", "/api/streams/placed:0")["owner"] is None, "it is at rest")
    pair.call("POST", "/api/tokens", {"name": HOSTILE, "role": "viewer"})


def _told(page: Page) -> Locator:
    return page.locator("#outcome")


# Streams.


@needs_chromium
def test_a_stream_is_found_and_moved_to_the_other_node_and_back_to_the_planner(
    pair: Pair, context: BrowserContext
) -> None:
    page, complaints = opened(context, pair.first, "/streams")
    page.get_by_label("Name", exact=True).fill("tick")
    page.get_by_role("button", name="Filter").click()
    expect(page.locator("tr[data-stream]")).to_have_count(1)
    page.get_by_role("link", name="ticking:0").click()
    expect(page.locator("h1")).to_have_text("ticking:0")
    before = pair.call("GET", "/api/streams/ticking:0")["node"]
    after = "node-b" if before == "node-a" else "node-a"
    page.get_by_label("Move to").select_option(label=after)
    page.get_by_role("button", name="Move", exact=True).click()
    expect(page.get_by_role("img", name=f"{after}: held it")).to_be_visible()
    expect(page.locator("#facts")).to_contain_text(after)
    found = pair.call("GET", "/api/streams/ticking:0")
    assert (found["node"], found["wish"]["by"]) == (after, "operator")
    expect(page.locator("main")).to_contain_text("pinned here")
    expect(page.get_by_role("img", name=re.compile(": held it"))).to_have_count(2)
    page.get_by_role("button", name="Leave it to the planner").click()
    expect(page.get_by_role("button", name="Leave it to the planner")).to_have_count(0)
    wish = pair.call("GET", "/api/streams/ticking:0")["wish"]
    assert wish is None or wish["by"] == "planner"
    page.goto(f"{pair.first.url}/streams?kind=pinned")
    expect(page.locator("h2")).to_have_text("No streams")
    assert complaints == []


@needs_chromium
def test_a_position_is_edited_after_its_consequences_were_read_and_restored_from_the_history(
    pair: Pair, context: BrowserContext
) -> None:
    def position() -> Any:
        return pair.call("GET", "/api/streams/placed:0")["position"]

    page, complaints = opened(context, pair.first, "/streams/placed:0")
    expect(page.locator("#status")).to_have_text("paused")
    field = page.get_by_label("Another position")
    field.fill("{not JSON")
    page.get_by_role("button", name="Edit position").click()
    expect(_told(page)).to_contain_text("not JSON")
    field.fill("2")
    page.get_by_role("button", name="Edit position").click()
    expect(page.get_by_role("dialog")).to_contain_text("3 payloads that the inbox still has are read again")
    expect(page.get_by_role("dialog")).to_contain_text("headgate streams set-position placed:0")
    say(page, "Cancel")
    assert position() == PAYLOADS
    page.get_by_role("button", name="Edit position").click()
    say(page, "Edit position")
    expect(page.locator("#position")).to_have_text("2")
    assert position() == 2
    expect(page.get_by_role("table", name="History")).to_contain_text("edited")
    page.get_by_role("row", name="released").get_by_role("button", name="Restore").click()
    expect(page.get_by_role("dialog")).to_contain_text("3 payloads of the inbox are skipped")
    say(page, "Restore")
    expect(page.locator("#position")).to_have_text(str(PAYLOADS))
    page.get_by_role("button", name="Undo the last edit").click()
    say(page, "Undo the last edit")
    expect(page.locator("#position")).to_have_text("2")
    page.get_by_role("button", name="Start placed").click()
    expect(page.locator("#status")).to_have_text(re.compile("running|not proved yet"))
    wait_until(lambda: position() == PAYLOADS, "they are read again")
    page.get_by_role("button", name="Pause placed").click()
    say(page, "Pause placed")
    expect(page.locator("#status")).to_have_text("paused")
    assert complaints == []


# Nodes.


@needs_chromium
def test_a_node_is_drained_and_undrained_with_the_keyboard_alone(pair: Pair, context: BrowserContext) -> None:
    page, complaints = opened(context, pair.first, "/streams")
    page.keyboard.press("g")
    page.keyboard.press("n")
    expect(page.locator("h1")).to_have_text("2 nodes up")
    for verb, is_draining in (("Drain", True), ("Undrain", False)):
        button = page.get_by_role("button", name=f"{verb} node-b")
        expect(button).to_be_visible()
        page.keyboard.press("Tab")
        for _ in range(60):
            if button.evaluate("one => one === document.activeElement"):
                break
            page.keyboard.press("Tab")
        page.keyboard.press("Enter")
        if is_draining:
            expect(page.get_by_role("dialog")).to_contain_text("goes to other nodes")
            page.keyboard.press("Enter")
        expect(page.get_by_role("row", name="node-b")).to_contain_text("draining" if is_draining else "up")
        wait_until(lambda wanted=is_draining: pair.row("node-b")["draining"] is wanted, verb)
    assert complaints == []


# Events.


@needs_chromium
def test_what_happens_is_on_the_page_at_once_and_is_only_text(pair: Pair, context: BrowserContext) -> None:
    page, complaints = opened(context, pair.first, "/events")
    expect(page.locator("#events")).to_contain_text(HOSTILE)
    page.evaluate("window.stayed = true")
    pair.call("POST", "/api/tokens", {"name": f"live {HOSTILE}", "role": "viewer"})
    expect(page.locator("#events tr").first).to_contain_text("token_created")
    expect(page.locator("#events tr").first).to_contain_text(f"live {HOSTILE}")
    assert page.evaluate("[window.stayed, window.pwned]") == [True, None]
    assert page.locator("main img, main script").count() == 0
    page.get_by_label("Datasource").fill("placed")
    page.get_by_label("Type").fill("paused")
    page.get_by_role("button", name="Filter").click()
    expect(page.locator("#link")).to_have_text("live")
    assert set(page.locator("#events th").all_inner_texts()) == {"paused"}
    pair.call("POST", "/api/datasources/ticking/reload")  # It does not fit, so the next one that does is the first.
    pair.call("POST", "/api/datasources/placed/start")
    pair.call("POST", "/api/datasources/placed/pause")
    expect(page.locator("#events tr.fresh")).to_have_count(1)
    page.goto(f"{pair.first.url}/events?until=2020-01-01T00:00")
    expect(page.locator("#none")).to_be_visible()
    assert complaints == []


def test_older_events_are_on_the_next_page(pair: Pair) -> None:
    with _signed_in(pair, pair.first.token) as client:
        for _ in range(60):
            pair.call("POST", "/api/datasources/other/reload")
        seen: list[int] = []
        path = "/events?datasource=other"
        while path:
            text = client.get(path).text
            seen += [int(one) for one in re.findall(r'data-id="([1-9]\d*)"', text)]
            found = re.search(r'href="([^"]+)" rel="next"', text)
            path = found[1].replace("&amp;", "&") if found else ""
        assert seen == sorted(set(seen), reverse=True)
        total = pair.call("GET", "/api/events?follow=false&datasource=other&limit=1000")["items"]
        assert len(seen) == len(total) >= 60
        for query in ("span=3y", "since=yesterday", "before=-1", "type=%00"):
            assert client.get(f"/events?{query}").status_code == 404


# Settings.


@needs_chromium
def test_a_secret_is_set_never_shown_and_deleted_after_its_users_were_read(pair: Pair, context: BrowserContext) -> None:
    value = "hush-hush-hush"
    signature = {"scheme": "github", "secret": {"$secret": "hook-key"}}
    page, complaints = opened(context, pair.first, "/settings")
    expect(page.locator("nav.tabs [aria-current]")).to_have_text("Secrets")
    page.get_by_label("Name", exact=True).fill("hook-key")
    page.get_by_label("Value", exact=True).fill(value)
    page.get_by_role("button", name="Set", exact=True).click()
    row = page.locator("tr[data-secret='hook-key']")
    expect(row).to_contain_text("nobody")
    expect(page.get_by_label("Value", exact=True)).to_have_value("")
    pair.first.apply({"signed": {**HOOK, "source": {"type": "webhook", "signature": signature}, "enabled": False}})
    expect(row.get_by_role("link", name="signed")).to_be_visible()
    assert value not in page.content()
    row.get_by_role("button", name="Delete hook-key").click()
    say(page, "Delete")
    expect(page.get_by_role("dialog")).to_contain_text("signed version 1 is published")
    say(page, "Delete")
    expect(row).to_contain_text("is not set")
    assert pair.call("GET", "/api/secrets")["items"] == []
    assert complaints == []


@needs_chromium
def test_a_token_is_made_shown_once_and_revoked(pair: Pair, context: BrowserContext) -> None:
    page, complaints = opened(context, pair.first, "/settings/tokens")
    page.get_by_label("Name", exact=True).fill("of the console")
    page.get_by_label("Role", exact=True).select_option("operator")
    page.get_by_label("Ends", exact=True).select_option(label="in 30 days")
    page.get_by_label("Datasources", exact=True).fill("ticking\nplaced-*\n")
    page.get_by_role("button", name="Create").click()
    expect(page.locator("#made-token")).to_have_text(re.compile("^hg_"))
    text = page.locator("#made-token").inner_text()
    row = page.get_by_role("row", name="of the console")
    expect(row).to_contain_text("ticking, placed-*")
    expect(row).to_contain_text("in 30 d")
    headers = {"Authorization": f"Bearer {text}"}
    assert pair.first.request("GET", "/api/datasources/ticking", headers=headers).status_code == 200
    assert pair.first.request("GET", "/api/datasources/other", headers=headers).status_code == 403
    page.reload()
    expect(page.locator("#made")).to_be_hidden()
    assert text not in page.content()
    page.get_by_role("button", name="Revoke of the console").click()
    say(page, "Revoke")
    expect(row).to_have_count(0)
    wait_until(
        lambda: pair.first.request("GET", "/api/datasources/ticking", headers=headers).status_code == 401,
        "it has ended",
    )
    page.get_by_role("button", name="Revoke first").click()
    say(page, "Revoke")
    expect(page.get_by_role("dialog")).to_contain_text("last admin")
    say(page, "Cancel")
    assert complaints == []


@needs_chromium
def test_what_may_be_reached_is_put_on_the_list_and_taken_off_it(pair: Pair, context: BrowserContext) -> None:
    def values() -> list[str]:
        return [one["value"] for one in pair.call("GET", "/api/allowed")["items"]]

    page, complaints = opened(context, pair.first, "/settings/allowed")
    page.get_by_label("Kind", exact=True).select_option("address")
    page.get_by_label("Value", exact=True).fill("warehouse.internal:5432")
    page.get_by_role("button", name="Allow").click()
    row = page.get_by_role("row", name="warehouse.internal:5432")
    expect(row).to_contain_text("address")
    assert "warehouse.internal:5432" in values()
    page.get_by_label("Value", exact=True).fill("no address: 1:2:x")
    page.get_by_role("button", name="Allow").click()
    expect(page.locator("#outcome [role=alert]")).not_to_be_empty()
    row.get_by_role("button", name="Remove").click()
    say(page, "Remove")
    expect(row).to_have_count(0)
    assert "warehouse.internal:5432" not in values()
    page.get_by_role("link", name="Connectors").click()
    expect(page.get_by_role("row", name="postgres")).to_contain_text("exactly once")
    page.get_by_label("Package").fill("none")
    page.get_by_role("button", name="Install").click()
    expect(page.locator("#outcome [role=alert]")).to_contain_text("must begin with its kind")
    page.get_by_role("link", name="Installation").click()
    expect(page.locator("main")).to_contain_text(pair.call("GET", "/api/installation")["installation"])
    expect(page.locator("main")).to_contain_text("never broken")
    assert complaints == []


# Who may what, and how it looks.


@contextmanager
def _signed_in(pair: Pair, token: str) -> Iterator[httpx.Client]:
    """A browser's session, without a browser."""
    with httpx.Client(base_url=pair.first.url, headers={"Origin": pair.first.url}, timeout=WAIT_MS / 1000) as client:
        assert client.post("/login", data={"token": token}).status_code == 303
        yield client


@needs_chromium
def test_a_viewer_has_no_buttons_and_is_refused_what_they_would_do(pair: Pair, context: BrowserContext) -> None:
    token = pair.call("POST", "/api/tokens", {"name": "who looks", "role": "viewer"})["token"]
    page, _ = opened(context, pair.first, "/streams", token)
    expect(page.locator("nav.sections")).not_to_contain_text("Dead letters")
    for path in (one for one in PAGES if one not in CLOSED_TO_VIEWERS):
        page.goto(f"{pair.first.url}{path}")
        expect(page.locator("h1")).to_have_count(1)
        assert page.locator("main [data-act], main form:not([method=get])").count() == 0, path
        assert page.locator("a[href='/dumps/new']").count() == 0
    with _signed_in(pair, token) as client:
        acts = {HEADER: "1"}
        for path in CLOSED_TO_VIEWERS:
            assert client.get(path).status_code == 403, path
        stream = pair.call("GET", "/api/streams/ticking:0")["id"]
        node = pair.row("node-b")["id"]
        for method, path, body in (
            ("POST", f"/api/streams/{stream}/move", {"node": "node-b"}),
            ("PUT", f"/api/streams/{stream}/position", {"position": None, "yes": True}),
            ("POST", f"/api/nodes/{node}/drain", None),
            ("DELETE", f"/api/nodes/{node}?yes=true", None),
            ("PUT", "/api/secrets/mine", {"value": "x"}),
            ("POST", "/api/tokens", {"name": "mine", "role": "admin"}),
            ("POST", "/api/allowed", {"kind": "address", "value": "mine.example"}),
            ("POST", "/api/dumps", {"source": "a.db", "target": "b.db"}),
        ):
            assert client.request(method, path, json=body, headers=acts).status_code == 403, path
            assert client.request(method, path, json=body).status_code == 401, path  # Not by a script of ours.


@needs_chromium
@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (1280, "dark"), (375, "light")])
def test_nothing_runs_over_the_edge(pair: Pair, browser: Browser, tmp_path: Path, width: int, scheme: Any) -> None:
    """Screenshots are left beside, to be looked at."""
    context = browser.new_context(viewport={"width": width, "height": 812}, color_scheme=scheme)
    page, complaints = opened(context, pair.first, "/streams")
    for path in PAGES:
        page.goto(f"{pair.first.url}{path}")
        expect(page.locator("#link")).to_have_text("as of page load" if path == "/dumps/new" else "live")
        page.screenshot(path=tmp_path / f"{path.strip('/').replace('/', '-')}-{width}-{scheme}.png", full_page=True)
        assert page.evaluate("document.scrollingElement.scrollWidth <= innerWidth"), path
        assert page.locator("main img, main script").count() == 0
        unnamed = page.locator("main button:not([aria-label])").evaluate_all(
            "all => all.filter(one => !one.textContent.trim()).length"
        )
        assert unnamed == 0, path
    assert page.evaluate("window.pwned") is None
    assert complaints == []
    context.close()


def test_answers_without_a_browser(pair: Pair) -> None:
    with httpx.Client(base_url=pair.first.url) as client:
        for path in PAGES:
            assert client.get(path).status_code == 401, path
    with _signed_in(pair, pair.first.token) as client:
        for path in ("/streams/none:0", "/streams/x", "/streams?kind=odd", "/streams?after=x", "/streams?q=%00"):
            assert client.get(path).status_code == 404, path
        assert client.get("/streams?on=nobody&datasource=none").status_code == 200
    bound = pair.call("POST", "/api/tokens", {"name": "bound", "role": "viewer", "datasources": ["other"]})["token"]
    with _signed_in(pair, bound) as client:
        assert "ticking" not in client.get("/streams").text
        assert "ticking" not in client.get("/events").text
        assert "node_drained" not in client.get("/events").text
        for path in ("/streams/ticking:0", "/nodes", "/settings/installation"):
            assert client.get(path).status_code == 403, path


def test_every_status_has_a_mark() -> None:
    assert set(MARKS) == {"up", "draining", "silent", "ended"}


@needs_chromium
def test_a_node_that_is_silent_is_seen_and_forgotten(pair: Pair, context: BrowserContext) -> None:
    """The last one: the second node is gone after it."""
    page, complaints = opened(context, pair.first, "/nodes")
    row = page.get_by_role("row", name="node-b")
    expect(row).to_contain_text("up")
    pair.second.pause()
    expect(row).to_contain_text("silent")
    expect(page.locator("h1")).to_have_text("1 node up, 1 silent")
    row.get_by_role("button", name="Forget node-b").click()
    say(page, "Forget")
    expect(page.get_by_role("dialog")).to_contain_text("may act for")
    say(page, "Forget")
    expect(row).to_have_count(0)
    assert [one["name"] for one in pair.call("GET", "/api/nodes")["items"]] == ["node-a"]
    wait_until(lambda: pair.call("GET", "/api/streams/ticking:0")["node"] == "node-a", "its streams are elsewhere")
    assert complaints == []
