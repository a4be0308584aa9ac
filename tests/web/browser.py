"""A real browser, and the nodes it looks at."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright

from headgate.testing.processes import NodeProcess

# The shell is the same engine without the rest of a browser: a new page takes a quarter of the time.
CHROMIUM = shutil.which("chromium-headless-shell") or shutil.which("chromium")
LAUNCH_MS = 180_000.0  # Several browsers may start at once, on two cores.
WAIT_MS = 120_000  # For what a page should show.
FLAGS = ["--no-sandbox", "--headless", "--disable-gpu", "--disable-background-networking", "--no-first-run"]

needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")


@contextmanager
def running_node(home: Path, *flags: str) -> Iterator[NodeProcess]:
    """A node with a database of its own, while the body runs."""
    node = NodeProcess.start(home, flags=flags)
    try:
        yield node
    finally:
        node.end()


def sign_in_link(node: NodeProcess, token: str = "") -> str:
    """A link that signs in once, as `headgate console` makes it."""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    return node.url + str(node.request("POST", "/api/sign-in", headers=headers).raise_for_status().json()["path"])


@contextmanager
def running_browser() -> Iterator[Browser]:
    """Debian's Chromium, without a window."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS, timeout=LAUNCH_MS)
        try:
            yield browser
        finally:
            browser.close()


def opened(
    context: BrowserContext, node: NodeProcess, path: str = "/", token: str = "", *, is_live: bool = True
) -> tuple[Page, list[str]]:
    """A page of somebody who has signed in, and a list that gets what its scripts complain of."""
    page, complaints = context.new_page(), []
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("console", lambda said: complaints.append(said.text) if "Security Policy" in said.text else None)
    page.goto(sign_in_link(node, token))
    page.goto(node.url + path)
    if is_live:
        expect(page.locator("#link")).to_have_text("live")
    return page, complaints


def say(page: Page, verb: str) -> None:
    """Press this button of the dialog."""
    page.get_by_role("dialog").get_by_role("button", name=verb, exact=True).click()
