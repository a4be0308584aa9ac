"""A datasource in the browser, from its first step to its end: made, tested, run, watched, changed and deleted."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from typing import Any

from playwright.sync_api import BrowserContext, Page, expect

from headgate.testing.processes import NodeProcess
from headgate.web.console.versions import MOST_SHOWN, side_by_side
from headgate.web.origin import HEADER
from tests.waiting import wait_until
from tests.web.browser import needs_chromium, opened

WAIT_MS = 90_000
HOSTILE = "<img src=x onerror='window.pwned = 1'><script>window.pwned = 1</script>"
HOOK = {"source": {"type": "webhook"}, "mapping": {"set": {"id": "id", "note": "note"}}, "sink": {"type": "blackhole"}}


def _send(node: NodeProcess, name: str, record: Any) -> None:
    node.request("POST", f"/hooks/{name}", content=json.dumps(record).encode()).raise_for_status()


@needs_chromium
def test_a_newcomer_makes_a_webhook_into_a_table_in_five_steps_and_nothing_runs_untested(
    node: NodeProcess, context: BrowserContext, record_property: Callable[[str, object], None]
) -> None:
    began_s = time.monotonic()
    page, complaints = opened(context, node, "/")
    page.get_by_role("link", name="New datasource").first.click()
    expect(page.locator("#wizard[data-ready]")).to_be_visible()
    page.get_by_role("button", name="Next").click()
    expect(page.locator("#outcome [role=alert]")).to_have_text("Choose a source.")
    page.get_by_text("webhook", exact=True).click()
    page.get_by_label("Name of the datasource").fill("Web Orders")
    page.get_by_role("button", name="Next").click()
    expect(page.locator("#name-wrong")).to_contain_text("lower case")
    page.get_by_label("Name of the datasource").fill("web-orders")
    page.get_by_role("button", name="Next").click()

    page.get_by_text("postgres", exact=True).click()
    page.get_by_role("button", name="Next").click()
    expect(page.locator("#outcome [role=alert]")).to_have_text("url is missing.")
    page.get_by_role("button", name="Use this installation's database").click()
    expect(page.get_by_label("url *")).to_have_value("own-database")
    expect(page.get_by_label("table *")).to_have_value("web_orders")
    page.get_by_role("button", name="Next").click()

    page.get_by_role("button", name="Add a field").first.click()
    page.get_by_label("mapping.set: name").fill("id")
    page.get_by_label("mapping.set: value or expression").fill("int(id)")
    page.get_by_role("button", name="Next").click()
    page.get_by_role("button", name="Next").click()
    expect(page.locator("#verdict")).to_contain_text("Test it first")
    expect(page.get_by_role("button", name="Publish and start")).to_be_disabled()
    page.get_by_role("button", name="Back").click()
    page.get_by_label("Payload", exact=False).fill('[{"id": "7"}, {"id": "seven"}]')
    page.get_by_role("button", name="Test", exact=True).last.click()
    expect(page.locator(".results .sums")).to_contain_text("2 read, 1 written, 0 filtered, 1 dead-lettered")
    page.get_by_role("button", name="Next").click()
    expect(page.locator("#yaml")).to_contain_text("$secret: own-database")
    page.get_by_role("button", name="Publish and start").click()
    expect(page.locator("#running #status")).to_contain_text("ok")
    _send(node, "web-orders", {"id": "7"})
    page.get_by_role("link", name="Open web-orders").click()
    expect(page.locator("#facts")).to_contain_text(re.compile(r"Written\s*1"))
    expect(page.locator("#chart-rate svg")).to_be_visible()
    expect(page.get_by_role("table", name="Streams")).to_contain_text("web-orders:0")
    assert complaints == []
    took_s = time.monotonic() - began_s
    record_property("newcomer_s", round(took_s, 1))
    print(f"from signing in to a running pipeline: {took_s:.1f} s")  # `pytest -s` shows it.


@needs_chromium
def test_what_is_mistyped_in_a_new_datasource_is_told_in_the_step_that_asked_for_it(
    node: NodeProcess, context: BrowserContext
) -> None:
    node.apply({"is-there": HOOK})
    page, complaints = opened(context, node, "/new")
    expect(page.locator("#wizard[data-ready]")).to_be_visible()
    page.get_by_text("webhook", exact=True).click()
    page.get_by_label("Name of the datasource").fill("Is There!")
    page.get_by_role("button", name="Next").click()
    expect(page.locator("#name-wrong")).to_contain_text("such as is-there")
    page.get_by_label("Name of the datasource").fill("is-there")
    page.get_by_role("button", name="Next").click()
    expect(page.locator("#name-wrong")).to_contain_text("There is a datasource is-there already")
    page.get_by_label("Name of the datasource").fill("is-new")
    page.get_by_role("button", name="Next").click()
    page.get_by_text("blackhole", exact=True).click()
    page.get_by_role("button", name="Next").click()
    page.get_by_role("button", name="Add a field").first.click()
    page.get_by_label("mapping.set: name").fill("cents")
    page.get_by_label("mapping.set: value or expression").fill("rond(totl)")
    page.get_by_role("button", name="Next").click()
    expect(page.locator("#outcome [role=alert]")).to_contain_text("did you mean round?")
    expect(page.locator("#mapping-options .problem").filter(has_text="rond")).to_be_visible()
    page.get_by_label("mapping.set: value or expression").fill("round(totl)")
    page.get_by_role("button", name="Next").click()
    page.get_by_label("Payload", exact=False).fill('{"total": 1}')
    page.get_by_role("button", name="Test", exact=True).last.click()
    expect(page.locator(".caution").first).to_contain_text("totl is not in the record (did you mean total?)")
    page.get_by_role("button", name="Back").click()
    page.get_by_label("mapping.set: value or expression").fill("round(total)")
    page.get_by_role("button", name="Next").click()
    expect(page.get_by_label("Payload", exact=False)).to_be_visible()
    expect(page.locator(".results")).to_have_count(0)  # They are of another document.
    assert complaints == []


@needs_chromium
def test_a_draft_is_edited_in_both_forms_tested_kept_as_a_fixture_published_and_rolled_back(
    node: NodeProcess, context: BrowserContext
) -> None:
    node.apply({"edited": HOOK})
    page, complaints = opened(context, node, "/datasources/edited/draft", is_live=False)
    page.on("dialog", lambda dialog: dialog.accept())
    expect(page.locator("#editor[data-ready]")).to_be_visible()
    text = page.get_by_label("The same as YAML")
    text.fill("source: {type: webhook, formatt: json}\nsink: {type: blackhole}\nmapping: {where: 'kind = 1'}\n")
    expect(page.locator("#problems")).to_contain_text("formatt")
    expect(page.locator("#problems")).to_contain_text("mapping.where")
    expect(page.get_by_label("where", exact=True)).to_have_attribute("aria-invalid", "true")
    text.fill("source: [")
    expect(page.locator("#problems")).to_contain_text("line:")
    expect(page.get_by_role("button", name="Save draft")).to_be_disabled()  # What is kept would be another text.
    text.fill("source: {type: webhook}\nsink: {type: blackhole}\nmapping: {set: {id: id, note: note}}\n")
    expect(page.locator("#sound")).to_have_text("Nothing is wrong with it.")
    page.get_by_label("where", exact=True).fill('note != "skip"')
    expect(text).to_have_value(re.compile('where: note != "skip"'))

    page.get_by_label("Payload", exact=False).fill(json.dumps([{"id": 1, "note": HOSTILE}, {"id": 2, "note": "skip"}]))
    page.get_by_label("Keep it as a fixture named").fill("skipping")
    page.get_by_role("button", name="Test", exact=True).click()
    expect(page.locator(".results .sums")).to_contain_text("2 read, 1 written, 1 filtered")
    expect(page.locator(".results")).to_contain_text("<script>")
    expect(page.locator("#outcome [role=status]")).to_have_text("Kept as the fixture skipping.")

    expect(page.get_by_role("button", name="Plan and publish")).to_be_disabled()
    page.get_by_role("button", name="Save draft").click()
    expect(page.locator("#outcome [role=status]")).to_contain_text("Saved as the draft v2")
    expect(page.locator("#which")).to_have_text("The draft, v2.")
    page.get_by_role("button", name="Plan and publish").click()
    dialog = page.get_by_role("dialog", name="Publish edited?")
    expect(dialog).to_contain_text("mapping.where: nothing")
    expect(dialog).to_contain_text("headgate ds publish edited")
    dialog.get_by_role("button", name="Publish").click()
    expect(page).to_have_url(f"{node.url}/datasources/edited")
    page.goto(f"{node.url}/datasources/edited/versions")
    changed = page.locator(".diff tr[data-kind=added]")
    expect(changed).to_contain_text("where:")
    page.get_by_role("button", name="Roll back to it").click()
    page.get_by_role("dialog").get_by_role("button", name="Roll back to it").click()
    expect(page.get_by_role("table", name="Versions")).to_contain_text("v3")
    assert page.evaluate("window.pwned") is None
    assert complaints == []


@needs_chromium
def test_it_is_watched_paused_resumed_and_deleted_with_what_would_be_lost(
    node: NodeProcess, context: BrowserContext
) -> None:
    node.apply({"watched": HOOK})
    page, complaints = opened(context, node, "/datasources/watched")
    expect(page.locator("#status")).to_contain_text("ok")
    page.get_by_role("link", name="Live records").click()
    page.get_by_role("button", name="Watch", exact=True).click()
    expect(page.locator("#link")).to_have_text("live")
    wait_until(lambda: _tapped(node, page, {"id": 1, "note": HOSTILE}), "the record is on the page", 90)
    expect(page.locator("#records pre").first).to_contain_text("<script>")
    assert page.evaluate("window.pwned") is None
    page.get_by_role("button", name="Stop watching").click()

    page.get_by_role("link", name="Logs").click()
    expect(page.locator("#lines tr").first).to_be_visible()
    page.get_by_label("Search").fill("no such words")
    expect(page.locator("#lines tr:visible")).to_have_count(0)
    page.get_by_role("link", name="Events").first.click()
    page.goto(f"{node.url}/datasources/watched/events")
    expect(page.get_by_role("table", name="Events, the newest first")).to_contain_text("tapped")

    page.get_by_role("link", name="State").click()
    page.get_by_role("button", name="Pause").click()
    expect(page.locator("#status")).to_contain_text("paused")
    _send(node, "watched", {"id": 2})
    page.get_by_role("button", name="Delete").click()
    page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    losing = page.get_by_role("dialog", name="Something would be lost")
    expect(losing).to_contain_text("1 payload")
    losing.get_by_role("button", name="Cancel").click()
    page.get_by_role("button", name="Go on").first.click()
    expect(page.locator("#status")).to_contain_text("ok")
    stake = "/api/datasources/watched/deletion"
    wait_until(lambda: node.call("GET", stake)["payloads"] == 0, "what waited is in the sink", 90)
    page.get_by_role("button", name="Delete").click()
    page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    expect(page).to_have_url(f"{node.url}/")
    assert node.request("GET", "/api/datasources/watched").status_code == 404
    assert complaints == []


def _tapped(node: NodeProcess, page: Page, record: Any) -> bool:
    """A tap reaches its node a moment after it is open, so records are sent until one shows."""
    _send(node, "watched", record)
    page.wait_for_timeout(300)
    return page.locator("#records li").count() > 0


@needs_chromium
def test_no_number_is_rounded_in_the_editor(node: NodeProcess, context: BrowserContext) -> None:
    """Integers beyond 2^53, which a browser's numbers do not have, come out as they went in."""
    source = {"type": "generator", "rate": 1, "count": 2**53 + 1}
    node.apply({"wide": {"enabled": False, "source": source, "sink": {"type": "blackhole"}}})
    page, complaints = opened(context, node, "/datasources/wide/draft", is_live=False)
    expect(page.locator("#editor[data-ready]")).to_be_visible()
    expect(page.get_by_label("count")).to_have_value(str(2**53 + 1))
    page.get_by_label("rate").fill("2")
    expect(page.locator("#yaml")).to_have_value(re.compile("rate: 2"))
    expect(page.locator("#yaml")).to_have_value(re.compile(f"count: {2**53 + 1}"))
    page.get_by_label("count").fill(str(2**53 + 3))
    expect(page.locator("#yaml")).to_have_value(re.compile(f"count: {2**53 + 3}"))
    page.locator("#save").click()
    expect(page.locator("#outcome [role=status]")).to_contain_text("Saved")
    assert node.call("GET", "/api/datasources/wide")["draft"]["document"]["source"]["count"] == 2**53 + 3
    assert complaints == []


