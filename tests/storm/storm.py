"""A storm from its beginning to its verdict.

1. Servers, nodes and datasources are started (`scene`), and the senders begin (`senders`).
2. The faults of the plan are made (`plan`, `faults`), while the auditor enters what arrives (`auditor`, `accounting`).
3. The last fault is over and healed. From here on every lane must move, or have ended, within a deadline (`settling`).
4. The senders end; what they have sent arrives; the datasources are stopped. Now nothing moves any more, and each lane
   is balanced: what was sent, rows, letters; and what Headgate itself says it has read, written and left out.
5. The nodes are told to stop, and must do so.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import signal
import tempfile
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

from headgate.testing.forks import FORKS_EXIST, Forks
from headgate.testing.processes import NodeProcess
from headgate.testing.servers import Servers
from tests.storm.databases import SETTINGS
from tests.storm.faults import Faults
from tests.storm.journal import Journal
from tests.storm.plan import STEADY, plan
from tests.storm.scene import Scene, Settings, set_up
from tests.storm.settling import Settling
from tests.storm.verdict import Report, check_memory

PROGRESS_S = 10.0


def run(settings: Settings, show: Callable[[str], None] = print) -> Report:
    """Have a storm. What it leaves on the disk is removed if nothing is wrong."""
    folder = Path(tempfile.mkdtemp(prefix="headgate-storm-"))
    journal = Journal(folder)
    journal.take_over("headgate.client")
    report = Report(settings.seed, settings.seconds, folder, faults=journal.counts, wrong=journal.wrong)
    try:
        with _servers(folder) as servers, _forks():
            asyncio.run(_run(settings, folder, servers, journal, report, show))
    finally:
        journal.close()
    if report.is_good and not settings.keep:
        shutil.rmtree(folder, ignore_errors=True)
    return report


@contextlib.contextmanager
def _servers(folder: Path) -> Iterator[Servers]:
    """What they have logged stays when they go."""
    with Servers(SETTINGS) as servers:
        try:
            yield servers
        finally:
            for server in servers.all:
                (folder / f"{server.name}.log").write_text(server.log())


@contextlib.contextmanager
def _forks() -> Iterator[None]:
    """Nodes are started fast, as in tests."""
    if not FORKS_EXIST or NodeProcess.forks is not None:
        yield
        return
    forks = NodeProcess.forks = Forks()
    try:
        yield
    finally:
        NodeProcess.forks = None
        forks.close()


async def _run(
    settings: Settings, folder: Path, servers: Servers, journal: Journal, report: Report, show: Callable[[str], None]
) -> None:
    async with set_up(settings, folder, servers, journal) as scene, Tasks(journal) as tasks:
        show(
            f"a storm of {settings.seconds:.0f} s over {len(scene.nodes.members)} nodes and {len(scene.datasources)} "
            f"datasources, seed {settings.seed}, journal {journal.path}"
        )
        journal.begin()
        sending = [tasks.start(one.name, one.run()) for one in scene.senders]
        looking = tasks.start("the auditor", scene.auditor.run())
        tasks.start("the watch over memory", _progress(scene, journal, report, show))
        faults = Faults(journal, scene)
        tasks.start("the watch over nodes", faults.watch_nodes())
        await faults.run(_plan(settings, scene))
        await asyncio.sleep(max(0.0, settings.seconds - journal.now_s))
        settling = Settling(journal, report, scene, may_lose=settings.standby == "async")
        if settings.standby == "async":
            await settling.repeat_orders()
        await settling.wait_until_all_move()
        await settling.end_senders(sending)
        await settling.stop_all()
        looking.cancel()
        await settling.balance()
        await settling.keep_stories(folder)
        tasks.cancel()
        await _end(scene, journal)
        _figures(settings, scene, journal, report)


def _plan(settings: Settings, scene: Scene) -> Any:
    return plan(
        settings.seed,
        seconds=settings.seconds,
        gap_s=settings.gap_s,
        lease_s=settings.lease_s,
        standby=settings.standby,
        named=settings.named,
        datasources=sorted(scene.datasources),
        programs=sorted(scene.programs),
    )


class Tasks:
    """What goes on during the faults. A task that fails is wrong, and the others go on."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Tasks:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def start(self, name: str, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Begin one."""
        task = asyncio.create_task(self._guard(name, work), name=name)
        self._tasks.append(task)
        return task

    async def _guard(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except Exception as error:
            self._journal.fail(f"{name} failed: {type(error).__name__}: {error}")

    def cancel(self) -> None:
        """End all of them."""
        for task in self._tasks:
            task.cancel()


async def _progress(scene: Scene, journal: Journal, report: Report, show: Callable[[str], None]) -> None:
    auditor, before = scene.auditor, 0
    while True:
        if (size_kb := scene.nodes.memory_kb(STEADY)) is not None:
            report.memory.append((journal.now_s, size_kb))
        await asyncio.sleep(PROGRESS_S)
        made = sum(count for kind, count in journal.counts.items() if not kind.startswith("("))
        up = "".join(name if member.process else "-" for name, member in scene.nodes.members.items())
        line = (
            f"{journal.now_s:6.0f} s  {made:>4} faults  {auditor.rows:>9,} rows, "
            f"{(auditor.rows - before) / PROGRESS_S:>4.0f}/s  {auditor.missing} missing, {auditor.repeats} repeated, "
            f"{len(journal.wrong)} wrong  nodes {up}, {STEADY} has {(size_kb or 0) / 1024:.0f} MB"
        )
        show(line)
        journal.note(line)
        before = auditor.rows


async def _end(scene: Scene, journal: Journal) -> None:
    """The nodes are told to stop."""
    for name in scene.nodes.members:
        code = await scene.nodes.end(name, signal.SIGTERM)
        if code != 0:
            journal.fail(f"node {name} ended with {code} when all was well and it was told to stop")


def _figures(settings: Settings, scene: Scene, journal: Journal, report: Report) -> None:
    text, problem = check_memory(report.memory, settings.seconds)
    if problem is not None:
        journal.fail(problem)
    answered, called = (
        sum(one.answered for one in scene.callers),
        sum(one.last + 1 for one in scene.callers),
    )
    report.plain = frozenset(one.kind for one in scene.datasources.values() if not one.is_exact)
    report.figures |= {
        "resident memory of the steady node": text,
        "webhooks answered 202": f"{answered:,} of {called:,} calls",
        "starts of nodes that failed": f"{scene.nodes.failed_starts:,}",
    }
