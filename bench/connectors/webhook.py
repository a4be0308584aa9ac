"""Webhook → mapping of four fields → PostgreSQL, against Bento's `http_server` → `sql_insert`.

    python -m bench connectors.webhook

wrk calls both in turn, with the same body on as many connections, on the cores that PostgreSQL has too. Bento checks
no signature, so nothing is signed here; ours wants a token instead, and Bento nothing. What an answer promises: ours
answers 202 when the payload is durable in its inbox, from where it goes into the table a moment later, once, also
after a crash. Bento answers 200 when the row is in the table; a call that it did not answer may be there all the same,
and there again when the caller repeats it. After each round every call that was answered must be in the table.

Bento is measured with a transaction for each call, 64 at once, which is its default, and with calls gathered for some
milliseconds, as ours are.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import socket
import statistics
import time
from dataclasses import dataclass, field
from typing import Any

from bench.connectors import peers
from bench.dump.contest import PeerFailed
from bench.rig import SINK, Rig, report, running
from bench.scale import fetch
from bench.webhooks import CONNECTIONS, load, measured, wait_for_rows
from headgate.testing.servers import free_port

ROUNDS = 3
START_S = 60.0
PATH = "/hooks/hooks"  # Of our datasource, and of Bento's input.
FIELDS = peers.FIELDS[:4]
MAPPING = {"id": "id", "kind": "kind", "email": "lower(user.email)", "cents": "round(total * 100)"}
BATCHING: dict[str, dict[str, Any]] = {
    "Bento, a transaction a call": {},
    "Bento, calls of 5 ms at once": {"batching": {"count": CONNECTIONS, "period": "5ms"}},
}


@dataclass
class Receiver:
    """One of those who are called."""

    address: str
    pid: int
    table: str
    header: tuple[str, str]
    rounds: list[dict[str, float]] = field(default_factory=list)

    def take_round(self, url: str) -> None:
        """Call it, and look whether all that it has answered is there."""
        before = fetch(url, f"SELECT count(*) AS n FROM {self.table}")[0]["n"]
        took = measured(self.address, self.pid, self.header)
        assert took["refused"] == 0, f"{took['refused']} calls were refused"
        needed = before + int(took["calls"])
        rows = wait_for_rows(url, needed, self.table)
        assert rows >= needed, f"{needed - rows} calls that were answered are not in {self.table}"
        self.rounds.append(took)

    def median(self, name: str) -> float:
        """Of the rounds."""
        return statistics.median(one[name] for one in self.rounds)


def ours(rig: Rig) -> Receiver:
    """The node, with a webhook into a table."""
    document = {"source": {"type": "webhook"}, "mapping": {"set": MAPPING}}
    rig.node.apply({"hooks": {**document, "sink": {"type": "postgres", "url": SINK, "table": "hooks"}}})
    rig.node.wait_for("hooks", lambda found: found["worker_status"] == "RUNNING")
    return Receiver(rig.node.url, rig.node.process.pid, "hooks", ("Authorization", f"Bearer {rig.node.token}"))


def bento(rig: Rig, batching: dict[str, Any], until: contextlib.ExitStack) -> Receiver:
    """Bento, which runs until the end of this."""
    port = free_port()
    document = {
        "input": {"http_server": {"address": f"127.0.0.1:{port}", "path": PATH, "allowed_verbs": ["POST"]}},
        "output": {"sql_insert": {**peers.insert(rig.sink, FIELDS), **batching}},
    }
    folder = rig.node.home / f"bento-{port}"
    folder.mkdir()
    process, words = until.enter_context(peers.bento_running(peers.bento(), document, folder))
    ends_s = time.monotonic() + START_S
    while True:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return Receiver(f"http://127.0.0.1:{port}", process.pid, "bento", ("X-Peer", "bento"))
        if process.poll() is not None or time.monotonic() > ends_s:
            raise PeerFailed(f"Bento does not listen: {words.read_text(errors='replace')[-500:]}")
        time.sleep(0.05)


def main() -> dict[str, float]:
    """Run and print."""
    assert shutil.which("wrk"), "wrk is not installed: apt-get install wrk"
    with running() as rig, contextlib.ExitStack() as until:
        receivers = {"headgate": ours(rig)}
        asyncio.run(peers.make_table(rig.sink, "bento"))
        try:
            receivers |= {name: bento(rig, batching, until) for name, batching in BATCHING.items()}
        except PeerFailed as error:
            print(error)
        for one in receivers.values():
            load(one.address, 2, one.header)
        for _ in range(ROUNDS):  # In turn, because others use the machine.
            for one in receivers.values():
                one.take_round(rig.sink)
    figures: dict[str, float] = {}
    for name, one in receivers.items():
        figures[f"{name}, calls/s, median of {ROUNDS}"] = one.median("rate")
        figures[f"{name}, p50, ms"] = one.median("p50")
        figures[f"{name}, p99, ms"] = one.median("p99")
        figures[f"{name}, processor time per call, us"] = one.median("us")
    for name in list(receivers)[1:]:
        figures[f"against {name}"] = receivers["headgate"].median("rate") / receivers[name].median("rate")
    return report("webhook → mapping of four fields → PostgreSQL (python -m bench connectors.webhook)", figures)


if __name__ == "__main__":
    main()
