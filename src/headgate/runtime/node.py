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
from typing import Any
from uuid import UUID

import structlog

from headgate.config import Settings
from headgate.connectors import plugins
from headgate.connectors.api import INBOX_IDENTITY
from headgate.datasources.documents import Prepared
from headgate.datasources.registry import Registry
from headgate.datasources.registry_file import RegistryFile
from headgate.errors import HeadgateError, Refused, StoreError
from headgate.ids import new_id
from headgate.runtime.cluster import beat as beats
from headgate.runtime.cluster.beat import Beat
from headgate.runtime.cluster.housekeeping import Housekeeper
from headgate.runtime.cluster.observe import Watcher
from headgate.runtime.cluster.sign import LoopSign
from headgate.runtime.cluster.tick import Ticker
from headgate.runtime.dumps.keeper import DumpKeeper
from headgate.runtime.forever import forever
from headgate.runtime.groups.listener import GroupListener
from headgate.runtime.inbox import InboxHub
from headgate.runtime.log_shipper import LogShipper
from headgate.runtime.push.listener import PushListener
from headgate.runtime.streams.manager import WorkerManager
from headgate.store.database import Database
from headgate.store.dealing import Dealing
from headgate.store.dumps import Dumps
from headgate.store.groups import Groups
from headgate.store.inbox import InboxTable
from headgate.store.logs import Logs
from headgate.store.migrate import migrate
from headgate.store.nodes import Nodes
from headgate.store.placement import Placement
from headgate.store.secrets import Keyring, Secrets
from headgate.store.streams import Streams
from headgate.store.tokens import Tokens
from headgate.store.wake import Listener, Waker
from headgate.store.worker_groups import WorkerGroups

CONNECT_RETRY_S = 2.0
LAST_S = 3.0  # For loops to end once they are told to.

log = structlog.get_logger()