@needs_chromium
def test_a_record_is_sent_from_the_page_and_the_count_moves(node: NodeProcess, context: BrowserContext) -> None:
    signed = {"type": "webhook", "signature": {"scheme": "github", "secret": {"$secret": "key"}}}
    node.call("PUT", "/api/secrets/key", {"value": "nobody-sees-it"})
    node.apply({"called": HOOK, "signed": {**HOOK, "source": signed}})
    page, complaints = opened(context, node, "/datasources/called")
    page.evaluate("window.stayed = true")
    field, sent = page.get_by_label("The record, as JSON"), page.locator("#sent")
    field.fill('{"id": 9007199254740993, "note": "it\'s here"}')
    expect(page.locator("#send [data-command]")).to_contain_text("9007199254740993")
    page.get_by_role("button", name="Send", exact=True).press("Enter")
    expect(sent).to_contain_text("202")
    expect(page.locator("#facts div", has_text="Written")).to_contain_text("1")
    assert node.call("POST", "/api/datasources/called/test", {"inbox": 1})["records"][0]["before"]["id"] == 2**53 + 1
    field.fill("{")
    page.get_by_role("button", name="Send", exact=True).click()
    expect(sent).to_contain_text("400: the body is not JSON")
    node.call("POST", "/api/datasources/called/stop")
    expect(page.locator("#status")).to_contain_text("stopped")
    expect(field).to_have_value("{")
    field.fill("{}")
    page.get_by_role("button", name="Send", exact=True).click()
    expect(sent).to_have_attribute("data-health", "error")
    expect(sent).not_to_contain_text("202")
    assert page.evaluate("window.stayed")
    page.goto(f"{node.url}/datasources/signed")
    expect(page.locator("#send")).to_contain_text("with their key only")
    assert page.locator("#send form").count() == 0
    node.call("POST", "/api/datasources/called/start")
    node.wait_for("called", lambda one: one["health"] == "ok")
    # Only a script of our own pages may send as the reader: neither a form nor another site can add the header.
    asked = "path => fetch(path, {method: 'POST', body: '{}'}).then(one => one.status)"
    assert page.evaluate(asked, "/hooks/called") == 401
    viewer = node.call("POST", "/api/tokens", {"name": "sees only", "role": "viewer"})["token"]
    page.get_by_role("button", name="Sign out").click()
    page, _ = opened(context, node, "/datasources/called", viewer)
    assert page.locator("#send form").count() == 0
    asked = "([path, headers]) => fetch(path, {method: 'POST', body: '{}', headers}).then(one => one.status)"
    assert page.evaluate(asked, ["/hooks/called", {HEADER: "1"}]) == 403
    assert complaints == []


