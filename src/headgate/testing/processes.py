"""A node in a separate process, to be called over HTTP, stopped, and killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import httpx

from headgate.cli import home as homes
from headgate.testing.forks import Forked, Forks

LONG_S = 180.0  # On a machine that may be busy. Only what fails takes so long.


@dataclass
class NodeProcess:
    """One `headgate up`."""

    forks: ClassVar[Forks | None] = None  # If set, nodes are forks of this server, which start ten times as fast.

    process: subprocess.Popen[bytes] | Forked
    home: Path
    url: str
    token: str

    @classmethod
    def start(
        cls,
        home: Path,
        *,
        database: str | None = None,
        flags: tuple[str, ...] = (),
        environment: Mapping[str, str] | None = None,
        port: int = 0,
        program: Sequence[str] | None = None,
        token: str = "",
    ) -> NodeProcess:
        """Start one and wait until it is ready. Without a database it brings its own.

        `program` is a script to run in place of the command, such as one that plugs in a connector first.
        `token` is for a node whose database has tokens already.
        """
        home.mkdir(parents=True, exist_ok=True)
        inherited = {key: value for key, value in os.environ.items() if not key.startswith("HEADGATE_")}
        variables = {**inherited, "HEADGATE_HOME": str(home), "HEADGATE_LOG": "json", **(environment or {})}
        if database is not None:
            variables["HEADGATE_DATABASE"] = database
            variables.setdefault("HEADGATE_MASTER_KEY", "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=")
        process: subprocess.Popen[bytes] | Forked
        with (home / "node.log").open("ab") as log:
            arguments = ["up", "--port", str(port), *flags]
            if cls.forks is not None and program is None:
                process = cls.forks.start(arguments, env=variables, cwd=home, stdout=log, stderr=log)
            else:
                command = [sys.executable, *(program or ["-m", "headgate.cli", *arguments])]
                process = subprocess.Popen(command, env=variables, stdout=log, stderr=log, cwd=home)
        node = cls(process, home, "", token)
        try:
            node._wait_until_up()
        except BaseException:
            process.kill()  # Nobody else would end it.
            process.wait()
            raise
        return node

    def _wait_until_up(self) -> None:
        deadline = time.monotonic() + LONG_S
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                raise RuntimeError(f"the node ended while starting:\n{self.log()[-3000:]}")
            if (
                place := next((one for one in homes.places(self.home) if one.pid == self.process.pid), None)
            ) is not None:
                self.url = place.url
                token = self.home / "token"
                self.token = self.token or (token.read_text().strip() if token.exists() else "")
                return
            time.sleep(0.05)
        raise RuntimeError(f"the node did not start in {LONG_S:.0f} s:\n{self.log()[-3000:]}")

    def log(self) -> str:
        """What it has printed."""
        return (self.home / "node.log").read_text(errors="replace")

    def call(self, method: str, path: str, body: Any = None, **kwargs: Any) -> Any:
        """One call of the API; raises if it is refused."""
        answer = self.request(method, path, json=body, **kwargs) if body is not None else self.request(method, path)
        if answer.is_error:
            raise RuntimeError(f"{method} {path}: {answer.status_code} {answer.text}")
        return answer.json() if answer.content and "json" in answer.headers["content-type"] else answer.text

    def request(self, method: str, path: str, **kwargs: Any) -> httpx.Response:
        """One request, with the node's own token unless another is given."""
        headers = {"Authorization": f"Bearer {self.token}"} | kwargs.pop("headers", {})
        return httpx.request(method, self.url + path, headers=headers, timeout=LONG_S, **kwargs)

    def apply(self, datasources: dict[str, Any]) -> Any:
        """Publish datasources."""
        return self.call("POST", "/api/apply", {"datasources": datasources})

    def wait_for(self, name: str, is_so: Callable[[dict[str, Any]], bool], timeout_s: float = LONG_S) -> dict[str, Any]:
        """Until this holds of a datasource."""
        deadline, pause_s = time.monotonic() + timeout_s, 0.03
        while True:
            found: dict[str, Any] = self.call("GET", f"/api/datasources/{name}")
            if is_so(found):
                return found
            if time.monotonic() > deadline:
                raise RuntimeError(
                    f"{name} did not reach the expected state in {timeout_s:.0f} s: {found}\n{self.log()[-2000:]}"
                )
            time.sleep(pause_s)
            pause_s = min(pause_s * 1.25, 0.1)  # Looking often would be what keeps a small machine busy.

    def pause(self) -> None:
        """Stop it where it stands (SIGSTOP): it neither beats nor answers, and keeps all its connections."""
        self.process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """Let a paused one run again (SIGCONT)."""
        self.process.send_signal(signal.SIGCONT)

    def end(self, how: signal.Signals = signal.SIGTERM, timeout_s: float = LONG_S) -> int:
        """End it and wait; returns its exit code."""
        if self.process.poll() is None:
            self.process.send_signal(how)
            if how == signal.SIGKILL:
                self.process.send_signal(signal.SIGCONT)
        return self.process.wait(timeout_s)
