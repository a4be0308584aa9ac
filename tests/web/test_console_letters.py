"""The console's pages of dead letters, in a real browser against a real node: a stuck record, mended by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
from playwright.sync_api import BrowserContext, expect

from headgate.store.letters import OUTCOMES
from headgate.testing.processes import NodeProcess
from headgate.web.console.letters import MARKS
from headgate.web.origin import HEADER
from tests.waiting import wait_until
from tests.web.browser import needs_chromium, opened, say

HOSTILE = "<img src=x onerror='window.pwned = 1'></textarea><script>window.pwned = 1</script>"


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


@needs_chromium
def test_a_stuck_record_is_found_from_the_overview_mended_and_replayed(
    node: NodeProcess, context: BrowserContext, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    (id,) = _stuck(node, "mended", out, {"id": "seven", "note": HOSTILE})
    page, complaints = opened(context, node, "/")
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
    expect(page.locator("#outcome [role=alert]")).to_contain_text("is not JSON")
    for width in (390, 1280):
        page.set_viewport_size({"width": width, "height": 800})
        page.screenshot(path=tmp_path / f"letter-{width}.png", full_page=True)
        assert page.evaluate("document.scrollingElement.scrollWidth <= innerWidth")
    page.get_by_role("button", name="Dry run").click()
    expect(page.locator("#dry")).to_contain_text("fails again at set.id: cannot read text as an int")
    page.get_by_label("Payload as JSON").fill(json.dumps({"id": 7, "note": "ok"}))
    page.get_by_role("button", name="Save", exact=True).click()
    expect(page.locator("#shown")).to_contain_text('"ok"')
    page.get_by_role("button", name="Dry run").click()
    expect(page.locator("#dry")).to_contain_text("1 written, 0 filtered, 0 fail again")
    assert _written(out) == []
    page.get_by_role("button", name="Save and replay").click()
    expect(page.locator("#status")).to_have_text("replayed")
    expect(page.locator("#outcome [role=alert]")).to_have_text("")
    assert _written(out) == [{"id": 7, "note": "ok"}]
    assert page.get_by_role("button", name="Replay").count() == 0
    assert page.evaluate("window.pwned") is None
    assert complaints == []


@needs_chromium
def test_heaps_lead_to_what_fails_alike_which_is_replayed_or_discarded_together(
    node: NodeProcess, context: BrowserContext, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    _stuck(node, "many", out, *({"id": "x"} for _ in range(3)), {"id": [1]}, {"id": HOSTILE})
    page, complaints = opened(context, node, "/letters")
    heaps = page.get_by_role("table", name="What is wrong")
    expect(heaps.get_by_role("row", name="many")).to_have_count(2)
    expect(heaps.get_by_role("row", name="cannot read text as an int").filter(has_text="many")).to_contain_text("4")
    assert page.get_by_role("button", name="Discard").count() == 0  # Of all datasources at once, nobody means it.
    heaps.get_by_role("row").filter(has_text="many").get_by_role("link", name="cannot read text as an int").click()
    expect(page.locator("tr[data-letter]")).to_have_count(4)
    page.get_by_role("button", name="Dry run").click()
    expect(page.locator("#dry")).to_contain_text("0 written, 0 filtered, 4 fail again")
    page.get_by_role("button", name="Replay 4 letters").click()
    expect(page.get_by_role("dialog")).to_contain_text("headgate dlq replay many --stage mapping --field set.id")
    say(page, "Replay 4 letters")
    expect(page.locator("#outcome")).to_contain_text("4 letters will be replayed.")
    expect(page.locator("tr[data-letter]").first).to_contain_text("2 tries")
    page.get_by_role("button", name="Discard 4 letters").click()
    say(page, "Cancel")
    assert node.call("GET", "/api/datasources/many/dead-letters")["open"] == 5
    page.get_by_role("button", name="Discard 4 letters").click()
    say(page, "Discard 4 letters")
    expect(page.locator("tr[data-letter]")).to_have_count(0)
    page.goto(f"{node.url}/letters?datasource=many&outcome=all")
    expect(page.locator("tr[data-letter]")).to_have_count(5)
    expect(page.locator("td.status", has_text="discarded")).to_have_count(4)
    assert page.get_by_role("button", name="Discard").count() == 0
    page.goto(f"{node.url}/letters?datasource=many&version=2")
    expect(page.locator("h2")).to_have_text("No letters")
    assert page.evaluate("window.pwned") is None
    assert complaints == []


def test_every_outcome_has_a_mark() -> None:
    assert set(MARKS) == set(OUTCOMES)


def test_letters_are_for_operators_and_buttons_for_our_own_pages(node: NodeProcess, tmp_path: Path) -> None:
    (id,) = _stuck(node, "walled", tmp_path / "out", {"id": "pearl"})
    body = {"name": "viewer of letters", "role": "viewer"}
    viewer = node.call("POST", "/api/tokens", body)["token"]
    bound = node.call("POST", "/api/tokens", {"name": "b", "role": "operator", "datasources": ["other"]})["token"]
    own = {"Origin": node.url, "Sec-Fetch-Site": "same-origin", HEADER: "1"}
    discard = ("/api/datasources/walled/dead-letters/discard", {"ids": [id]})
    for token in (viewer, bound):
        with httpx.Client(base_url=node.url) as browser:
            browser.post("/login", data={"token": token}, headers={"Origin": node.url})
            for path in (f"/letters/{id}", "/letters?datasource=walled"):
                answer = browser.get(path, headers={"Sec-Fetch-Site": "same-origin"})
                assert (answer.status_code, "pearl" in answer.text) == (403, False), path
            assert browser.post(discard[0], json=discard[1], headers=own).status_code == 403
            assert browser.put(f"/api/dead-letters/{id}", json={"payload": 1}, headers=own).status_code == 403
    with httpx.Client(base_url=node.url) as browser:
        browser.post("/login", data={"token": node.token}, headers={"Origin": node.url})
        foreign = {**own, "Origin": "https://elsewhere.example", "Sec-Fetch-Site": "cross-site"}
        without = {name: value for name, value in own.items() if name != HEADER}
        for headers in (foreign, without):
            assert browser.post(discard[0], json=discard[1], headers=headers).status_code == 401
        for query in (
            "datasource=nobody",
            "outcome=lost",
            "stage=moon",
            "version=x",
            "version=-1",
            "after=x",
            "field=%00",
        ):
            assert browser.get(f"/letters?{query}", headers={"Sec-Fetch-Site": "same-origin"}).status_code == 404, query
        assert browser.get("/letters/00000000", headers={"Sec-Fetch-Site": "same-origin"}).status_code == 404
        assert node.call("GET", "/api/datasources/walled/dead-letters")["open"] == 1
        assert browser.post(discard[0], json=discard[1], headers=own).json()["letters"] == 1
