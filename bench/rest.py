"""A node that has little to do: open consoles, quiet datasources, scrapes, and publishes that come and go.

    python -m bench rest

Shares of a core are processor time, so that a busy machine changes them little.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from typing import Any

import httpx

from bench.rig import cpu_s, report, rss_kb, running
from bench.scale import quiet, wait_for_running
from headgate.testing.processes import NodeProcess

CONSOLES, WATCHED = 50, 300
MANY = 5000
CHUNK = 500  # Datasources in one apply.
SETTLE_S = 40.0  # Silent sources prove their version after half a minute; then it is at rest.
REST_S = 60.0
ROUNDS = 1000


def steady() -> dict[str, Any]:
    """One record a second, so that every snapshot of a console differs from the last."""
    return {"source": {"type": "generator", "rate": 1}, "sink": {"type": "blackhole"}}


def share_of_core(node: NodeProcess, span_s: float) -> float:
    """Percent of one core that the node uses over a span."""
    before, began = cpu_s(node.process.pid), time.monotonic()
    time.sleep(span_s)
    return (cpu_s(node.process.pid) - before) / (time.monotonic() - began) * 100


@contextlib.contextmanager
def consoles(node: NodeProcess, number: int) -> Iterator[list[int]]:
    """This many open consoles, each of which reads all that comes; yields how many bytes each has read."""
    read, over = [0] * number, threading.Event()

    def follow(index: int) -> None:
        headers = {"Authorization": f"Bearer {node.token}"}
        with (
            contextlib.suppress(httpx.HTTPError),
            httpx.stream("GET", f"{node.url}/api/overview", headers=headers, timeout=10.0) as answer,
        ):
            for piece in answer.iter_raw():
                read[index] += len(piece)
                if over.is_set():
                    return

    threads = [threading.Thread(target=follow, args=(index,), daemon=True) for index in range(number)]
    for thread in threads:
        thread.start()
    try:
        yield read
    finally:
        over.set()
        for thread in threads:
            thread.join()


def watched() -> dict[str, float]:
    """Consoles on a node whose datasources move all the time."""
    with running() as (node, url):
        node.apply({f"steady-{number}": steady() for number in range(WATCHED)})
        wait_for_running(url, WATCHED)
        time.sleep(5.0)
        alone = share_of_core(node, 20.0)
        with consoles(node, CONSOLES) as read:
            time.sleep(3.0)
            begun = sum(read)
            together = share_of_core(node, 20.0)
            each_kb = (sum(read) - begun) / CONSOLES / 20.0 / 1000
    return {
        f"{WATCHED} datasources of one record a second, % of one core": alone,
        f"and {CONSOLES} consoles, % of one core more": together - alone,
        "each console reads, KB/s": each_kb,
    }


def resting() -> dict[str, float]:
    """Datasources of one record a minute, and what it costs to be scraped with them."""
    with running() as (node, url):
        for begin in range(0, MANY, CHUNK):
            node.apply({f"quiet-{number}": quiet(url) for number in range(begin, begin + CHUNK)})
        wait_for_running(url, MANY)
        time.sleep(SETTLE_S)
        share = share_of_core(node, REST_S)
        before = cpu_s(node.process.pid)
        text = node.request("GET", "/metrics").content
        scrape_s = cpu_s(node.process.pid) - before
    return {
        f"{MANY:,} datasources of one record a minute, % of one core": share,
        "a scrape of them, ms of processor time": scrape_s * 1000,
        "its text, MB": len(text) / 1e6,
    }


def coming_and_going() -> dict[str, float]:
    """Publish a datasource, see it run, delete it: again and again."""
    with running() as (node, _):
        sizes = []
        with httpx.Client(base_url=node.url, headers={"Authorization": f"Bearer {node.token}"}, timeout=60.0) as client:
            for round in range(2 * ROUNDS + 1):
                if round % ROUNDS == 0:
                    time.sleep(5.0)
                    sizes.append(rss_kb(node.process.pid))
                name = f"passing-{round}"
                document = {"source": {"type": "generator", "rate": 100}, "sink": {"type": "blackhole"}}
                client.post("/api/apply", json={"datasources": {name: document}}).raise_for_status()
                while client.get(f"/api/datasources/{name}").json()["worker_status"] != "RUNNING":
                    time.sleep(0.01)
                client.delete(f"/api/datasources/{name}").raise_for_status()
    first, second, third = sizes
    return {
        "resident memory before, MB": first / 1000,
        f"after {ROUNDS:,} publishes and deletes, MB": second / 1000,
        f"after {ROUNDS:,} more, MB": third / 1000,
        "the second thousand adds, %": (third - second) / second * 100,
    }


def main() -> dict[str, float]:
    """Run and print."""
    return report("A node at rest (python -m bench rest)", {**watched(), **resting(), **coming_and_going()})


if __name__ == "__main__":
    main()
