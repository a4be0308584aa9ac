"""`headgate up --processes N`: a parent that runs N nodes on this machine, each a separate process.

A process uses one core; this uses them all. To the others, and to each other, the children are nodes like any other.

*Death.* The parent knows at once that a child has ended, and what has ended cannot write any more. So nobody waits for
its lease: the parent ends its incarnations, and its streams are granted elsewhere. It then starts the child again, ever
more slowly if it keeps dying. Each start has its own id, which the child writes into the row of each of its
incarnations; so the parent ends all of them, and never one of a later start. If the parent cannot reach the database,
or dies with the child, the lease decides as between machines.

*Stopping.* A child's stdin is a pipe from the parent. When it ends, the child drains: the parent has closed it, or is
gone, however it ended. It is not a signal, because service managers like to signal all processes of a service, and a
second signal means "at once". Each child has its own session, so that Ctrl-C reaches the parent alone.

*Ports.* The parent binds every child's port and does not listen. So nobody else is given the port while a child is
away, and a client that connects then is refused instead of kept waiting.

*The embedded database.* Parent and children are all members of it, so it stops with the last of them, even if the
parent was killed. If it dies, the parent starts it again.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import socket
import sys
from uuid import UUID

import httpx
import structlog
import typer

from headgate.cli import home as homes
from headgate.cli.demo import load_demo, unload_and_tell
from headgate.cli.failures import NOT_FOUND, REFUSED, USAGE
from headgate.cli.up import (
    LONGEST_STOP_S,
    STOPPING,
    Kept,
    announce,
    database_url,
    first_token,
    make_code,
    make_home,
    place_of,
    started,
    stop_signal,
)
from headgate.clock import boot_s
from headgate.config import Settings
from headgate.core import backoff
from headgate.datasources.registry import Registry
from headgate.datasources.registry_file import RegistryFile
from headgate.errors import ConfigError, HeadgateError, StoreError
from headgate.ids import new_id
from headgate.runtime.cluster.lineage import LineageWatch
from headgate.runtime.starting import Start
from headgate.store.database import Database
from headgate.store.datasources import Datasources
from headgate.store.embedded import EmbeddedServer
from headgate.store.nodes import Nodes
from headgate.store.secrets import Keyring, Secrets, load_keyring
from headgate.store.sessions import Sessions
from headgate.store.tokens import Tokens
from headgate.store.wake import Waker
from headgate.web.auth import check_no_auth
from headgate.web.server import bind, url_of
from headgate.web.tls import certificate_of

AGAIN_S = 1.0  # Until a database that is away is asked again.
DATABASE_LOOK_S = 2.0
LOOK_S = 0.1  # How often to look whether a new child answers.
LAST_S = 3.0  # For the database to answer once we are told to stop.
CHILDREN_STOP_S = LONGEST_STOP_S - 5.0  # Later, children are killed; the rest is for leaving the database.
CONNECTIONS_HERE = 2
CONNECTIONS = 20  # What a node may need: its own, and those of a sink in the same database.
LAST_PORT = 65535

log = structlog.get_logger()


async def up_many(settings: Settings, count: int, *, demo: bool | None, broker: str | None, search_port: bool) -> None:
    """Run this many nodes until told to stop."""
    if not settings.auth:
        check_no_auth(settings.host)
    if settings.advertise and "{port}" not in settings.advertise:
        hint = "write {port} where the port is, as in http://here.example.org:{port}"
        raise ConfigError("--advertise is one address, and each process needs its own", hint=hint)
    make_home(settings.home)
    name = settings.node_name or socket.gethostname()
    async with contextlib.AsyncExitStack() as stack:
        ports = _reserve(settings.host, settings.port, count, search=search_port, stack=stack)
        is_tls = certificate_of(settings) is not None
        children = [_Child(f"{name}-{number}", port, is_tls=is_tls) for number, port in enumerate(ports, 1)]
        parent = _Parent(settings, children, demo=demo, broker=broker)
        url = await database_url(settings, stack, _server_settings(count))
        if not await started(parent.prepare(url, stack), parent.stop):
            return
        code = await parent.run()
    if code:
        raise typer.Exit(code)


def _reserve(
    host: str, port: int, count: int, *, search: bool, stack: contextlib.AsyncExitStack
) -> list[socket.socket]:
    """One port for each child: this one and the following, or the next free ones, or any."""
    if port and port + count - 1 > LAST_PORT:
        raise ConfigError(f"{count} processes need the ports {port} to {port + count - 1}", hint="--port a lower one")
    reserved: list[socket.socket] = []
    for _ in range(count):
        with bind(host, port, search=search) as found:
            family, address = found.family, found.getsockname()
        held = stack.enter_context(socket.socket(family, socket.SOCK_STREAM))
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(address)
        reserved.append(held)
        port = address[1] + 1 if port else 0
    return reserved


class _Child:
    """One node: its name, its address, and the process that runs it now."""

    def __init__(self, name: str, port: socket.socket, *, is_tls: bool) -> None:
        self.name = name
        self.port = port.getsockname()[1]
        self.url = url_of(port, is_tls=is_tls)
        self.process: asyncio.subprocess.Process | None = None
        self.is_up = False
        self.was_up = asyncio.Event()  # At least once.

    def tell_to_stop(self) -> None:
        if self.process is not None and self.process.stdin is not None:
            self.process.stdin.close()

    def kill(self) -> None:
        if self.process is not None and self.process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self.process.kill()


class _Parent:
    """Keeps the children running."""

    def __init__(self, settings: Settings, children: list[_Child], *, demo: bool | None, broker: str | None) -> None:
        self._settings = settings
        self._children = children
        self._demo, self._broker = demo, broker
        self._unloading: asyncio.Task[None] | None = None  # Of the demo, while the children run.
        self._code = 0
        self._token: Kept | None = None
        self.stop = stop_signal(self._kill)

    async def prepare(self, url: str, stack: contextlib.AsyncExitStack) -> None:
        """Make what is made once and not by each child. What is wrong with the settings is found here, once."""
        settings = self._settings
        keyring = load_keyring(settings, embedded=settings.database is None)
        starting = Start(LineageWatch(url, settings.home))
        database = await starting.open(size=CONNECTIONS_HERE)
        stack.push_async_callback(database.close)
        self._nodes = Nodes(database)
        self._waker = Waker(database)
        stack.push_async_callback(self._waker.close)
        if settings.database is None:
            stack.callback(asyncio.create_task(self._keep_running(database)).cancel)
        self._tokens, self._sessions = Tokens(database), Sessions(database)
        await starting.until_done(lambda: self._fill(database, url, keyring))

    async def _fill(self, database: Database, url: str, keyring: Keyring | None) -> None:
        """Settle this home, and fill what is empty."""
        settings = self._settings
        homes.settle(settings.home, str(await Datasources(database).installation()))
        if settings.auth:
            self._token = await first_token(settings.home, self._tokens)
        registry = Registry(database, Secrets(database, keyring), self._waker)
        if (file := settings.registry_file) is not None:
            await RegistryFile(file, registry).load()
        if self._demo:
            await load_demo(registry, url, self._children[0].url, self._broker)
        elif self._demo is False:
            self._unloading = asyncio.create_task(unload_and_tell(registry, database, url))

    async def _keep_running(self, database: Database) -> None:
        """An embedded server that was killed is started again: joining starts it, and we are a member already."""
        server_settings = _server_settings(len(self._children))
        while True:
            await asyncio.sleep(DATABASE_LOOK_S)
            try:
                await database.fetchval("SELECT 1")
            except StoreError:
                with contextlib.suppress(HeadgateError):
                    again = await asyncio.to_thread(EmbeddedServer.join, self._settings.home, server_settings)
                    await asyncio.to_thread(again.leave)

    async def run(self) -> int:
        """Until we are told to stop, or every child was. Returns the exit code."""
        async with asyncio.TaskGroup() as group:
            others = [group.create_task(self._stop_children()), group.create_task(self._announce())]
            await asyncio.gather(*(group.create_task(self._keep(child)) for child in self._children))
            for task in others:
                task.cancel()
        for child in self._children:
            homes.remove(self._settings.home, child.url)
        return self._code

    async def _announce(self) -> None:
        for child in self._children:
            await child.was_up.wait()
        nodes = {child.name: child.url for child in self._children}
        code = await self._make_code()
        announce(self._settings, self._children[0].url, self._token, code, demo=self._demo is True, nodes=nodes)
        self._point()

    async def _make_code(self) -> str | None:
        with contextlib.suppress(StoreError):
            return await make_code(self._token, self._tokens, self._sessions)
        return None

    async def _stop_children(self) -> None:
        """They drain together. One that cannot is killed."""
        await self.stop.wait()
        if self._are_all_known():
            typer.echo(STOPPING, err=True)
        for child in self._children:
            child.tell_to_stop()
        await asyncio.sleep(CHILDREN_STOP_S)
        self._kill()

    def _kill(self) -> None:
        for child in self._children:
            child.kill()

    def _are_all_known(self) -> bool:
        return all(child.was_up.is_set() for child in self._children)

    # One child.

    async def _keep(self, child: _Child) -> None:
        """Run it, again and again, until it is told to stop."""
        attempt = 0
        while not self.stop.is_set():
            process, began_s = new_id(), boot_s()
            code = await self._run(child, process)
            freed = await self._end(process)
            if self.stop.is_set():
                self._code = self._code or (1 if code else 0)
            elif code == 0:
                log.info("a node was told to stop: it is not started again", node=child.name)
                return
            elif code in (USAGE, NOT_FOUND, REFUSED) and not child.was_up.is_set():
                self._code = code  # It has said what is wrong; trying again would not fix that.
                self.stop.set()
            else:
                attempt = 1 if boot_s() - began_s > backoff.LONGEST_S else attempt + 1
                wait_s = backoff.wait_s(attempt, random.random())
                log.warning(
                    "a node died: its streams are free, and it is started again",
                    node=child.name,
                    ended=_how(code),
                    streams=freed,
                    wait_s=round(wait_s, 1),
                )
                await self._pause(wait_s)

    async def _run(self, child: _Child, process: UUID) -> int:
        """Start it, and wait until it has ended; returns its exit code."""
        command = [sys.executable, "-P", "-m", "headgate.cli", "up", "--port", str(child.port)]
        environment = _environment(self._settings) | {
            "HEADGATE_NODE_NAME": child.name,
            "HEADGATE_PROCESS": str(process),
        }
        pipe = asyncio.subprocess.PIPE
        try:
            running = await asyncio.create_subprocess_exec(
                *command, stdin=pipe, env=environment, start_new_session=True
            )
        except OSError as error:  # No memory, or too many processes; later there may be.
            log.error("a node cannot be started", node=child.name, error=error.strerror)
            return os.EX_OSERR
        child.process = running
        if self.stop.is_set():
            child.tell_to_stop()
        looking = asyncio.create_task(self._note_when_up(child))
        try:
            return await running.wait()
        finally:
            looking.cancel()
            child.is_up = False
            self._point()

    async def _note_when_up(self, child: _Child) -> None:
        # Our own child, on a port that we hold; nothing is sent. Its certificate is for others.
        async with httpx.AsyncClient(trust_env=False, timeout=None, verify=False) as client:
            while not child.is_up:
                with contextlib.suppress(httpx.HTTPError):  # It answers from its start; this, when it is connected.
                    child.is_up = (await client.get(f"{child.url}/api/installation")).is_success
                await asyncio.sleep(LOOK_S)
        self._point()
        child.was_up.set()

    def _point(self) -> None:
        """Commands on this machine ask a child that answers."""
        if not self._are_all_known():
            return
        for child in self._children:
            if child.is_up:
                homes.add(self._settings.home, place_of(self._settings, child.url))
            else:
                homes.remove(self._settings.home, child.url)

    async def _end(self, process: UUID) -> int:
        """End its incarnations, and have its streams granted elsewhere; returns how many it still had."""
        while True:
            try:
                async with asyncio.timeout(LAST_S if self.stop.is_set() else None):
                    freed = await self._nodes.end_process(process)
            except (StoreError, TimeoutError):
                if self.stop.is_set():
                    return 0
                await self._pause(AGAIN_S)
            else:
                self._waker.wake("streams")
                return len(freed)

    async def _pause(self, wait_s: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                await self.stop.wait()


def _server_settings(count: int) -> dict[str, str]:
    return {"max_connections": str(max(100, CONNECTIONS * (count + 1)))}


def _environment(settings: Settings) -> dict[str, str]:
    """What flags have changed; all else the children read as we did. Secrets are no arguments: those can be seen."""
    changed = {
        "HEADGATE_HOME": str(settings.home),
        "HEADGATE_HOST": settings.host,
        "HEADGATE_ADVERTISE": settings.advertise,
        "HEADGATE_AUTH": str(settings.auth),
    }
    if settings.database is not None:
        changed["HEADGATE_DATABASE"] = settings.database.get_secret_value()
    for name, file in (("HEADGATE_TLS_CERT", settings.tls_cert), ("HEADGATE_TLS_KEY", settings.tls_key)):
        if file is not None:
            changed[name] = str(file)
    return {**os.environ, **changed}


def _how(code: int) -> str:
    return signal.Signals(-code).name if code < 0 else f"exit code {code}"
