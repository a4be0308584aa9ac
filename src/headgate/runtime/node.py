"""A node: one `headgate up` process. This module only assembles; each part is a module of its own.

A node's life is a sequence of *incarnations*. One begins with a row and a beat, and usually lasts as long as the
process. If another node found it dead (it was stopped, or cut off, for longer than its lease), its next beat finds no
row: everything it held is somebody else's, so it drops its workers and begins a new incarnation with nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from uuid import UUID

import structlog

from headgate.clock import boot_s
from headgate.config import Settings
from headgate.core import lease
from headgate.core.lease import Observer
from headgate.errors import StoreError
from headgate.ids import new_id
from headgate.runtime import beat as beats
from headgate.runtime.beat import Beat
from headgate.runtime.forever import forever
from headgate.runtime.inbox import InboxHub
from headgate.runtime.manager import WorkerManager
from headgate.runtime.registry import Registry
from headgate.runtime.registry_file import RegistryFile
from headgate.store.database import Database
from headgate.store.inbox import InboxTable
from headgate.store.logs import Logs
from headgate.store.migrate import migrate
from headgate.store.nodes import Nodes
from headgate.store.secrets import Keyring, Secrets
from headgate.store.streams import Streams
from headgate.store.tokens import Tokens
from headgate.store.wake import Listener, Waker
from headgate.telemetry import logs

SIGN_S = 0.25
HOUSEKEEPING_S = 30.0
CONNECT_RETRY_S = 2.0
LAST_S = 3.0  # For loops to end once they are told to.

log = structlog.get_logger()


class Node:
    """Everything that runs in one process, but the HTTP server."""

    def __init__(self, settings: Settings, url: str, keyring: Keyring | None) -> None:
        self.settings = settings
        self.url = url
        self.name = settings.node_name or socket.gethostname()
        self.address = settings.advertise or None
        self._keyring = keyring
        self._tasks: set[asyncio.Task[Any]] = set()
        self._beat: Beat | None = None
        self._manager_task: asyncio.Task[None] | None = None
        self.loop_delay_s = 0.0
        self.manager: WorkerManager | None = None

    async def start(self) -> None:
        """Connect, migrate, and begin to work."""
        beats.label_tasks(asyncio.get_running_loop())
        self.database = await _connect(self.url)
        applied = await migrate(self.database)
        if applied:
            log.info("database set up", migrations=applied)
        self.waker = Waker(self.database)
        self.listener = Listener(self.url)
        self.nodes = Nodes(self.database)
        self.streams = Streams(self.database)
        self.tokens = Tokens(self.database)
        self.logs = Logs(self.database)
        self.inbox = InboxTable(self.database)
        self.inboxes = InboxHub(self.inbox)
        file = self.settings.registry_file
        read_only = f"the registry is the file {file}; edit that" if file else ""
        self.registry = Registry(self.database, Secrets(self.database, self._keyring), self.waker, read_only=read_only)
        self._file = RegistryFile(file, self.registry) if file else None
        if self._file is not None:
            await self._file.load()
        self._installation = await self.registry.datasources.installation()
        await self._read_set_aside()
        await self._incarnate()
        self._listen()
        for name, loop in self._loops().items():
            self._tasks.add(asyncio.create_task(forever(loop, name), name=name))
        log.info("node started", node=self.name, id=str(self.incarnation))

    async def stop(self) -> None:
        """Drain every stream, leave, and close."""
        if self.manager is not None:
            await self.manager.stop()
        await self._end_manager()
        if self._beat is not None:
            await asyncio.to_thread(self._beat.stop)
            with contextlib.suppress(StoreError, TimeoutError):
                async with asyncio.timeout(3.0):
                    await self.nodes.leave(self.incarnation)
                    await logs.ship_now(self.logs, self.waker)
        await self.waker.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.wait(self._tasks, timeout=LAST_S)
        await self.database.close()

    @property
    def incarnation(self) -> UUID:
        """Who we are now."""
        assert self._beat is not None
        return self._beat.trust.incarnation

    def trust_left_s(self) -> float:
        """How long this node may still act."""
        return self._beat.trust_left_s() if self._beat is not None else 0.0

    def lists(self, name: str) -> bool:
        """Whether the registry in use, file or database, names this datasource."""
        return self._file is None or self._file.lists(name)

    async def set_address(self, address: str) -> None:
        """Say where we are reached, once the port is known."""
        self.address = self.address or address
        await self.nodes.set_address(self.incarnation, self.address)

    # Incarnations.

    async def _incarnate(self) -> None:
        id = new_id()
        await self.nodes.join(id, self.name, self.settings.lease_s, self.address)
        beat = Beat(self.url, id, self.settings.lease_s, self.settings.home, self._ended)
        beat.start()
        self._beat = beat
        self.registry.forget()
        self.manager = WorkerManager(
            self.registry,
            self.streams,
            id,
            self._installation,
            beat.trust_left_s,
            self.inboxes,
            self.lists,
        )
        self._manager_task = asyncio.create_task(self.manager.run(), name="manager")

    def _ended(self) -> None:
        """Somebody found us dead."""
        log.warning("this node was taken for dead; it begins anew")
        task = asyncio.create_task(self._reincarnate())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _reincarnate(self) -> None:
        if self.manager is not None:
            self.manager.lose_all()
        await self._end_manager()
        while True:
            try:
                return await self._incarnate()
            except StoreError:
                await asyncio.sleep(CONNECT_RETRY_S)
            except Exception:
                log.exception("a new incarnation failed")
                await asyncio.sleep(CONNECT_RETRY_S)

    async def _end_manager(self) -> None:
        if self._manager_task is not None:
            self._manager_task.cancel()
            await asyncio.gather(self._manager_task, return_exceptions=True)

    # Loops.

    def _loops(self) -> dict[str, Callable[[], Awaitable[None]]]:
        found: dict[str, Callable[[], Awaitable[None]]] = {
            "sign": self._sign,
            "observe": self._observe,
            "housekeeping": self._keep_house,
            "listen": self.listener.run,
            "inbox": self.inboxes.run,
            "logs": lambda: logs.ship(self.logs, self.waker),
        }
        if (file := self._file) is not None:
            found["registry file"] = lambda: file.watch(self._file_changed)
        return found

    def _listen(self) -> None:
        def on(topic: str, act: Callable[[], None]) -> None:
            self.listener.on(topic, lambda number: act())

        on("registry", lambda: self.manager.wake() if self.manager else None)
        on("inbox", self.inboxes.look)

    async def _sign(self) -> None:
        """Show the beat that this loop is alive; notice how late it runs."""
        while True:
            due_s = boot_s() + SIGN_S
            await asyncio.sleep(SIGN_S)
            self.loop_delay_s = max(0.0, boot_s() - due_s)
            if self._beat is not None:
                self._beat.sign()

    async def _observe(self) -> None:
        """Watch the others' beats, and end those that fell silent."""
        observer = Observer({})
        while True:
            await asyncio.sleep(lease.OBSERVE_S)
            asked_at_s = boot_s()
            try:
                rows = await self.nodes.observe()
                others = [row for row in rows if row.node != self.incarnation]
                observer, expired = lease.observed(observer, others, asked_at_s, boot_s())
                for one in expired:
                    taken = await self.nodes.expire(one)
                    if taken is not None:
                        log.warning("a node fell silent: its streams are free", node=str(one.node), streams=len(taken))
                        if self.manager is not None:
                            self.manager.wake()
                        self.waker.wake("registry")
            except StoreError:
                observer = lease.unanswered(observer)

    async def _keep_house(self) -> None:
        """Remove what nobody needs any more. Any node may do it; doing it twice is harmless."""
        while True:
            with contextlib.suppress(StoreError):
                while await self.inbox.clean(self.settings.inbox_keep_s):
                    await asyncio.sleep(0.1)
                await self.registry.datasources.purge()
            await asyncio.sleep(HOUSEKEEPING_S)

    async def _read_set_aside(self) -> None:
        """Datasources that blocked this node last time, while the database was away."""
        for datasource, reason in beats.read_set_aside(self.settings.home).items():
            await self.registry.quarantine(datasource, reason)
            beats.clear_set_aside(self.settings.home, datasource)

    async def _file_changed(self) -> None:
        if self.manager is not None:
            self.manager.wake()
            await self.manager.reconsider()


async def _connect(url: str) -> Database:
    """Connect, and wait quietly while the database is away."""
    waited = False
    while True:
        try:
            return await Database.open(url)
        except StoreError as error:
            if not waited:
                log.warning("waiting for the database", error=error.message)
            waited = True
            await asyncio.sleep(CONNECT_RETRY_S)


def load_keyring(settings: Settings, *, embedded: bool) -> Keyring | None:
    """The master keys. With an embedded database a key file is made; with your own, you bring the key."""
    text = settings.master_key.get_secret_value() if settings.master_key else None
    file: Path = settings.home / "master.key"
    return Keyring.load(text, file if embedded or file.exists() else None)
