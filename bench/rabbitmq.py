"""Whose next consumer takes over sooner, and whose old one can still act: Headgate's groups and RabbitMQ.

    python -m bench.rabbitmq

RabbitMQ's queues can have a single active consumer, which is what a group is. A program handles messages
(`bench.programs`) and a second one waits. The first is killed (kill -9), stopped for a while (SIGSTOP, and SIGCONT when
the second is at work), or cut off from the node or the broker but not from the table it writes to. Counted are the
seconds until the second handles a message, and what the first wrote after that. All figures are from one run; scenes
that only wait do so side by side. RabbitMQ runs once with its default heartbeat, and once with ours.
"""

from __future__ import annotations

import contextlib
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args
from uuid import uuid4

from bench.broker import broker, missing
from bench.programs import QUEUE, TABLES, WORK_S
from bench.scale import fetch
from bench.valve import Valve
from headgate.store.embedded import EmbeddedServer
from headgate.testing.processes import NodeProcess

Fault: TypeAlias = Literal["killed", "stopped", "cut off"]

REPEATS = 3
SIDE_BY_SIDE = 6  # Scenes, of two programs each.
LONGEST_S = 240.0
AFTERWARDS_S = 5.0  # How long the old one is watched, once it has been let go on.
NOWHERE = "http://127.0.0.1:9"  # A node says that it is here, so programs know no way past the valve.

EXPLAINED = """
  RabbitMQ is faster after kill -9. The kernel closes the connection of a dead program, and RabbitMQ takes that for its
  end. Headgate waits for the lease, because a closed connection does not prove that the program has stopped.
  One that is stopped or cut off closes nothing, so both wait: Headgate for a lease, RabbitMQ for two to three
  heartbeats.
  A stopped program has a message in hand when it goes on, and the next one is active by then. What it had begun is
  late with both. Headgate's epoch lets the table refuse it; RabbitMQ gives the program nothing to be refused by.
"""


@dataclass(frozen=True)
class Scene:
    """What was seen once."""

    after_s: float  # Until the second handled a message.
    late: int  # Records that the first wrote after that.
    refused: int  # Records of the first that the fence refused.


@dataclass(frozen=True)
class Contestant:
    """One of those who are compared."""

    title: str
    kind: str
    port: int
    heartbeat_s: str
    environment: dict[str, str]
    prepare: Callable[[str], None]
    waiting: Callable[[str], int]  # How many programs have joined.
    repeats: int = REPEATS  # Of what takes long.

    @contextlib.contextmanager
    def program(self, scene: str, port: int) -> Iterator[subprocess.Popen[bytes]]:
        """One that runs."""
        url = f"127.0.0.1:{port}" if self.kind == "rabbitmq" else f"http://127.0.0.1:{port}"
        process = subprocess.Popen(
            [sys.executable, "-m", "bench.programs", self.kind, url, scene, self.heartbeat_s],
            env={**os.environ, **self.environment},
            cwd=Path(__file__).parent.parent,
            stderr=subprocess.DEVNULL,
        )
        try:
            yield process
        finally:
            process.kill()
            process.wait()

    def play(self, fault: Fault) -> Scene:
        """One scene, from the start of two programs to their end."""
        scene, target = f"{fault}-{uuid4()}", self.environment["TARGET"]
        fetch(target, "INSERT INTO fence (scene) VALUES ($1)", scene)
        self.prepare(scene)
        began = "SELECT min(at) FROM handled WHERE scene = $1 AND pid = $2"
        with Valve(self.port) as valve, self.program(scene, valve.port) as first:
            until(lambda: fetch(target, began, scene, first.pid)[0][0])
            with self.program(scene, self.port) as second:
                until(lambda: self.waiting(scene) == 2)
                time.sleep(2.0 + WORK_S * 10 * (uuid4().int % 10) / 10)  # Not always in the same moment of a beat.
                at = fetch(target, "SELECT clock_timestamp()")[0][0]
                _begin(fault, first, valve)
                taken_at = until(lambda: fetch(target, began, scene, second.pid)[0][0])
                time.sleep(1.0)
                _end(fault, first, valve)
                time.sleep(AFTERWARDS_S)
        late = "SELECT count(*) FROM handled WHERE scene = $1 AND pid = $2 AND at > $3"
        refused = "SELECT count(*) FROM refused WHERE scene = $1 AND pid = $2"
        return Scene(
            (taken_at - at).total_seconds(),
            fetch(target, late, scene, first.pid, taken_at)[0][0],
            fetch(target, refused, scene, first.pid)[0][0],
        )


def _begin(fault: Fault, program: subprocess.Popen[bytes], valve: Valve) -> None:
    if fault == "cut off":
        valve.shut()
    else:
        program.send_signal(signal.SIGKILL if fault == "killed" else signal.SIGSTOP)


def _end(fault: Fault, program: subprocess.Popen[bytes], valve: Valve) -> None:
    if fault == "cut off":
        valve.open()
    elif fault == "stopped":
        program.send_signal(signal.SIGCONT)


