"""The console's pages of dead letters, in a real browser against a real node: a stuck record, mended by hand."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect

from headgate.store.letters import OUTCOMES
from headgate.testing.processes import NodeProcess
from headgate.web.console.letters import MARKS
from headgate.web.console.session import HEADER
from tests.waiting import wait_until
from tests.web.browser import needs_chromium, running_browser, running_node, sign_in_link

WAIT_MS = 30_000
HOSTILE = "<img src=x onerror='window.pwned = 1'></textarea><script>window.pwned = 1</script>"


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    with running_node(tmp_path_factory.mktemp("node")) as node:
        yield node


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    expect.set_options(timeout=WAIT_MS)
    with running_browser() as browser:
        yield browser


@pytest.fixture
def context(browser: Browser) -> Iterator[BrowserContext]:
    context = browser.new_context(viewport={"width": 1280, "height": 800})
    yield context
    context.close()


def _stuck(node: NodeProcess, name: str, out: Path, *payloads: Any) -> list[str]:
    """A webhook into a file, with letters of these payloads. Returns their ids, the latest first."""
    document = {
        "source": {"type": "webhook"},
        "mapping": {"set": {"id": "int(id)", "note": "note"}},
        "sink": {"type": "files", "path": str(out)},
    }
    node.call("POST", "/api/apply", {"datasources": {name: document}})
    for one in payloads:
        node.call("POST", f"/hooks/{name}", one)

    def ids() -> list[str]:
        found = node.call("GET", f"/api/dead-letters?datasource={name}")["items"]
        return [one["id"] for one in found]

    wait_until(lambda: len(ids()) == len(payloads), "all are letters")
    return ids()


def _written(out: Path) -> list[Any]:
    return [json.loads(line) for line in out.read_text().splitlines()] if out.exists() else []


def _open(context: BrowserContext, node: NodeProcess, path: str, token: str = "") -> tuple[Page, list[str]]:
    page = context.new_page()
    complaints: list[str] = []
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("dialog", lambda dialog: dialog.accept())
    page.goto(sign_in_link(node, token))
    page.goto(f"{node.url}{path}")
    expect(page.locator("#link")).to_have_text("live")
    return page, complaints


@needs_chromium
def test_a_stuck_record_is_found_from_the_overview_mended_and_replayed(
    node: NodeProcess, context: BrowserContext, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    (id,) = _stuck(node, "mended", out, {"id": "seven", "note": HOSTILE})
    page, complaints = _open(context, node, "/")
    row = page.locator("tbody[data-name='mended']")
    expect(row.locator("[data-cell='dead']")).to_have_text("1")
    row.locator("[data-cell='dead']").click()
    expect(page).to_have_url(f"{node.url}/letters?datasource=mended")
    letter = page.locator(f"tr[data-letter='{id}']")
    expect(letter).to_contain_text("cannot read text as an int")
    for width in (390, 1280):
        page.set_viewport_size({"width": width, "height": 800})
        page.screenshot(path=tmp_path / f"letters-{width}.png", full_page=True)
        assert page.evaluate("document.scrollingElement.scrollWidth <= innerWidth")
    letter.get_by_role("link").click()
    expect(page.locator("#shown")).to_contain_text('"seven"')
    page.get_by_text("Edit", exact=True).click()
    page.get_by_label("Payload as JSON").fill('{"id": 7,')
    page.get_by_role("button", name="Save and replay").click()
    expect(page.locator("#problem")).to_contain_text("is not JSON")
    for width in (390, 1280):
        page.set_viewport_size({"width": width, "height": 800})
        page.screenshot(path=tmp_path / f"letter-{width}.png", full_page=True)
        assert page.evaluate("document.scrollingElement.scrollWidth <= innerWidth")
    page.get_by_label("Payload as JSON").fill(json.dumps({"id": 7, "note": "ok"}))
    page.get_by_role("button", name="Save and replay").click()
    expect(page.locator("#status")).to_have_text("replayed")
    expect(page.locator("#problem")).to_have_text("")
    assert _written(out) == [{"id": 7, "note": "ok"}]
    assert page.get_by_role("button", name="Replay").count() == 0
    assert page.evaluate("window.pwned") is None
    assert complaints == []


@needs_chromium
def test_what_fits_a_filter_is_replayed_or_discarded_together(
    node: NodeProcess, context: BrowserContext, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    _stuck(node, "many", out, *({"id": "x"} for _ in range(3)), {"id": [1]})
    page, complaints = _open(context, node, "/letters?datasource=many")
    assert page.locator("tr[data-letter]").count() == 4
    page.get_by_label("Reason").fill("read text")
    page.get_by_role("button", name="Filter").click()
    expect(page.locator("tr[data-letter]")).to_have_count(3)
    page.get_by_role("button", name="Replay these").click()
    expect(page.locator("#told")).to_contain_text("3 letters will be replayed.")
    expect(page.locator("tr[data-letter]").first).to_contain_text("2 tries")
    page.get_by_role("button", name="Discard these").click()
    expect(page.locator("tr[data-letter]")).to_have_count(0)
    page.goto(f"{node.url}/letters?datasource=many&outcome=all")
    expect(page.locator("tr[data-letter]")).to_have_count(4)
    expect(page.get_by_text("discarded")).to_have_count(3 + 1)  # One is the option of the filter.
    assert page.get_by_role("button", name="Discard these").count() == 0
    assert complaints == []


def test_every_outcome_has_a_mark() -> None:
    assert set(MARKS) == set(OUTCOMES)


def test_letters_are_for_operators_and_buttons_for_our_own_pages(node: NodeProcess, tmp_path: Path) -> None:
    (id,) = _stuck(node, "walled", tmp_path / "out", {"id": "pearl"})
    body = {"name": "viewer of letters", "role": "viewer"}
    viewer = node.call("POST", "/api/tokens", body)["token"]
    bound = node.call("POST", "/api/tokens", {"name": "b", "role": "operator", "datasources": ["other"]})["token"]
    own = {"Origin": node.url, "Sec-Fetch-Site": "same-origin", HEADER: "1"}
    discard = {"do": "discard"}
    for token, refused in ((viewer, 403), (bound, 403)):
        with httpx.Client(base_url=node.url) as browser:
            browser.post("/login", data={"token": token}, headers={"Origin": node.url})
            for path in (f"/letters/{id}", "/letters?datasource=walled"):
                answer = browser.get(path, headers={"Sec-Fetch-Site": "same-origin"})
                assert (answer.status_code, "pearl" in answer.text) == (refused, False), path
            assert browser.post(f"/letters/{id}", json=discard, headers=own).status_code == refused
            everything = {**discard, "datasource": "walled"}
            assert browser.post("/letters", json=everything, headers=own).status_code == refused
    with httpx.Client(base_url=node.url) as browser:
        browser.post("/login", data={"token": node.token}, headers={"Origin": node.url})
        foreign = {**own, "Origin": "https://elsewhere.example", "Sec-Fetch-Site": "cross-site"}
        without = {name: value for name, value in own.items() if name != HEADER}
        for headers in (foreign, without):
            assert browser.post(f"/letters/{id}", json=discard, headers=headers).status_code == 401
        for wrong in ({}, {"do": "dance"}, {"do": "edit", "payload": "{"}, {"do": "edit", "more": 1}):
            assert browser.post(f"/letters/{id}", json=wrong, headers=own).status_code == 422
        assert browser.post("/letters", json=discard, headers=own).status_code == 404
        for path in ("/letters/00000000", "/letters?datasource=nobody", "/letters?outcome=lost", "/letters?stage=moon"):
            assert browser.get(path, headers={"Sec-Fetch-Site": "same-origin"}).status_code == 404, path
        assert node.call("GET", "/api/datasources/walled/dead-letters")["open"] == 1
        assert browser.post(f"/letters/{id}", json=discard, headers=own).json() == {"text": "1 letter discarded."}
