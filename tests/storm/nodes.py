"""The nodes of a storm, and somebody who starts them again as a supervisor would.

The steady node is started as people start one, and reaches the registry through a proxy that can be cut. The others
are forks of a server that has imported Headgate once, because they are started hundreds of times.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

from headgate.testing.processes import NodeProcess
from headgate.testing.servers import free_port
from tests.storm.plan import OTHERS, STEADY

TRY_AGAIN_S = 1.0
STOP_S = 60.0  # A node ends itself 45 s after SIGTERM.


class Member:
    """One node: where it is, and its process while there should be one."""

    def __init__(self, name: str, folder: Path, database: str) -> None:
        self.name = name
        self.home = folder / name
        self.port = free_port()
        self.database = database
        self.process: NodeProcess | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


class Nodes:
    """All of them. They have one token, which the first one makes."""

    def __init__(
        self, folder: Path, *, steady_database: str, database: str, lease_s: float, note: Callable[[str], None]
    ) -> None:
        self.members = {STEADY: Member(STEADY, folder, steady_database)}
        self.members |= {name: Member(name, folder, database) for name in OTHERS}
        self.token = ""
        self.failed_starts = 0  # Because the registry was away, or was taken away.
        self._environment = {"HEADGATE_LEASE_S": str(lease_s), "HEADGATE_INBOX_KEEP_S": "60"}
        self._note = note
        self._is_closing = False
        self._starting: list[asyncio.Future[NodeProcess]] = []

    def urls(self) -> list[str]:
        """Where nodes are, those that are down among them."""
        return [member.url for member in self.members.values()]

    async def start(self, name: str) -> None:
        """Start one, again and again until it is up."""
        member = self.members[name]
        while not self._is_closing:
            starting = asyncio.ensure_future(asyncio.to_thread(self._start, member))
            self._starting.append(starting)
            try:
                member.process = await asyncio.shield(starting)
            except RuntimeError as error:
                self.failed_starts += 1
                self._note(f"{name} did not start: {str(error).splitlines()[-1][:200]}")
                await asyncio.sleep(TRY_AGAIN_S)
            else:
                self.token = self.token or member.process.token
                return
            finally:
                if starting.done():  # Else it goes on, and `close` waits for it.
                    self._starting.remove(starting)

    def _start(self, member: Member) -> NodeProcess:
        environment = self._environment | {"HEADGATE_NODE_NAME": member.name}
        as_people_do = ["-m", "headgate.cli", "up", "--port", str(member.port)]
        return NodeProcess.start(
            member.home,
            database=member.database,
            environment=environment,
            port=member.port,
            program=as_people_do if member.name == STEADY else None,
            token=self.token,
        )

    async def end(self, name: str, how: signal.Signals) -> int:
        """End one; returns its exit code. One that does not end in time is killed, and that is its code."""
        member = self.members[name]
        process, member.process = member.process, None
        assert process is not None
        try:
            return await asyncio.to_thread(process.end, how, STOP_S)
        except subprocess.TimeoutExpired:
            return await asyncio.to_thread(process.end, signal.SIGKILL)

    async def pause(self, name: str, hold_s: float) -> None:
        """Stop one where it stands, for a while."""
        process = self.members[name].process
        assert process is not None
        process.pause()
        try:
            await asyncio.sleep(hold_s)
        finally:
            process.go_on()

    def ended(self, name: str) -> int | None:
        """The exit code of one that should be there and is not."""
        process = self.members[name].process
        return None if process is None else process.process.poll()

    def memory_kb(self, name: str) -> int | None:
        """Resident memory of one; None: it does not run."""
        process = self.members[name].process
        with contextlib.suppress(OSError, StopIteration):
            lines = Path(f"/proc/{process.process.pid}/status").read_text().splitlines() if process else []
            return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS:"))
        return None

    async def close(self) -> None:
        """Kill what runs, and what was just being started, each by its own pid."""
        self._is_closing = True
        started = await asyncio.gather(*self._starting, return_exceptions=True)
        found = [member.process for member in self.members.values()] + started
        processes = [one for one in found if isinstance(one, NodeProcess)]
        await asyncio.gather(*(asyncio.to_thread(one.end, signal.SIGKILL) for one in processes))
