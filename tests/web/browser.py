"""A real node in a process of its own, and a real browser that looks at it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
from playwright.sync_api import Browser, sync_playwright

WAIT_S = 60.0
CHROMIUM = shutil.which("chromium")
FLAGS = ["--no-sandbox", "--headless", "--disable-gpu", "--disable-background-networking", "--no-first-run"]
UP = (
    "import sys; from pathlib import Path; from headgate.cli.up import up; "
    "up(database=None, host=None, port=int(sys.argv[2]), name='alpha', advertise=None, home=Path(sys.argv[1]), "
    "demo=False, no_auth=sys.argv[3] == 'open')"
)


class NodeProcess:
    """`headgate up`, in a home of its own."""

    def __init__(self, home: Path, *, auth: bool = True) -> None:
        self.home = home
        self._auth = auth
        self._process: subprocess.Popen[bytes] | None = None
        self.port = 0

    def start(self) -> None:
        """On the same port as before, if there was one."""
        self.home.mkdir(parents=True, exist_ok=True)
        file = self.home / "node.json"
        file.unlink(missing_ok=True)
        environment = {name: text for name, text in os.environ.items() if not name.startswith("HEADGATE_")}
        with (self.home / "node.log").open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-c", UP, str(self.home), str(self.port), "" if self._auth else "open"],
                cwd=self.home,
                env=environment,
                stdout=log,
                stderr=log,
            )
        wait_until(lambda: file.exists() or self._ended(), "the node is up")
        self.url: str = json.loads(file.read_text())["url"]
        self.port = int(self.url.rpartition(":")[2])

    def kill(self) -> None:
        """As a crash does."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        """As a person does."""
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(20)
            except subprocess.TimeoutExpired:
                self.kill()

    @property
    def token(self) -> str:
        """An admin's."""
        return (self.home / "token").read_text().strip()

    def call(self, method: str, path: str, **arguments: Any) -> Any:
        """The API, as an admin."""
        headers = {"Authorization": f"Bearer {self.token}"} if self._auth else {}
        answer = httpx.request(method, self.url + path, headers=headers, timeout=30, **arguments)
        answer.raise_for_status()
        return answer.json() if answer.content else None

    def apply(self, **datasources: Any) -> None:
        """Create or change these; `_` in a name stands for `-`."""
        named = {name.replace("_", "-"): document for name, document in datasources.items()}
        self.call("POST", "/api/apply", json={"datasources": named})

    def clear(self) -> None:
        """No datasources, for the next test."""
        for one in self.call("GET", "/api/datasources")["items"]:
            self.call("DELETE", f"/api/datasources/{one['name']}")

    def _ended(self) -> bool:
        assert self._process is not None
        if self._process.poll() is not None:
            raise AssertionError(f"the node ended:\n{(self.home / 'node.log').read_text()[-4000:]}")
        return False


@contextmanager
def running_node(home: Path, *, auth: bool = True) -> Iterator[NodeProcess]:
    """A node while the body runs."""
    node = NodeProcess(home, auth=auth)
    try:
        node.start()
        yield node
    finally:
        node.stop()


@contextmanager
def running_browser() -> Iterator[Browser]:
    """Debian's Chromium, without a window."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        try:
            yield browser
        finally:
            browser.close()


def wait_until(holds: Callable[[], Any], what: str) -> None:
    """Look again until it holds."""
    end_s = time.monotonic() + WAIT_S
    while not holds():
        assert time.monotonic() < end_s, f"in vain waited until {what}"
        time.sleep(0.05)
