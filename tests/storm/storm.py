"""A storm from its beginning to its verdict.

1. Servers, nodes and datasources are started, and whoever sends begins to.
2. The faults of the plan are made (`plan`, `faults`), while the auditor enters what arrives (`auditor`, `accounting`).
3. The last fault is over and healed. From here on every lane must move, or have ended, within a deadline.
4. The senders end; what they have sent arrives; the datasources are stopped. Now nothing moves any more, and each lane
   is balanced: what was sent, rows, letters; and what Headgate itself says it has read, written and left out.
5. The nodes are told to stop, and must do so.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import shutil
import signal
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headgate.testing.forks import FORKS_EXIST, Forks
from headgate.testing.processes import NodeProcess
from headgate.testing.servers import Servers, url_of
from tests.proxy import Proxy, listening
from tests.storm.auditor import Auditor
from tests.storm.databases import SETTINGS, Database, Registry
from tests.storm.faults import Faults
from tests.storm.journal import Journal
from tests.storm.nodes import Nodes
from tests.storm.operator import Operator
from tests.storm.plan import STEADY, Standby, plan
from tests.storm.senders import Caller, Program, Sender, senders_of
from tests.storm.settling import Settling
from tests.storm.verdict import Report, check_memory
from tests.storm.workload import SECRET, TABLES, datasources

PROGRESS_S = 10.0


@dataclass(frozen=True, slots=True)
class Settings:
    """What a storm is to be."""

    seconds: float
    seed: int
    datasources: int = 60
    gap_s: float = 3.0  # Between two faults, on average.
    lease_s: float = 5.0
    standby: Standby = "none"
    keep: bool = False  # The folder, even if nothing is wrong.


def run(settings: Settings, show: Callable[[str], None] = print) -> Report:
    """Have a storm."""
    folder = Path(tempfile.mkdtemp(prefix="headgate-storm-"))
    folder.chmod(0o755)
    journal = Journal(folder)
    report = Report(settings.seed, settings.seconds, folder)
    forks = Forks() if FORKS_EXIST and NodeProcess.forks is None else None
    NodeProcess.forks = forks or NodeProcess.forks
    servers = Servers(SETTINGS)
    try:
        asyncio.run(Storm(settings, folder, journal, report, servers, show).run())
    finally:
        if forks is not None:
            NodeProcess.forks = None
            forks.close()
        for server in servers.all:
            (folder / f"{server.name}.log").write_text(server.log())
        servers.close()
        report.wrong = journal.wrong
        report.faults = journal.counts
        journal.close()
        if report.is_good and not settings.keep:
            shutil.rmtree(folder, ignore_errors=True)
    return report


class Storm:
    """One storm."""

    def __init__(
        self,
        settings: Settings,
        folder: Path,
        journal: Journal,
        report: Report,
        servers: Servers,
        show: Callable[[str], None],
    ) -> None:
        self._settings = settings
        self._folder = folder
        self._journal = journal
        self._report = report
        self._servers = servers
        self._show = show
        self._chance = random.Random(f"{settings.seed}/senders")
        self._datasources = {one.name: one for one in datasources(settings.datasources, folder)}
        self._tasks: list[asyncio.Task[None]] = []
        report.plain = frozenset(one.kind for one in self._datasources.values() if not one.is_exact)

    async def run(self) -> None:
        """From its beginning to its verdict."""
        registry = await asyncio.to_thread(Registry, self._servers, self._settings.standby)
        self._sink = await asyncio.to_thread(Database, self._servers)
        await asyncio.to_thread(self._sink.primary.execute, TABLES)
        links = [Proxy(host.address) for host in registry.hosts]
        async with contextlib.AsyncExitStack() as stack:
            addresses = [await stack.enter_async_context(listening(link)) for link in links]
            self._nodes = Nodes(
                self._folder,
                steady_database=url_of(*addresses),
                database=url_of(*registry.hosts),
                lease_s=self._settings.lease_s,
                tell=self._journal.note,
            )
            stack.push_async_callback(self._nodes.close)
            self._operator = Operator(self._nodes, self._chance)
            stack.push_async_callback(self._operator.close)
            await self._begin()
            stack.callback(self._cancel)
            programs = {one.name: one for one in self._senders if isinstance(one, Program)}
            self._faults = Faults(
                journal=self._journal,
                nodes=self._nodes,
                links=links,
                registry=registry,
                sink=self._sink,
                operator=self._operator,
                datasources=self._datasources,
                programs=programs,
            )
            await self._blow(sorted(programs))
            settling = Settling(
                journal=self._journal,
                report=self._report,
                operator=self._operator,
                auditor=self._auditor,
                datasources=list(self._datasources.values()),
                senders=self._senders,
            )
            await settling.wait_until_all_move()
            await settling.end_senders(self._sending)
            await settling.stop_all()
            self._looking.cancel()
            await settling.balance()
            await self._end()

    # The beginning.

    async def _begin(self) -> None:
        await self._nodes.start(STEADY)
        await asyncio.gather(*(self._nodes.start(name) for name in self._nodes.members if name != STEADY))
        secret = {"value": self._sink.primary.url}
        await self._operator.call("PUT", f"/api/secrets/{SECRET}", secret)
        await self._operator.apply({one.name: one.document(0) for one in self._datasources.values()})
        self._senders: list[Sender] = []
        for one in self._datasources.values():
            self._senders += senders_of(one, random.Random(self._chance.random()), self._nodes)
        self._auditor = Auditor(self._sink.primary.url, self._datasources.values(), self._senders, self._journal.fail)

    def _cancel(self) -> None:
        for task in self._tasks:
            task.cancel()
        self._auditor.close()

    def _spawn(self, name: str, work: Any) -> asyncio.Task[None]:
        async def guarded() -> None:
            try:
                await work
            except asyncio.CancelledError:
                raise
            except Exception as error:
                self._journal.fail(f"{name} failed: {type(error).__name__}: {error}")

        task = asyncio.create_task(guarded(), name=name)
        self._tasks.append(task)
        return task

    # The storm.

    async def _blow(self, programs: list[str]) -> None:
        given = self._settings
        self._show(
            f"a storm of {given.seconds:.0f} s over {len(self._nodes.members)} nodes and {len(self._datasources)} "
            f"datasources, seed {given.seed}, journal {self._journal.path}"
        )
        self._journal.begin()
        self._sending = [self._spawn(one.name, one.run()) for one in self._senders]
        self._looking = self._spawn("the auditor", self._auditor.run())
        self._spawn("progress", self._progress())
        self._spawn("the watch over nodes", self._faults.watch_nodes())
        faults = plan(
            given.seed,
            seconds=given.seconds,
            gap_s=given.gap_s,
            lease_s=given.lease_s,
            standby=given.standby,
            datasources=sorted(self._datasources),
            programs=programs,
        )
        await self._faults.run(faults)
        await asyncio.sleep(max(0.0, given.seconds - self._journal.now_s))

    async def _progress(self) -> None:
        before = 0
        while True:
            with contextlib.suppress(OSError):
                self._report.memory.append((self._journal.now_s, rss_kb(self._nodes.steady.pid)))
            await asyncio.sleep(PROGRESS_S)
            rows, audited = self._auditor.rows, self._auditor
            made = sum(count for kind, count in self._journal.counts.items() if not kind.startswith("("))
            up = "".join(name if member.process else "-" for name, member in self._nodes.members.items())
            memory = f"{self._report.memory[-1][1] / 1024:.0f} MB" if self._report.memory else "?"
            rate = (rows - before) / PROGRESS_S
            line = (
                f"{self._journal.now_s:6.0f} s  {made:>4} faults  {rows:>9,} rows, {rate:>5.0f}/s"
                f"  {audited.missing} missing, {audited.repeats} repeated, {len(self._journal.wrong)} wrong"
                f"  nodes {up}, {STEADY} has {memory}"
            )
            self._show(line)
            self._journal.note(line)
            before = rows

    # The end.

    async def _end(self) -> None:
        """The nodes are told to stop. What is known only now is put into the report."""
        text, problem = check_memory(self._report.memory, self._settings.seconds)
        self._report.figures["resident memory of the steady node"] = text
        if problem is not None:
            self._journal.fail(problem)
        answered = sum(one.answered for one in self._senders if isinstance(one, Caller))
        called = sum(one.last + 1 for one in self._senders if isinstance(one, Caller))
        self._report.figures["webhooks answered 202"] = f"{answered:,} of {called:,} calls"
        self._report.figures["starts that failed, registry away"] = f"{self._nodes.failed_starts:,}"
        self._cancel()
        for name in self._nodes.members:
            code = await self._nodes.end(name, signal.SIGTERM)
            if code != 0:
                self._journal.fail(f"node {name} ended with {code} when all was well and it was told to stop")


def rss_kb(pid: int) -> int:
    """Resident memory of a process."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS:"))
