"""The console's first page, in a real browser against a real node."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from uuid import UUID

import httpx
import msgspec
import pytest
from playwright.sync_api import Browser, BrowserContext, Page, Route, expect

from headgate.core.access import Caller
from headgate.datasources.health import HEALTHS
from headgate.testing.processes import NodeProcess
from headgate.web.bodies.datasources import Summary
from headgate.web.console import frame, overview, words
from headgate.web.windows import PAGE, Window
from tests.waiting import wait_until
from tests.web.browser import WAIT_MS, needs_chromium, running_node, sign_in_link

TICKING = {"source": {"type": "generator", "rate": 20}, "sink": {"type": "blackhole"}}
BROKEN = {
    "source": {"type": "generator", "rate": 20},
    "sink": {"type": "postgres", "url": "postgresql://nobody@127.0.0.1:1/none", "table": "t"},
}
OFF = {"enabled": False, "source": {"type": "webhook"}, "sink": {"type": "stdout"}}
HOSTILE = "<script>window.pwned = 1</script><img src=x onerror='window.pwned = 1'>"


@pytest.fixture(scope="module")
def shared_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    with running_node(tmp_path_factory.mktemp("node")) as node:
        yield node


@pytest.fixture
def node(shared_node: NodeProcess) -> Iterator[NodeProcess]:
    """The same node for all, without datasources."""
    yield shared_node
    for one in shared_node.call("GET", "/api/datasources")["items"]:
        shared_node.call("DELETE", f"/api/datasources/{one['name']}?yes=true")


class Watch:
    """What a page complained of, and whom it asked."""

    def __init__(self, page: Page) -> None:
        self.complaints: list[str] = []
        self.hosts: set[str] = set()
        page.on("console", lambda said: self.complaints.append(said.text) if said.type == "error" else None)
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("request", lambda request: self.hosts.add(urlsplit(request.url).netloc))


def _open(context: BrowserContext, node: NodeProcess) -> tuple[Page, Watch]:
    page = context.new_page()
    watch = Watch(page)
    page.goto(sign_in_link(node))
    expect(page.locator("#link")).to_have_text("live")
    return page, watch


def _row(page: Page, name: str) -> Any:
    return page.locator(f"tbody[data-name='{name}']")


def _number(text: str) -> int:
    return int(re.sub(r"\D", "", text) or 0)


def _shows(page: Page, names: list[str]) -> None:
    """Wait until these rows are shown, in this order."""
    found = "names => [...document.querySelectorAll('#table > tbody')].map(one => one.dataset.name).join() === names"
    page.wait_for_function(found, arg=",".join(names), timeout=WAIT_MS)


# Signing in.


@needs_chromium
def test_a_wrong_token_is_told_so_and_the_right_one_opens_the_console(
    node: NodeProcess, context: BrowserContext
) -> None:
    """By the form."""
    page = context.new_page()
    assert page.goto(node.url).status == 401  # type: ignore[union-attr]
    page.get_by_label("Token").fill("hg_wrong")
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("alert")).to_have_text("This token is not valid.")
    assert context.cookies() == []

    page.get_by_label("Token").fill(node.token)
    page.get_by_role("button", name="Sign in").click()
    expect(page.locator("#link")).to_have_text("live")
    (cookie,) = context.cookies()
    assert (cookie["httpOnly"], cookie["sameSite"], cookie["path"], cookie["secure"]) == (True, "Strict", "/", False)

    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_label("Token")).to_be_visible()
    assert context.cookies() == []


@needs_chromium
def test_a_link_with_a_token_signs_in_and_leaves_no_token_in_the_address(
    node: NodeProcess, context: BrowserContext
) -> None:
    """The link that the node prints."""
    page, _ = _open(context, node)
    assert page.url == node.url + "/"


@needs_chromium
def test_who_follows_a_link_from_another_site_stays_signed_in(node: NodeProcess, context: BrowserContext) -> None:
    """The browser keeps a strict cookie back from such a request; the next one, from our own page, carries it."""
    page, _ = _open(context, node)
    page.route("http://wiki.example/", lambda route: route.fulfill(body=f"<a href='{node.url}/'>console</a>"))
    page.goto("http://wiki.example/")
    page.get_by_role("link").click()
    expect(page.locator("#link")).to_have_text("live")


def test_answers_without_a_browser(node: NodeProcess) -> None:
    """Statuses, headers, and files that are not ours to give."""
    with httpx.Client(base_url=node.url) as client:
        client.headers["Origin"] = node.url
        answer = client.post("/login", data={"token": node.token})
        assert (answer.status_code, answer.headers["location"]) == (303, "/")
        assert "Max-Age=2592000" in answer.headers["set-cookie"]
        page = client.get("/")
        assert page.status_code == 200
        assert "frame-ancestors 'none'" in page.headers["content-security-policy"]
        assert page.headers["referrer-policy"] == "same-origin"
        assert client.post("/login", data={"token": "hg_wrong"}).status_code == 401
        assert client.post("/login", data={}).status_code == 401
        foreign = client.post("/login", data={"token": node.token}, headers={"Sec-Fetch-Site": "cross-site"})
        assert "set-cookie" not in foreign.headers

        style = client.get("/static/console.css")
        assert style.headers["content-type"] == "text/css; charset=utf-8"
        assert client.get("/static/overview.js").headers["content-type"] == "text/javascript; charset=utf-8"
        assert client.get("/static/console.css", headers={"If-None-Match": style.headers["etag"]}).status_code == 304
        for path in ("../pages.py", "%2e%2e/pages.py", "..%2fpages.py", "/etc/passwd", "templates/layout.html", ""):
            assert client.get(f"/static/{path}").status_code in (404, 405)


@needs_chromium
def test_without_auth_everything_is_open(tmp_path: Path, context: BrowserContext) -> None:
    """And a fresh registry says what to do next; the first datasource appears by itself."""
    with running_node(tmp_path / "node", "--no-auth") as node:
        node.token = "whatever"
        page = context.new_page()
        page.goto(node.url)
        expect(page.locator("#link")).to_have_text("live")
        expect(page.get_by_role("button", name="Sign out")).to_have_count(0)
        expect(page.get_by_role("heading", name="Add the first datasource")).to_be_visible()
        node.apply({"first": OFF})
        expect(_row(page, "first")).to_be_visible()
        expect(page.locator("#empty")).to_be_hidden()


# Live.


@needs_chromium
def test_a_datasource_appears_runs_and_counts_without_a_reload(node: NodeProcess, context: BrowserContext) -> None:
    """Nor does the page complain, or ask anyone else."""
    page, watch = _open(context, node)
    node.apply({"ticking": TICKING})
    row = _row(page, "ticking")
    expect(row.locator("[data-cell=health]")).to_have_text("ok")
    expect(row.locator("[data-cell=route]")).to_have_text("generator → blackhole")
    total = row.locator("[data-cell=total]")
    expect(total).not_to_have_text("0")
    before = _number(total.inner_text())
    page.wait_for_function(
        "before => Number(document.querySelector('[data-cell=total]').textContent.replaceAll(',', '')) > before",
        arg=before,
    )
    page.wait_for_function("() => Math.abs(Number(document.querySelector('[data-cell=rate]').textContent) - 20) <= 4")
    expect(page.locator("#headline")).to_have_text("All is well")

    node.call("POST", "/api/datasources/ticking/stop")
    expect(row.locator("[data-cell=health]")).to_have_text("stopped")
    node.call("DELETE", "/api/datasources/ticking")
    expect(row).to_have_count(0)
    assert watch.complaints == []
    assert watch.hosts == {urlsplit(node.url).netloc}


@needs_chromium
def test_what_is_wrong_goes_to_the_top_with_its_reason(node: NodeProcess, context: BrowserContext) -> None:
    """A sink that cannot be reached."""
    node.apply({"alpha": TICKING, "beta": OFF})
    page, _ = _open(context, node)
    expect(_row(page, "alpha").locator("[data-cell=health]")).to_have_text("ok")
    node.apply({"zulu": BROKEN})
    row = _row(page, "zulu")
    expect(row.locator("[data-cell=health]")).to_have_text("error")
    expect(row.locator("[data-cell=why]")).to_contain_text("Connection refused")
    _shows(page, ["zulu", "beta", "alpha"])
    expect(page.locator("#headline")).to_have_text("1 of 3 needs attention")
    expect(page).to_have_title("(1) Headgate")


@needs_chromium
def test_the_page_says_when_the_node_is_gone_and_when_it_is_back(tmp_path: Path, context: BrowserContext) -> None:
    """Killed, then started again on the same port."""
    with running_node(tmp_path / "node") as node:
        node.apply({"ticking": TICKING})
        page, _ = _open(context, node)
        node.end(signal.SIGKILL)
        expect(page.locator("#link")).to_have_text("reconnecting")
        expect(page.locator("#away")).to_contain_text("last heard")
        expect(page.locator("#main")).to_have_class("stale")
    again = NodeProcess.start(node.home, port=int(node.url.rpartition(":")[2]))
    try:
        expect(page.locator("#link")).to_have_text("live")
        expect(page.locator("#main")).not_to_have_class("stale")
        expect(_row(page, "ticking").locator("[data-cell=health]")).to_have_text("ok")
    finally:
        again.end()


@needs_chromium
def test_a_quiet_node_is_live_on_one_connection(node: NodeProcess, context: BrowserContext) -> None:
    """With nothing to tell, the node sends comments; they show that it is there."""
    asked: list[str] = []
    context.on("request", lambda request: asked.append(urlsplit(request.url).path))
    node.apply({"orders": OFF})
    page, _ = _open(context, node)
    page.wait_for_timeout(7500)  # Longer than a silence that counts as a broken link.
    expect(page.locator("#link")).to_have_text("live")
    assert asked.count("/api/overview/rows") == 1


# Keys and looks.


@needs_chromium
def test_filter_and_keys(node: NodeProcess, context: BrowserContext) -> None:
    """Everything without a mouse."""
    node.apply({"orders": OFF, "payments": OFF, "returns": TICKING})
    page, _ = _open(context, node)
    expect(_row(page, "returns").locator("[data-cell=health]")).to_have_text("ok")
    page.keyboard.press("/")
    page.keyboard.type("webhook pay")
    _shows(page, ["payments"])
    expect(page.locator("#shown")).to_have_text("1 of 3")
    page.keyboard.press("Escape")
    _shows(page, ["orders", "payments", "returns"])
    focused = "document.activeElement.closest('tbody')?.dataset.name"
    page.keyboard.press("ArrowDown")
    assert page.evaluate(focused) == "orders"
    page.keyboard.press("j")
    page.keyboard.press("j")
    page.keyboard.press("j")
    assert page.evaluate(focused) == "returns"
    page.keyboard.press("k")
    assert page.evaluate(focused) == "payments"
    node.call("POST", "/api/datasources/payments/start")
    expect(_row(page, "payments").locator("[data-cell=health]")).to_have_text("ok")
    assert page.evaluate(focused) == "payments", "the focus moves with its row"

    page.keyboard.press("Enter")
    expect(page).to_have_url(f"{node.url}/datasources/payments")
    page.go_back()
    page.get_by_role("button", name="1 stopped").click()
    _shows(page, ["orders"])


@needs_chromium
def test_of_many_the_first_rows_come_with_the_page_and_the_others_as_somebody_gets_to_them(
    node: NodeProcess, context: BrowserContext
) -> None:
    node.apply({f"many-{number:03}": OFF for number in range(150)} | {"zulu": BROKEN})
    page, watch = _open(context, node)
    expect(_row(page, "zulu").locator("[data-cell=health]")).to_have_text("error")
    first = page.request.get(node.url)
    assert first.text().count("<tbody") == PAGE + 1  # One is the blank.
    assert len(first.body()) < 100_000
    expect(page.locator("#table > tbody").first).to_have_attribute("data-name", "zulu")
    while not _row(page, "many-149").count():
        page.locator("#table > tbody").last.scroll_into_view_if_needed()
        page.wait_for_timeout(100)
    expect(page.locator("#table > tbody")).to_have_count(151)
    page.keyboard.press("/")
    page.keyboard.type("many-07")
    _shows(page, [f"many-07{number}" for number in range(10)])
    expect(page).to_have_url(f"{node.url}/?search=many-07")
    assert watch.complaints == []


@needs_chromium
@pytest.mark.parametrize(
    ("name", "width", "scheme"),
    [("desktop", 1280, "light"), ("dark", 1280, "dark"), ("tablet", 800, "light"), ("phone", 375, "light")],
)
def test_nothing_runs_over_the_edge(
    node: NodeProcess, browser: Browser, tmp_path: Path, name: str, width: int, scheme: Any
) -> None:
    """Screenshots are left beside, to be looked at."""
    node.apply({"ticking": TICKING, "broken": BROKEN, "off": OFF, "a" * 60: OFF})
    context = browser.new_context(viewport={"width": width, "height": 812}, color_scheme=scheme)
    context.set_default_timeout(WAIT_MS)
    page, _ = _open(context, node)
    expect(_row(page, "broken").locator("[data-cell=health]")).to_have_text("error")
    page.screenshot(path=tmp_path / f"{name}.png", full_page=True)
    assert page.evaluate("document.scrollingElement.scrollWidth <= innerWidth")
    context.close()


@needs_chromium
def test_a_row_says_what_became_of_its_records_and_what_waits(node: NodeProcess, context: BrowserContext) -> None:
    """What was read is written, filtered or dead; and of a webhook whose sink is away, what waits and for how long."""
    fields = {"id": "sequence", "kind": ["a", "7", "x"]}
    mixed = {
        "source": {"type": "generator", "count": 1200, "fields": fields},
        "mapping": {"where": "kind != 'a'", "set": {"size": "int(kind)"}},
        "sink": {"type": "blackhole"},
    }
    node.apply({"mixed": mixed, "hooks": {**BROKEN, "source": {"type": "webhook"}}})
    page, watch = _open(context, node)
    row = _row(page, "mixed")
    expect(row.locator("[data-cell=health]")).to_have_text("ended")
    found = node.call("GET", "/api/datasources/mixed")["metrics"]
    expect(row.locator("[data-cell=total]")).to_have_text(f"{found['records_written']:,}")
    expect(row.locator("[data-cell=read]")).to_have_text("1,200 read")
    expect(row.locator("[data-cell=filtered]")).to_have_text(f"{found['records_filtered']:,} filtered")
    expect(row.locator("[data-cell=dead]")).to_have_text(f"{found['records_dead_lettered']:,}")
    expect(row.locator("[data-cell=why]")).to_have_text("its source has ended")
    node.request("POST", "/hooks/hooks", content=b"{}").raise_for_status()
    row = _row(page, "hooks")
    expect(row.locator("[data-cell=backlog]")).to_have_text("1")
    expect(row.locator("[data-cell=backlog_bytes]")).to_have_text("2 B")
    expect(row.locator("[data-cell=lag]")).to_have_text(re.compile(r"\d s"))
    expect(row.locator("[data-cell=why]")).to_contain_text("tries again")
    assert watch.complaints == []


@needs_chromium
def test_without_scripts_the_page_shows_everything(node: NodeProcess, browser: Browser) -> None:
    """Rendered by the server."""
    node.apply({"orders": OFF})
    context = browser.new_context(java_script_enabled=False)
    context.set_default_timeout(WAIT_MS)
    page = context.new_page()
    page.goto(sign_in_link(node))
    wait_until(lambda: page.reload() is not None and _row(page, "orders").count() == 1, "it is on the page")
    expect(_row(page, "orders").locator("[data-cell=health]")).to_have_text("stopped")
    expect(page.locator("#headline")).to_have_text("Nothing runs")
    context.close()


# What strangers write.


def _hostile_summary() -> dict[str, Any]:
    return {
        "id": "1",
        "name": HOSTILE,
        "enabled": True,
        "paused": False,
        "health": "error",
        "why": HOSTILE,
        "worker_status": "ERROR",
        "detail": HOSTILE,
        "published_version": 2,
        "running_version": 1,
        "published_status": "published",
        "has_draft": True,
        "source_type": HOSTILE,
        "sink_type": HOSTILE,
        "metrics": {"records_written": 1},
        "error": {"cause": "config", "message": HOSTILE},
        "node": HOSTILE,
        "quarantine": None,
        "reason": None,
        "labels": [HOSTILE],
    }


def test_the_server_escapes_what_strangers_wrote() -> None:
    """In every field of a row."""
    row = overview.row_of(msgspec.convert(_hostile_summary(), Summary))
    counts = dict.fromkeys(HEALTHS, 1)
    values: dict[str, Any] = {"headline": "", "nodes": [HOSTILE], "notices": [HOSTILE], "operates": True}
    values |= {"is_read": True, "is_empty": False, "window": Window(search=HOSTILE), "health_words": {}}
    caller = Caller(UUID(int=1), HOSTILE, "viewer")
    answer = frame.framed(
        caller, "overview.html", at="", counts=counts, rows=[row], blank=overview.BLANK, as_of="", **values
    )
    assert "<script>" not in answer.content
    assert "<img src=x" not in answer.content
    assert "&lt;script&gt;" in answer.content


@needs_chromium
def test_the_browser_runs_nothing_that_strangers_wrote(node: NodeProcess, context: BrowserContext) -> None:
    """From a datasource's description, and in every field of what the stream brings."""
    node.apply({"described": {**OFF, "description": HOSTILE}})

    def answer(route: Route) -> None:
        nodes = [{"name": HOSTILE, "streams": 1, "registry_problem": HOSTILE}]
        counts = dict.fromkeys(HEALTHS, 1)
        body = {"rows": [_hostile_summary()], "order": [HOSTILE], "matching": 1, "counts": counts}
        body |= {"written_per_s": 1.0, "nodes": nodes, "at_s": 1.0}
        route.fulfill(content_type="text/event-stream", body=f"data: {json.dumps(body)}\n\n")

    context.route("**/api/overview/rows*", answer)
    page = context.new_page()
    page.goto(sign_in_link(node))
    expect(page.locator("[data-cell=why]")).to_have_text(HOSTILE)
    expect(page.locator("#notices")).to_contain_text(HOSTILE)
    assert page.evaluate("window.pwned") is None
    assert page.locator("table script, table img").count() == 0


# Words.


@pytest.mark.parametrize(
    ("span_s", "span", "ago"),
    [
        (None, "–", "–"),
        (0.0, "0 ms", "just now"),
        (0.25, "250 ms", "just now"),
        (1.25, "1.2 s", "just now"),
        (42.0, "42 s", "42 s ago"),
        (600.0, "10 min", "10 min ago"),
        (9000.0, "2 h", "2 h ago"),
        (864000.0, "10 d", "10 d ago"),
    ],
)
def test_spans(span_s: float | None, span: str, ago: str) -> None:
    """One figure and its unit."""
    assert (words.span(span_s), words.ago(span_s)) == (span, ago)
