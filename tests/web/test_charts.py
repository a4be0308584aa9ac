"""Charts, in a real browser, under the policy of the console's pages. No node is needed: the page is made here."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, Route, expect

from headgate.web.console import pages
from headgate.web.console.assets import assets
from tests.web.browser import needs_chromium

WAIT_MS = 60_000
HOST = "http://charts.test"
HOSTILE = "<img src=x onerror='window.pwned = 1'>"
FROM_S = 1_783_598_400  # A Thursday, 12:00 UTC.
PAGE = """<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Charts</title>
<link rel="stylesheet" href="/static/console.css"><link rel="stylesheet" href="/static/chart.css">
<script type="module" src="/page.js"></script></head>
<body><main id="main"><h1>Charts</h1><div id="rate"></div><div id="lag"></div>
<svg id="spark" class="spark" width="120" height="24"></svg></main></body></html>"""
SCRIPT = """import { chart, spark, perSecond, scaleOf, timesOf } from "/static/chart.js";
Object.assign(window, { chart, spark, perSecond, scaleOf, timesOf }); window.ready = true;"""

pytestmark = needs_chromium


def answer(route: Route) -> None:
    """The page and its script; everything else is an asset of the package."""
    path = route.request.url.removeprefix(HOST)
    if path == "/":
        route.fulfill(body=PAGE, content_type="text/html", headers=pages.HEADERS)
    elif path == "/page.js":
        route.fulfill(body=SCRIPT, content_type="text/javascript")
    elif (found := assets().get(path.removeprefix("/static/"))) is not None:
        route.fulfill(body=found.content, content_type=found.media_type)
    else:
        route.fulfill(status=404, body="")


@pytest.fixture(params=["light", "dark"])
def page(browser: Browser, request: pytest.FixtureRequest) -> Iterator[Page]:
    context = browser.new_context(viewport={"width": 900, "height": 700}, timezone_id="UTC", color_scheme=request.param)
    page = context.new_page()
    page.route("**/*", answer)
    problems: list[str] = []
    page.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.goto(HOST + "/")
    page.wait_for_function("() => window.ready", timeout=WAIT_MS)
    yield page
    assert [one for one in problems if "favicon" not in one] == []  # The policy refused nothing.
    context.close()


def draw(page: Page, id: str, series: dict[str, list[float | None]], unit: str, step_s: int = 60) -> None:
    data: dict[str, Any] = {
        "series": [{"name": name, "values": values} for name, values in series.items()],
        "unit": unit,
        "range": {"from_s": FROM_S, "step_s": step_s, "points": len(next(iter(series.values())))},
        "label": "Records",
    }
    page.evaluate(f"data => chart(document.getElementById('{id}'), data)", data)


def texts(page: Page, id: str) -> list[str]:
    return page.locator(f"#{id} .chart-text").all_text_contents()


def test_a_chart_has_axes_units_and_gaps_and_is_read_by_mouse_and_keyboard(page: Page) -> None:
    read: list[float | None] = [float(40 + n % 7) for n in range(60)]
    read[20:25] = [None] * 5
    written: list[float | None] = [None if one is None else one / 2 for one in read]
    draw(page, "rate", {"read": read, "written": written}, "per_s")
    assert texts(page, "rate")[:4] == ["0", "20/s", "40/s", "60/s"]
    assert "12:10" in texts(page, "rate")
    assert page.locator("#rate .chart-line").count() == 4  # Two series, each in two pieces.
    assert page.locator("#rate .chart-gap").count() == 1
    assert page.locator("#rate .chart-key").all_text_contents() == ["read", "written"]

    reading = page.locator("#rate .chart-reading")
    expect(reading).to_be_hidden()
    box = page.locator("#rate .chart-plot").bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + 56 + (box["width"] - 76) * 10.5 / 60, box["y"] + 80)
    expect(reading).to_have_text("Thu 9 Jul, 12:10read 43/swritten 22/s")
    page.mouse.move(box["x"] + 56 + (box["width"] - 76) * 22.5 / 60, box["y"] + 80)
    expect(reading).to_contain_text("nothing was reported")
    page.mouse.move(1, 1)
    expect(reading).to_be_hidden()

    page.locator("#rate").focus()
    page.keyboard.press("ArrowLeft")
    expect(reading).to_contain_text("12:59")
    page.keyboard.press("Home")
    expect(reading).to_contain_text("12:00")
    page.keyboard.press("ArrowRight")
    assert page.locator("#rate").get_attribute("aria-valuetext") == "Thu 9 Jul, 12:01, read 41/s, written 21/s"
    draw(page, "rate", {"read": [5.0] * 60, "written": [1.0] * 60}, "per_s")  # New data, and the reading stays.
    expect(reading).to_contain_text("12:01")
    expect(reading).to_contain_text("read 5/s")
    page.keyboard.press("Escape")
    expect(reading).to_be_hidden()


def test_names_are_text_and_a_narrow_chart_keeps_within_its_page(page: Page) -> None:
    draw(page, "lag", {HOSTILE: [0.0, None, 700.0, None]}, "seconds", step_s=3600)
    assert page.locator("#lag .chart-key").text_content() == HOSTILE
    assert page.locator("#lag .chart-dot").count() == 2
    page.set_viewport_size({"width": 375, "height": 700})
    page.wait_for_function(
        "() => document.querySelector('#lag .chart-plot').getAttribute('width') < 380", timeout=WAIT_MS
    )
    assert page.evaluate("document.documentElement.scrollWidth") <= 375
    page.locator("#lag").focus()
    for key in ("End", "Home"):
        page.keyboard.press(key)
        box = page.locator("#lag .chart-reading").bounding_box()
        assert box is not None
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= 375
    assert page.evaluate("window.pwned") is None


def test_scales_are_round_and_times_are_those_of_the_readers_clock(page: Page) -> None:
    def scale(most: float, unit: str) -> Any:
        return page.evaluate(f"scaleOf({json.dumps(most)}, {json.dumps(unit)})")

    assert scale(0, "per_s")[-1] > 0
    assert scale(7, "count") == [0, 2, 4, 6, 8]
    assert scale(1, "count") == [0, 1]
    assert scale(0.3, "per_s")[-1] >= 0.3
    assert scale(0.05, "per_s") == [0, 0.1]  # Smaller steps would all be told as 0.1.
    assert scale(700, "seconds") == [0, 300, 600, 900]
    assert scale(3 * 86400 * 40, "seconds")[-1] >= 3 * 86400 * 40
    grid = {"from_s": FROM_S, "step_s": 3600, "points": 168}
    times = page.evaluate("grid => timesOf(grid, 800)", grid)
    assert all(at_s % 86400 == 0 for at_s in times)
    assert len(times) == 7


def test_a_spark_is_drawn_in_pieces_and_one_without_points_is_empty(page: Page) -> None:
    page.evaluate("spark(document.getElementById('spark'), [1, 2, null, 5, null, 3, 3])")
    assert page.locator("#spark .spark-line").count() == 3
    page.evaluate("spark(document.getElementById('spark'), [null, null])")
    assert page.locator("#spark path").count() == 0
