"""A node: one `headgate up` process. This module assembles; what the parts do is in their modules."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Awaitable, Callable
from uuid import UUID

import structlog

from headgate.config import Settings
from headgate.connectors import plugins
from headgate.connectors.api import INBOX_IDENTITY
from headgate.datasources.letters import LetterBox
from headgate.datasources.reaching import NodeReach
from headgate.datasources.registry import Registry
from headgate.datasources.registry_file import RegistryFile
from headgate.errors import HeadgateError, StoreError
from headgate.runtime import memory
from headgate.runtime.access import Access
from headgate.runtime.cluster import quarantine
from headgate.runtime.cluster.beat import label_tasks
from headgate.runtime.cluster.housekeeping import Housekeeper
from headgate.runtime.cluster.incarnation import Incarnations
from headgate.runtime.cluster.lineage import LineageWatch
from headgate.runtime.cluster.observe import Watcher
from headgate.runtime.cluster.registry_problem import tell_registry_problem
from headgate.runtime.cluster.sign import LoopSign
from headgate.runtime.cluster.tick import Ticker
from headgate.runtime.cluster.writes import until_writes_are_taken
from headgate.runtime.dumps.keeper import DumpKeeper
from headgate.runtime.forever import forever
from headgate.runtime.groups.listener import GroupListener
from headgate.runtime.harness.fixtures import FixtureShelf
from headgate.runtime.harness.gate import Gate
from headgate.runtime.harness.harness import Harness
from headgate.runtime.inbox import InboxHub
from headgate.runtime.installs import Installs
from headgate.runtime.log_shipper import LogShipper
from headgate.runtime.notifications.notifier import Notifier
from headgate.runtime.push.listener import PushListener
from headgate.runtime.starting import Start
from headgate.runtime.streams.manager import WorkerManager
from headgate.runtime.streams.removals import Remover
from headgate.runtime.taps.hub import Taps
from headgate.store.dealing import Dealing
from headgate.store.dumps import Dumps
from headgate.store.fixtures import Fixtures
from headgate.store.groups import Groups
from headgate.store.inbox import InboxTable
from headgate.store.letters import Letters
from headgate.store.logs import Logs
from headgate.store.minutes import Minutes
from headgate.store.nodes import Nodes
from headgate.store.notifications import Notifications
from headgate.store.placement import Placement
from headgate.store.removals import Removals
from headgate.store.secrets import Keyring, Secrets
from headgate.store.sessions import Sessions
from headgate.store.streams import Streams
from headgate.store.taps import TapTable
from headgate.store.tokens import Tokens
from headgate.store.wake import Listener, Waker
from headgate.store.worker_groups import WorkerGroups

LAST_S = 3.0  # For the last log lines, and for loops to end once they are cancelled.

log = structlog.get_logger()


class Node:
    """Everything that runs in one process, except the HTTP server."""

    def __init__(
        self,
        settings: Settings,
        url: str,
        keyring: Keyring | None,
        shipper: LogShipper | None = None,
        on_wait: Callable[[str], None] = lambda reason: None,
    ) -> None:
        self.settings = settings
        self.url = url
        self.name = settings.node_name or socket.gethostname()
        self._keyring = keyring
        self.shipper = shipper or LogShipper()
        self.sign = LoopSign()
        self.lineage = LineageWatch(url, settings.home)
        self.starting = Start(self.lineage, on_wait)
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Prepare, and begin to work."""
        await self.prepare()
        await self.begin()

    async def prepare(self) -> None:
        """Connect, migrate, and load what takes long: a node that beats has to be ready to work."""
        label_tasks(asyncio.get_running_loop())
        self.database = await self.starting.open()
        self._make_tables()
        self._make_listeners()
        self._make_cluster()
        await self.installs.tidy()
        await self.starting.until_done(self._load)
        self.letter_box = LetterBox(self.letters, self.registry, self.installation)

    async def _load(self) -> None:
        if self._file is not None:
            await self._file.load()
        self.installation = await self.registry.datasources.installation()
        for name in await self.registry.datasources.connectors():
            with contextlib.suppress(HeadgateError):  # The stream that needs it says what is wrong with it.
                plugins.get(name)

    async def begin(self) -> None:
        """Beat, and work."""
        await self.starting.until_done(self._join)
        self._listen()
        for name, loop in self._loops().items():
            self._tasks.add(asyncio.create_task(forever(loop, name), name=name))
        log.info("node started", node=self.name, id=str(self.incarnation))

    async def _join(self) -> None:
        await quarantine.hand_over(self.settings.home, self.registry)
        await self.incarnations.begin()

    async def drain(self) -> list[str]:
        """Give every stream back, and take no more. Returns those that could not be given back."""
        return await self.incarnations.drain()

    async def stop(self) -> None:
        """Drain every stream unless that has been tried, leave, and close."""
        if await self.incarnations.leave():
            with contextlib.suppress(StoreError, TimeoutError):
                async with asyncio.timeout(LAST_S):
                    await self.shipper.ship(self.logs, self.waker)
                    self.waker.wake("streams")
        await self.waker.close()
        await self.harness.close()
        await self.installs.close()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=LAST_S)
        await self.database.close()

    # What others ask of a node.

    @property
    def incarnation(self) -> UUID:
        """The present incarnation."""
        return self.incarnations.id

    @property
    def manager(self) -> WorkerManager | None:
        """The manager of the present incarnation."""
        return self.incarnations.manager

    def trust_left_s(self) -> float:
        """How long this node may still act."""
        return self.incarnations.trust_left_s()

    def lists(self, name: str) -> bool:
        """Whether the registry in use, file or database, names this datasource."""
        return self._file is None or self._file.lists(name)

    @property
    def registry_problem(self) -> str | None:
        """What is wrong with the registry file of this node."""
        return None if self._file is None else self._file.problem

    def why_not_ready(self) -> list[str]:
        """Why nothing can be made durable through this node now, or nothing is known of what it should run."""
        reasons = [] if self.lineage.problem is None else [self.lineage.problem]
        if self.database.refusal is not None:
            reasons.append(f"the database takes no writes: {self.database.refusal}")
        if self.trust_left_s() <= 0.0:
            reasons.append("this node may not act: its beats are not answered")
        if self.manager is None or not self.manager.synced.is_set():
            reasons.append("the registry has not been read yet")
        return reasons

    @property
    def has_registry_file(self) -> bool:
        """Whether datasources come from a file."""
        return self._file is not None

    # Parts.

    def _make_tables(self) -> None:
        database = self.database
        self.waker = Waker(database)
        self.listener = Listener(self.url)
        self.nodes = Nodes(database)
        self.streams = Streams(database, lambda: self.watcher.silent())
        self.placement = Placement(database)
        self.dealing = Dealing(database)
        self.worker_groups = WorkerGroups(database)
        self.group_rows = Groups(database, self.settings.lease_s)
        self.tokens = Tokens(database)
        self.sessions = Sessions(database)
        self.access = Access(self.tokens, self.sessions, self.name)
        self.logs = Logs(database)
        self.minutes = Minutes(database)
        self.notifications = Notifications(database)
        self.notifier = Notifier(self.notifications, self)
        self.inbox = InboxTable(database, INBOX_IDENTITY)
        self.dumps = Dumps(database, self._keyring)
        self.letters = Letters(database, self._keyring)
        file = self.settings.registry_file
        read_only = f"the registry is the file {file}; edit that" if file else ""
        reach = NodeReach.of(self.settings)
        secrets = Secrets(database, self._keyring)
        self.registry = Registry(database, secrets, self.waker, read_only=read_only, node=reach)
        self._file = RegistryFile(file, self.registry) if file else None
        shelf = FixtureShelf(Fixtures(database, self._keyring))
        self.harness = Harness(self.registry, self.inbox, shelf, self.letters, self.settings)
        self.gate = Gate(self.harness)
        self.installs = Installs(self.settings.home, self.registry, self.name)

    def _make_listeners(self) -> None:
        self.inboxes = InboxHub(self.inbox)
        self.taps = Taps(TapTable(self.database, self._keyring), self.waker, self.name)
        self.groups = GroupListener(self.group_rows, self.waker, lambda: self.incarnation, self.trust_left_s)
        self.push = PushListener(self.streams, self.trust_left_s, lambda: self.incarnations.other_address())

    def _make_cluster(self) -> None:
        self.incarnations = Incarnations(
            self.url,
            self.lineage.check,
            self.name,
            self.settings,
            self.nodes,
            self.push,
            self.groups,
            self._make_manager,
            lambda: self.watcher.silent(),
            lambda: self.ticker.look(),
        )
        self.watcher = Watcher(
            self.nodes,
            lambda: self.incarnation,
            self.incarnations.set_draining,
            lambda: self.ticker.vanished(),
            lambda: self.ticker.look(),
        )
        self.ticker = Ticker(
            self.placement, self.dealing, self.waker, self.watcher.silent, self.trust_left_s, self._woken
        )
        self._housekeeper = Housekeeper(
            self.inbox,
            self.inboxes,
            self.settings.inbox_keep_s,
            self.registry.events,
            self.settings.events_keep_s,
            self.registry.datasources,
            self.streams,
            self.minutes,
            self.group_rows,
            self.letters,
            self.placement,
            self.tokens,
            self.sessions,
            self.waker,
        )
        self.remover = Remover(Removals(self.database), self.registry, lambda: self.installation)
        self._keeper = DumpKeeper(
            self.dumps, self.settings.home, self.incarnations.may_work, self.registry, self.settings.source_timeout_s
        )

    def _make_manager(self, incarnation: UUID, trust_left_s: Callable[[], float]) -> WorkerManager:
        self.registry.forget()  # A new manager has to hear of every datasource.
        return WorkerManager(
            self.registry,
            self.streams,
            self.letters,
            self.minutes,
            incarnation,
            self.installation,
            trust_left_s,
            self.inboxes,
            self.lists,
            self.taps.points,
            self.settings.connector_memory_mb,
        )

    # Loops.

    def _loops(self) -> dict[str, Callable[[], Awaitable[None]]]:
        found: dict[str, Callable[[], Awaitable[None]]] = {
            "sign": lambda: self.sign.run(lambda: self.incarnations.beat),
            "lineage": lambda: self.lineage.run(self.database),
            "observe": self.watcher.run,
            "tick": self.ticker.run,
            "housekeeping": self._housekeeper.run,
            "memory": memory.give_back,
            "writes": lambda: until_writes_are_taken(self.database),
            "listen": self.listener.run,
            "inbox": self.inboxes.run,
            "push": self.push.run,
            "groups": self.groups.run,
            "dumps": self._keeper.run,
            "removals": self.remover.run,
            "taps": self.taps.run,
            "notifications": self.notifier.run,
            "tokens": lambda: self.access.run(lambda: self.waker.wake("events")),
            "logs": lambda: self.shipper.run(self.logs, self.waker),
        }
        if self.database.has_several_hosts:
            found["hosts"] = self.database.watch_hosts
        if (file := self._file) is not None:
            found["registry file"] = lambda: file.watch(self._file_changed)
            found["registry problem"] = lambda: tell_registry_problem(file, self.nodes, lambda: self.incarnation)
        return found

    def _listen(self) -> None:
        def on(topic: str, act: Callable[[], None]) -> None:
            self.listener.on(topic, lambda number: act())

        on("registry", self._woken)
        on("streams", self._woken)
        on("letters", self._woken)
        on("inbox", self.inboxes.look)
        on("groups", self.groups.look)
        on("tokens", self.access.forget)
        on("taps", self.taps.look)

    def _woken(self) -> None:
        """The registry or the ownership of streams has changed."""
        self.ticker.look()
        self.watcher.look()
        if self.manager is not None:
            self.manager.wake()

    async def _file_changed(self) -> None:
        await self.streams.clear_unable(self.incarnation)
        self.ticker.look()
        if self.manager is not None:
            self.manager.wake()
            self.manager.reconsider()
