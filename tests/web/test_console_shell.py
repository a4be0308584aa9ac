"""The console's frame: navigation by role, keys, buttons that act by the session, and pages that are not there."""

from __future__ import annotations

import re

import httpx
from playwright.sync_api import BrowserContext, Page, expect

from headgate.testing.processes import NodeProcess
from headgate.web.console.frame import SECTIONS
from headgate.web.origin import HEADER
from tests.web.browser import needs_chromium, opened

WAIT_MS = 60_000
HOOK = {"source": {"type": "webhook"}, "sink": {"type": "blackhole"}, "enabled": False}


def _button(page: Page, html: str) -> None:
    """A button as a page would declare it."""
    page.evaluate("html => document.body.insertAdjacentHTML('beforeend', html)", html)


def _labels(page: Page) -> list[str]:
    return page.locator("nav.sections a").all_inner_texts()


@needs_chromium
def test_every_section_is_reached_by_its_link_and_its_keys(node: NodeProcess, context: BrowserContext) -> None:
    page, _ = opened(context, node)
    assert _labels(page) == [one.label for one in SECTIONS]
    for one in SECTIONS:
        page.keyboard.press("g")
        page.keyboard.press(one.key)
        expect(page).to_have_url(re.compile(re.escape(node.url + one.path) + "(/.*)?$"))  # Settings have several.
        expect(page.locator("nav.sections [aria-current]")).to_have_text(one.label)
        expect(page.locator("h1")).to_have_count(1)
        expect(page.locator("#link")).to_have_text("live")  # The scripts are there, and listen to keys.
        for width in (375, 1280):
            page.set_viewport_size({"width": width, "height": 800})
            assert page.evaluate("document.scrollingElement.scrollWidth <= innerWidth"), (one.name, width)
            expect(page.get_by_role("link", name=one.label, exact=True)).to_be_in_viewport()
    page.keyboard.press("?")
    expect(page.get_by_role("dialog", name="Keys")).to_contain_text("Dead letters")
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)


@needs_chromium
def test_a_reader_sees_the_sections_of_its_role_and_what_is_not_there_is_a_page(
    node: NodeProcess, context: BrowserContext
) -> None:
    viewer = node.call("POST", "/api/tokens", {"name": "shell viewer", "role": "viewer"})["token"]
    page, _ = opened(context, node, token=viewer)
    assert "Dead letters" not in _labels(page)
    for path in ("/nowhere", "/dumps/none", "/groups/one?stream=a&name=b"):
        answer = page.goto(node.url + path)
        assert answer is not None
        assert (answer.status, answer.headers["content-type"]) == (404, "text/html; charset=utf-8"), path
        expect(page.get_by_role("link", name="To the overview")).to_be_visible()
    assert httpx.get(f"{node.url}/nowhere").headers["content-type"] == "application/problem+json"
    assert page.goto(f"{node.url}/letters").status == 403  # type: ignore[union-attr]


@needs_chromium
def test_a_button_asks_acts_and_says_what_became_of_it(node: NodeProcess, context: BrowserContext) -> None:
    """Losses are asked for with their numbers; what is refused is one line; a form fills its path."""
    node.apply({"doomed": {**HOOK, "enabled": True}})
    node.call("POST", "/api/datasources/doomed/pause")
    node.request("POST", "/hooks/doomed", content=b"{}").raise_for_status()
    page, _ = opened(context, node)
    _button(page, "<button id=one data-act='POST /api/datasources/nobody/stop'>Stop</button>")
    page.locator("#one").click()
    expect(page.locator("#outcome [role=alert]")).to_contain_text("nobody")

    _button(
        page,
        "<button id=two data-act='DELETE /api/datasources/doomed' data-confirm='Delete doomed?' data-grave"
        " data-as='headgate ds delete doomed' data-done='Deleted.'>Delete</button>",
    )
    page.locator("#two").click()
    dialog = page.get_by_role("dialog", name="Delete doomed?")
    expect(dialog).to_contain_text("headgate ds delete doomed")
    expect(dialog.get_by_role("button", name="Cancel")).to_be_focused()
    page.keyboard.press("Enter")
    expect(dialog).to_have_count(0)
    assert node.request("GET", "/api/datasources/doomed").status_code == 200
    page.locator("#two").click()
    dialog.get_by_role("button", name="Delete").click()
    losing = page.get_by_role("dialog", name="Something would be lost")
    expect(losing).to_contain_text("1 payload")
    losing.get_by_role("button", name="Delete").click()
    expect(page.locator("#outcome [role=status]")).to_have_text("Deleted.")
    assert node.request("GET", "/api/datasources/doomed").status_code == 404

    _button(
        page,
        "<form data-act='PUT /api/secrets/{name}'><input name=name value='a secret'><input name=value value=x>"
        "<button>Keep</button></form>",
    )
    page.get_by_role("button", name="Keep").click()
    expect(page.locator("#outcome [role=alert]")).to_contain_text("a secret")
    page.locator("input[name=name]").fill("a-secret")
    page.get_by_role("button", name="Keep").click()
    expect(page.locator("#outcome [role=status]")).to_have_text("Keep: done")
    assert "a-secret" in str(node.call("GET", "/api/secrets"))


def test_a_session_changes_something_only_from_a_script_of_our_pages_and_within_its_role(node: NodeProcess) -> None:
    node.apply({"kept": HOOK})
    viewer = node.call("POST", "/api/tokens", {"name": "acting viewer", "role": "viewer"})["token"]
    own = {"Origin": node.url, "Sec-Fetch-Site": "same-origin", HEADER: "1"}
    other = "https://elsewhere.example"
    wrong: list[dict[str, str]] = [
        {},
        {HEADER: "1"},
        {**own, "Sec-Fetch-Site": "cross-site"},
        {**own, "Sec-Fetch-Site": "same-site"},
        {"Origin": other, HEADER: "1"},
        {"Origin": node.url, "Sec-Fetch-Site": "same-origin"},
    ]
    for token, expected in ((node.token, 200), (viewer, 403)):
        with httpx.Client(base_url=node.url, timeout=60) as client:
            client.post("/login", data={"token": token}, headers={"Origin": node.url})
            for headers in wrong:
                assert client.post("/api/datasources/kept/pause", headers=headers).status_code == 401, headers
                assert client.delete("/api/datasources/kept", headers=headers).status_code == 401, headers
            assert client.post("/api/datasources/kept/start", headers=own).status_code == expected
            assert client.post("/api/sign-in", headers=own).status_code == 403
