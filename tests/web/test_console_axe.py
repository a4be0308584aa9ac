"""Every page of the console is looked at by axe-core: in light and in dark, on a desk and on a phone, with something on
it. What a page shows only after a click is opened first."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect

from headgate.testing.processes import NodeProcess
from headgate.web.console import ROUTES, assets, session
from tests.waiting import wait_until
from tests.web.browser import WAIT_MS, needs_chromium, opened
from tests.web.members import joined
from tests.web_node import Databases, execute

HOOK = {
    "source": {"type": "webhook"},
    "mapping": {"set": {"id": "int(id)", "note": "note"}},
    "sink": {"type": "blackhole"},
    "labels": ["team:shop"],
    "description": "Orders of the shop",
}
BROKEN = {**HOOK, "sink": {"type": "postgres", "url": "postgresql://nobody@127.0.0.1:1/none", "table": "t"}}
TICKING = {"source": {"type": "generator", "rate": 20}, "sink": {"type": "blackhole"}}
RULES = {
    "broken": {"when": "health", "for": "0s", "to": ["chat"]},
    "letters": {"when": "dead_letters", "above": 0, "for": "0s", "to": ["chat", "mail"]},
    "late": {"when": "lag", "above": "10m", "datasources": ["or*"], "to": ["chat"]},
}
MAIL = {
    "type": "email",
    "host": "127.0.0.1",
    "port": 1,
    "tls": "none",
    "from": "a@example.com",
    "to": ["b@example.com"],
}
SIZES = {"desk": {"width": 1280, "height": 900}, "phone": {"width": 375, "height": 812}}
TABS = ("", "/records", "/logs", "/events", "/versions", "/draft")
GROUP = "/groups/one?stream=jobs/7&name=a%20b"  # Of programs outside.
SIGNED_OUT = "/nowhere-signed-out"


@dataclass(frozen=True)
class Full:
    """A node with something on every page."""

    node: NodeProcess
    letter: str
    dump: str

    def pages(self) -> list[str]:
        """The addresses of all pages."""
        return [
            "/",
            "/?search=none-is-called-so",
            "/new",
            *(f"/datasources/orders{tab}" for tab in TABS),
            "/datasources/failing",
            "/letters",
            f"/letters/{self.letter}",
            "/streams",
            "/streams/ticking:0",
            "/streams/orders:0",
            "/nodes",
            "/groups",
            "/groups/one?stream=ticking:0&name=workers",
            "/dumps",
            f"/dumps/{self.dump}",
            "/dumps/new",
            "/events",
            *(f"/settings{tab}" for tab in ("", "/secrets", "/tokens", "/allowed", "/connectors")),
            "/settings/notifications",
            "/settings/installation",
            "/nowhere",
            "/streams/none:0",
        ]


@pytest.fixture(scope="module")
def full(node: NodeProcess, databases: Databases) -> Full:
    source, target = databases.make(), databases.make()
    rows = "INSERT INTO orders SELECT n, 'name' FROM generate_series(1, 500) n"
    asyncio.run(execute(source, f"CREATE TABLE orders (id integer PRIMARY KEY, name text); {rows}"))
    node.apply({"orders": HOOK, "failing": BROKEN, "ticking": TICKING, "off": {**TICKING, "enabled": False}})
    node.call("PUT", "/api/datasources/off/draft", {**TICKING, "description": "Changed"})
    for id in (1, 2, "three", "four"):
        node.call("POST", "/hooks/orders", {"id": id, "note": "n"})
    node.call("POST", "/hooks/failing", {"id": 1, "note": "n"})
    node.call("PUT", "/api/secrets/chat-url", {"value": "http://127.0.0.1:1/chat"})
    node.call("POST", "/api/tokens", {"name": "who looks", "role": "viewer", "datasources": ["or*"]})
    node.call("POST", "/api/allowed", {"kind": "address", "value": "warehouse.internal:5432"})
    targets = {"chat": {"type": "slack", "url": {"$secret": "chat-url"}}, "mail": MAIL}
    node.call("PUT", "/api/notifications", {"targets": targets, "rules": RULES})
    made = node.call(
        "POST", "/api/dumps", {"source": source, "target": target, "tables": ["orders"], "chunk_rows": 100}
    )
    wait_until(lambda: len(node.call("GET", "/api/dead-letters?datasource=orders")["items"]) == 2, "two are letters")
    wait_until(lambda: node.call("GET", f"/api/dumps/{made['id']}")["status"] == "completed", "it is copied")
    wait_until(lambda: node.call("GET", "/api/notifications")["incidents"], "something is wrong")
    letter = node.call("GET", "/api/dead-letters?datasource=orders")["items"][0]["id"]
    return Full(node, letter, made["id"])


def unfold(page: Page) -> None:
    """Show what a click would show."""
    page.evaluate("for (const one of document.querySelectorAll('main details')) one.open = true")
    for verb, panel in (("Add a rule", "#rule-panel"), ("Tell somebody", "#target-panel")):
        if (button := page.get_by_role("button", name=verb)).count():
            button.click()  # The other form stays open.
            expect(page.locator(panel)).to_be_visible()
            page.evaluate(
                "panel => document.querySelector(panel).removeAttribute('data-form')", panel
            )  # Both stay open.


def looked_at(page: Page, path: str, scheme: str, size: str) -> list[str]:
    """What is wrong with a page as it is."""
    found = [f"{path} {size}: runs over the edge"] if _runs_over(page) else []
    for one in Axe().run(page).response["violations"]:
        where = [each["target"] for each in one["nodes"][:3]]
        said = one["nodes"][0]["failureSummary"].replace("\n", " ")
        found.append(f"{path} {scheme} {size}: {one['id']} {where} {said}")
    return found


def _runs_over(page: Page) -> bool:
    return bool(page.evaluate("document.scrollingElement.scrollWidth > innerWidth"))


def every_way(page: Page, path: str, shots: Path) -> list[str]:
    """Light and dark on a desk, light on a phone. Screenshots are left beside, to be looked at."""
    found: list[str] = []
    name = path.strip("/").replace("/", "-").replace("?", "-") or "overview"
    for scheme, size in (("light", "desk"), ("dark", "desk"), ("light", "phone")):
        page.emulate_media(color_scheme=scheme, reduced_motion="reduce")  # type: ignore[arg-type]
        page.set_viewport_size(SIZES[size])  # type: ignore[arg-type]
        found += looked_at(page, path, scheme, size)
        page.screenshot(path=shots / f"{name}-{scheme}-{size}.png", full_page=True)
    return found


@needs_chromium
@pytest.mark.timeout(1200)  # A hundred times axe, on a machine that may be busy.
def test_axe_finds_nothing_on_any_page(full: Full, browser: Browser, tmp_path: Path) -> None:
    context = browser.new_context(viewport=SIZES["desk"])  # type: ignore[arg-type]
    context.set_default_timeout(WAIT_MS)
    page, complaints = opened(context, full.node)
    found: list[str] = []
    for path in full.pages():
        page.set_viewport_size(SIZES["desk"])  # type: ignore[arg-type]
        page.goto(full.node.url + path)
        page.wait_for_load_state("load")
        if path.endswith("/draft"):
            expect(page.locator("#editor[data-ready]")).to_be_visible()
        if path == "/new":
            expect(page.locator("#wizard[data-ready]")).to_be_visible()
        unfold(page)
        found += every_way(page, path, tmp_path)
    with joined(full.node, "jobs/7", "a b", "first"):
        page.goto(full.node.url + GROUP)
        found += every_way(page, "/groups/one", tmp_path)
    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_label("Token")).to_be_visible()
    found += every_way(page, "/login", tmp_path)
    page.goto(full.node.url + SIGNED_OUT)
    found += every_way(page, SIGNED_OUT, tmp_path)
    context.close()
    assert not found, "\n".join(found)
    assert complaints == []


def test_no_page_is_left_out() -> None:
    """A page that comes to the console comes to this list."""
    looked = Full(None, "letter", "dump").pages()  # type: ignore[arg-type]
    others = (assets.asset, session.sign_in, session.sign_out)
    for route in ROUTES:
        if route in others:
            continue
        (path, *_) = sorted(route.paths)
        kind, _, more = path.partition("{")
        here = [
            one for one in looked if (one.startswith(kind) and one != kind if more else one.partition("?")[0] == path)
        ]
        assert here, path