class Node:
    """Everything that runs in one process, but the HTTP server."""

    def __init__(
        self, settings: Settings, url: str, keyring: Keyring | None, shipper: LogShipper | None = None
    ) -> None:
        self.settings = settings
        self.url = url
        self.name = settings.node_name or socket.gethostname()
        self.address = settings.advertise or None
        self._keyring = keyring
        self.shipper = shipper or LogShipper()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._beat: Beat | None = None
        self._manager_task: asyncio.Task[None] | None = None
        self.manager: WorkerManager | None = None
        self.sign = LoopSign()
        self._draining = False  # By an operator's word; a new incarnation keeps to it.

    async def start(self) -> None:
        """Prepare, and begin to work."""
        await self.prepare()
        await self.begin()

    async def prepare(self) -> None:
        """Connect, migrate, and load what takes long: whoever beats has to be ready to work."""
        beats.label_tasks(asyncio.get_running_loop())
        self.database = await _connect(self.url)
        applied = await migrate(self.database)
        if applied:
            log.info("database set up", migrations=applied)
        self.waker = Waker(self.database)
        self.listener = Listener(self.url)
        self.nodes = Nodes(self.database)
        self.streams = Streams(self.database, lambda: self.watcher.silent())
        self.placement = Placement(self.database)
        self.dealing = Dealing(self.database)
        self.watcher = Watcher(
            self.nodes,
            lambda: self.incarnation,
            self._set_draining,
            lambda: self.ticker.vanished(),
            lambda: self.ticker.look(),
        )
        self.ticker = Ticker(
            self.placement, self.dealing, self.waker, self.watcher.silent, self.trust_left_s, self._woken
        )
        self.worker_groups = WorkerGroups(self.database)
        self.group_rows = Groups(self.database, self.settings.lease_s)
        self.tokens = Tokens(self.database)
        self.logs = Logs(self.database)
        self.inbox = InboxTable(self.database, INBOX_IDENTITY)
        self.inboxes = InboxHub(self.inbox)
        self.groups = GroupListener(self.group_rows, self.waker, lambda: self.incarnation, self.trust_left_s)
        self.push = PushListener(self.streams, self.trust_left_s, self._other_address)
        file = self.settings.registry_file
        read_only = f"the registry is the file {file}; edit that" if file else ""
        self.registry = Registry(self.database, Secrets(self.database, self._keyring), self.waker, read_only=read_only)
        self.dumps = Dumps(self.database, self._keyring)
        self._keeper = DumpKeeper(
            self.dumps, self.settings.home, self._may_dump, self.prepared, self.settings.source_timeout_s
        )
        self._file = RegistryFile(file, self.registry) if file else None
        if self._file is not None:
            await self._file.load()
        self._installation = await self.registry.datasources.installation()
        for name in await self.registry.datasources.connectors():
            with contextlib.suppress(HeadgateError):  # The stream that needs it says what is wrong with it.
                plugins.get(name)

    async def begin(self) -> None:
        """Beat, and work."""
        await self._read_quarantined()
        await self._incarnate()
        self._listen()
        for name, loop in self._loops().items():
            self._tasks.add(asyncio.create_task(forever(loop, name), name=name))
        log.info("node started", node=self.name, id=str(self.incarnation))

    async def drain(self) -> list[str]:
        """Give every stream back, and take no more. Returns those that could not be given back.

        With the database away nothing can be: we wait for it as long as we are trusted.
        """
        if self.manager is None:
            return []
        with contextlib.suppress(StoreError, TimeoutError):
            async with asyncio.timeout(LAST_S):  # So that nobody grants us what we are about to give back.
                await self.nodes.set_draining(self.incarnation, True)
        self.push.drain(True)
        await self.manager.stop()
        while (kept := self.manager.kept()) and self.trust_left_s() > 0.0:
            await asyncio.sleep(0.05)
        return kept

    async def stop(self) -> None:
        """Drain every stream unless that has been tried, leave, and close."""
        if self.manager is None or not self.manager.is_stopping:
            await self.drain()
        await self._end_manager()
        if self._beat is not None:
            await asyncio.to_thread(self._beat.stop)
            with contextlib.suppress(StoreError, TimeoutError):
                async with asyncio.timeout(3.0):
                    await self.nodes.end(self.incarnation)
                    await self.shipper.ship(self.logs, self.waker)
                    self.waker.wake("streams")
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
        settings = self.settings
        await self.nodes.join(
            id, self.name, settings.lease_s, self.address, draining=self._draining, process=settings.process
        )
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
        self.push.begin(self.manager)
        self._manager_task = asyncio.create_task(self.manager.run(), name="manager")

    def _ended(self) -> None:
        """Somebody found us dead."""
        log.warning("this node was taken for dead; it starts over")
        task = asyncio.create_task(self._reincarnate())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _reincarnate(self) -> None:
        if self.manager is not None:
            self.manager.lose_all()
        self.push.lose_all()
        self.groups.lose_all()
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
            "sign": lambda: self.sign.run(lambda: self._beat),
            "observe": self.watcher.run,
            "tick": self.ticker.run,
            "housekeeping": self._housekeeper().run,
            "listen": self.listener.run,
            "inbox": self.inboxes.run,
            "push": self.push.run,
            "groups": self.groups.run,
            "dumps": self._keeper.run,
            "logs": lambda: self.shipper.run(self.logs, self.waker),
        }
        if (file := self._file) is not None:
            found["registry file"] = lambda: file.watch(self._file_changed)
        return found

    def _listen(self) -> None:
        def on(topic: str, act: Callable[[], None]) -> None:
            self.listener.on(topic, lambda number: act())

        on("registry", self._woken)
        on("streams", self._woken)
        on("inbox", self.inboxes.look)
        on("groups", self.groups.look)

    def _woken(self) -> None:
        """The registry or the ownership of streams has changed."""
        self.ticker.look()
        self.watcher.look()
        if self.manager is not None:
            self.manager.wake()

    def _set_draining(self, draining: bool) -> None:
        self._draining = draining
        if self.manager is not None and not self.manager.is_stopping:
            self.manager.drain(draining)
            self.push.drain(draining)

    async def addresses(self) -> list[str]:
        """Where programs can push: the nodes that are not draining, the other ones first."""
        found = [node for node in await self.nodes.all() if not node.draining]
        found.sort(key=lambda node: node.id == self.incarnation)
        return [node.address for node in found if node.address]

    async def _other_address(self) -> str | None:
        with contextlib.suppress(StoreError):
            return next((one for one in await self.addresses() if one != self.address), None)
        return None

    def _housekeeper(self) -> Housekeeper:
        tables = self.registry.datasources, self.streams, self.group_rows, self.placement
        return Housekeeper(self.inbox, self.inboxes, self.settings.inbox_keep_s, *tables)

    async def _read_quarantined(self) -> None:
        """Datasources that blocked this node last time, while the database was away."""
        for datasource, reason in beats.read_quarantined(self.settings.home).items():
            await self.registry.quarantine(datasource, reason)
            beats.clear_quarantined(self.settings.home, datasource)

    def _may_dump(self) -> bool:
        is_leaving = self._draining or self.manager is None or self.manager.is_stopping
        return not is_leaving and self.trust_left_s() > 0.0

    async def prepared(self, datasource: UUID) -> tuple[str, Prepared]:
        """The version of a datasource that runs, for a backfill."""
        found = await self.registry.get(str(datasource))
        version = found.running_version or found.published_version
        if version is None:
            raise Refused(f"{found.name} has no version", hint=f"headgate ds publish {found.name}")
        config = await self.registry.get_datasource_config(found.id, version)
        return found.name, config.prepared

    async def _file_changed(self) -> None:
        await self.streams.clear_unable(self.incarnation)
        self.ticker.look()
        if self.manager is not None:
            self.manager.wake()
            self.manager.reconsider()


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