def until(look: Callable[[], Any]) -> Any:
    """Until this is something; returns that."""
    deadline = time.monotonic() + LONGEST_S
    while not (found := look()):
        assert time.monotonic() < deadline, "it did not come to that"
        time.sleep(0.2)
    return found


def groups(node: NodeProcess, target: str, *, is_fenced: bool = False) -> Contestant:
    """Headgate."""

    def waiting(scene: str) -> int:
        query = 'SELECT count(*) FROM headgate.consumer c JOIN headgate.consumer_group g ON g.id = c."group"'
        count: int = fetch(target, f"{query} WHERE g.stream = $1", scene)[0][0]
        return count

    port = int(node.url.rpartition(":")[2])
    environment = {"TARGET": target, "TOKEN": node.token}
    title, kind = ("Headgate, fenced", "fenced") if is_fenced else ("Headgate, lease 10 s", "headgate")
    return Contestant(title, kind, port, "", environment, lambda scene: None, waiting)


def queues(port: int, target: str, heartbeat_s: int | None, repeats: int) -> Contestant:
    """RabbitMQ."""
    import pika

    parameters = pika.ConnectionParameters("127.0.0.1", port)

    def prepare(scene: str) -> None:
        """A queue with more messages than will be handled."""
        with pika.BlockingConnection(parameters) as connection:
            channel = connection.channel()
            channel.queue_declare(scene, arguments=QUEUE)
            for number in range(int(2 * LONGEST_S / WORK_S)):
                channel.basic_publish("", scene, str(number).encode())

    def waiting(scene: str) -> int:
        with pika.BlockingConnection(parameters) as connection:
            count: int = connection.channel().queue_declare(scene, passive=True).method.consumer_count
            return count

    title = f"RabbitMQ, heartbeat {heartbeat_s or 60} s"
    text = str(heartbeat_s or "")
    return Contestant(title, "rabbitmq", port, text, {"TARGET": target}, prepare, waiting, repeats)


def play_all(contestants: list[Contestant]) -> dict[tuple[str, Fault], list[Scene]]:
    """What is over in a moment by itself, then all that waits."""
    found: dict[tuple[str, Fault], list[Scene]] = {}
    for one in contestants:
        if one.kind == "rabbitmq":
            found[one.title, "killed"] = [one.play("killed") for _ in range(REPEATS)]
    left = [(one, fault) for one in contestants for fault in get_args(Fault) if (one.title, fault) not in found]
    left.sort(key=lambda pair: pair[0].repeats)  # The longest is played once, and begins first.
    with ThreadPoolExecutor(SIDE_BY_SIDE) as pool:
        scenes = {(one.title, fault): [pool.submit(one.play, fault) for _ in range(one.repeats)] for one, fault in left}
        return found | {key: [one.result() for one in futures] for key, futures in scenes.items()}


def table(found: dict[tuple[str, Fault], list[Scene]], titles: list[str]) -> dict[str, Any]:
    """Print it, and return the figures."""
    figures: dict[str, Any] = {}
    print("\nthe next active consumer, Headgate and RabbitMQ (python -m bench.rabbitmq)")
    print(f"  {'':<48}" + "".join(f"{title:>26}" for title in titles))
    for fault in get_args(Fault):
        columns = [found[title, fault] for title in titles]
        rows: dict[str, list[float]] = {
            "until the next one handles a message, s": [statistics.median(s.after_s for s in c) for c in columns],
            "records of the old one after that": [sum(s.late for s in c) for c in columns],
            "records of the old one that the fence refused": [sum(s.refused for s in c) for c in columns],
            "times": [len(c) for c in columns],
        }
        print(f"  {fault}")
        for name, values in rows.items():
            texts = [f"{value:.2f}" if isinstance(value, float) else str(value) for value in values]
            print(f"    {name:<46}" + "".join(f"{text:>26}" for text in texts))
            figures |= {f"{fault}, {title}, {name}": value for title, value in zip(titles, values, strict=True)}
    print(EXPLAINED, end="")
    return figures


def main() -> dict[str, Any]:
    """Run and print."""
    if (why := missing()) is not None:
        print(f"\nskipped: {why}")
        return {"skipped": why}
    with tempfile.TemporaryDirectory(prefix="hgb") as folder, broker() as port:
        home = Path(folder) / "home"
        home.mkdir()
        server = EmbeddedServer.join(home)
        try:
            node = NodeProcess.start(home, environment={"HEADGATE_ADVERTISE": NOWHERE})
            try:
                for statement in TABLES.split(";")[:-1]:
                    fetch(server.url, statement)
                contestants = [
                    groups(node, server.url),
                    queues(port, server.url, None, repeats=1),
                    queues(port, server.url, 10, repeats=REPEATS),
                ]
                return table(play_all(contestants), [one.title for one in contestants])
            finally:
                node.end(signal.SIGTERM)
        finally:
            server.leave()


if __name__ == "__main__":
    main()
