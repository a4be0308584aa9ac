"""The console while things break: two nodes on one database, one of which is killed, and a database that goes away."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import expect

from headgate.testing.processes import NodeProcess
from tests.proxy import Proxy, proxied
from tests.web.browser import needs_chromium, running_browser, sign_in_link
from tests.web_node import Databases

WAIT_MS = 120_000
TICKING = {"source": {"type": "generator", "rate": 5}, "sink": {"type": "blackhole"}}


class Link:
    """A proxy in front of the database, in its own thread: the browser's driver has this one."""

    def __init__(self, database: str) -> None:
        self._database = database
        self._loop = asyncio.new_event_loop()
        self._ready, self._over = threading.Event(), asyncio.Event()
        self._proxy: Proxy | None = None
        self.url = ""

    def run(self) -> None:
        """Until it is over."""
        self._loop.run_until_complete(self._serve())

    async def _serve(self) -> None:
        async with proxied(self._database) as (self._proxy, self.url):
            self._ready.set()
            await self._over.wait()

    def wait(self) -> None:
        """Until it takes connections."""
        assert self._ready.wait(60)

    def end(self) -> None:
        """Take no more."""
        self._loop.call_soon_threadsafe(self._over.set)

    def refuse(self, refuses: bool) -> None:
        """End what is open and refuse what comes, or take it again."""
        self._loop.call_soon_threadsafe(self._change, refuses)

    def _change(self, refuses: bool) -> None:
        assert self._proxy is not None
        self._proxy.refuse = refuses
        self._proxy.cut()


@contextmanager
def linked(database: str) -> Iterator[Link]:
    """A way to the database that can be cut."""
    link = Link(database)
    thread = threading.Thread(target=link.run, daemon=True)
    thread.start()
    link.wait()
    try:
        yield link
    finally:
        link.end()
        thread.join(30)


@needs_chromium
def test_a_node_that_is_killed_and_a_database_that_is_away_are_said_and_go_by_themselves(
    databases: Databases, tmp_path: Path
) -> None:
    """The page of the node that lives shows where the streams went; then the database goes: that is the headline."""
    expect.set_options(timeout=WAIT_MS)
    direct = databases.make()
    with linked(direct) as link, running_browser() as browser:
        first = NodeProcess.start(tmp_path / "first", database=link.url, flags=("--name", "first"))
        second = NodeProcess.start(tmp_path / "second", database=direct, flags=("--name", "second"), token=first.token)
        try:
            first.apply({f"ticking-{number}": TICKING for number in range(4)})
            page = browser.new_context(viewport={"width": 1280, "height": 800}).new_page()
            page.goto(sign_in_link(first))
            expect(page.locator("#link")).to_have_text("live")
            expect(page.locator("#nodes")).to_have_text("2 nodes")
            second.end(signal.SIGKILL)
            expect(page.locator("#nodes")).to_have_text("1 node")
            for number in range(4):
                row = page.locator(f"tbody[data-name='ticking-{number}']")
                expect(row.locator("[data-cell=node]")).to_have_text("first")
                expect(row.locator("[data-cell=health]")).to_have_text("ok")

            link.refuse(True)
            expect(page.locator("#headline")).to_have_text("The database is away")
            expect(page.locator("#link")).to_have_text("database away")
            expect(page.locator("#away")).to_contain_text("nothing can be changed now")
            link.refuse(False)
            expect(page.locator("#link")).to_have_text("live")
            expect(page.locator("#headline")).to_have_text("All is well")
            expect(page.locator("#away")).to_be_hidden()
        finally:
            second.end(signal.SIGKILL)
            first.end()