@needs_chromium
def test_a_viewer_sees_and_is_neither_offered_nor_allowed_to_act(node: NodeProcess, context: BrowserContext) -> None:
    node.apply({"seen": HOOK})
    viewer = node.call("POST", "/api/tokens", {"name": "page viewer", "role": "viewer"})["token"]
    page, _ = opened(context, node, "/datasources/seen", viewer)
    expect(page.locator("#status")).to_contain_text("ok")
    assert page.locator("[data-act]").count() == 0
    assert "Edit and test" not in page.locator("nav.tabs").inner_text()
    for path in ("/datasources/seen/draft", "/datasources/seen/records", "/new"):
        assert page.goto(node.url + path).status == 403, path  # type: ignore[union-attr]
    assert page.goto(f"{node.url}/datasources/nobody").status == 404  # type: ignore[union-attr]
    path, asked = "/api/datasources/seen/stop", {"method": "POST", "headers": {HEADER: "1"}}
    assert page.evaluate("([path, asked]) => fetch(path, asked).then(one => one.status)", [path, asked]) == 403


def test_differences_stand_next_to_each_other() -> None:
    before = "a: 1\n" + "".join(f"same{number}: x\n" for number in range(20)) + "b: 2\nc: 3\n"
    after = before.replace("b: 2", "b: 5").replace("c: 3\n", "") + "d: 4\ne: 5\n"
    lines = side_by_side(before, after)
    assert [line.kind for line in lines] == ["gap", "same", "same", "same", "changed", "changed", "added"]
    assert (lines[4].before, lines[4].after) == ("b: 2", "b: 5")
    assert [line.kind for line in side_by_side("a: 1\n", "a: 1\n")] == ["gap"]


def test_differences_of_long_texts_are_cut_and_cost_little() -> None:
    many = "".join(f"- {'a' if number % 2 else number}\n" for number in range(50_000))
    lines = side_by_side(f"x: 1\n{many}z: 1\n", f"x: 1\n{many[::-1]}z: 1\n")
    assert (lines[0].kind, lines[1].kind, lines[-1].kind) == ("same", "changed", "gap")
    assert len(lines) == MOST_SHOWN + 1
