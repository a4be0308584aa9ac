"""Work on the database without a node, for the few commands that allow it."""

from __future__ import annotations

import asyncio
import getpass
import logging
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeVar

from headgate.log import configure_by
from headgate.store.database import Database, refusals_in_words
from headgate.store.lineage import Witness
from headgate.store.migrate import migrate
from headgate.store.secrets import Secrets, load_keyring
from headgate.store.wake import Waker

if TYPE_CHECKING:
    from headgate.config import Settings
    from headgate.datasources.registry import Registry
    from headgate.runtime.harness.gate import Gate

T = TypeVar("T")


def apply(url: str, text: str, file: str, *, connect: bool, accept: bool) -> dict[str, Any]:
    """Create or update what the text has, in one transaction, once it passes. Running nodes hear of it."""
    from headgate.datasources.documents import gather_yaml
    from headgate.runtime.harness.gate import Applying

    found = gather_yaml(text, file)
    how = Applying(connect=connect, accept=accept, is_admin=True)

    async def act(registry: Registry, gate: Gate) -> dict[str, Any]:
        done = await gate.apply(registry, found, actor("import"), how)
        return {"changes": [asdict(change) for change in done]}

    return asyncio.run(_with_registry(url, act))


def export(url: str, *, fixtures: bool) -> str:
    """Every published datasource, as YAML."""
    from headgate.datasources.documents import write_yaml

    async def act(registry: Registry, gate: Gate) -> str:
        documents = await registry.export()
        if fixtures:
            documents = await gate.with_fixtures(registry, documents, lambda name: True)
        return write_yaml(documents)

    return asyncio.run(_with_registry(url, act))


async def recover(url: str) -> tuple[str, str]:
    """A new admin token, its name and its text, for those who have the database."""
    from headgate.store.tokens import Tokens

    async with opened(url) as database:
        await migrate(database)
        name = f"recovered {datetime.now(UTC):%Y-%m-%d %H:%M:%S}"
        _, text = await Tokens(database).create(name, "admin", actor("recover"), recovered=True)
        waker = Waker(database)
        waker.wake("events")
        await waker.close()
    return name, text


async def _with_registry(url: str, act: Callable[[Registry, Gate], Awaitable[T]]) -> T:
    from headgate.config import load
    from headgate.connectors.api import INBOX_IDENTITY
    from headgate.datasources.registry import Registry
    from headgate.runtime.harness.fixtures import FixtureShelf
    from headgate.runtime.harness.gate import Gate
    from headgate.runtime.harness.harness import Harness
    from headgate.store.fixtures import Fixtures
    from headgate.store.inbox import InboxTable
    from headgate.store.letters import Letters

    async with opened(url) as database:
        settings = load(database=url)
        await migrate(database)
        waker = Waker(database)
        file = settings.registry_file
        read_only = f"the registry is the file {file}; edit that" if file else ""
        keyring = load_keyring(settings, embedded=False)
        registry = Registry(database, Secrets(database, keyring), waker, read_only=read_only)
        shelf = FixtureShelf(Fixtures(database, keyring))
        harness = Harness(registry, InboxTable(database, INBOX_IDENTITY), shelf, Letters(database, keyring), settings)
        try:
            return await act(registry, Gate(harness))
        finally:
            await harness.close()
            await waker.close()


async def open_checked(url: str, size: int = 2) -> Database:
    """The database, if its registry is at home where it is."""
    return await Database.open(url, size=size, check=Witness().check)


@contextmanager
def reached(settings: Settings) -> Iterator[str]:
    """Where the database is; the embedded one runs at least until we are done."""
    if settings.database is not None:
        yield settings.database.get_secret_value()
        return
    from headgate.store.embedded import EmbeddedServer

    server = EmbeddedServer.join(settings.home)
    try:
        yield server.url
    finally:
        server.leave()


@asynccontextmanager
async def opened(url: str, size: int = 2, *, any_lineage: bool = False) -> AsyncIterator[Database]:
    """The database; what it refuses becomes a line that people can read. `any_lineage`: even if it is a copy."""
    quiet()
    database = await (Database.open(url, size=size) if any_lineage else open_checked(url, size))
    try:
        with refusals_in_words():
            yield database
    finally:
        await database.close()


def quiet() -> None:
    """Logs are for nodes: here only what cannot be said otherwise, and never on stdout."""

    def configure() -> None:
        import structlog

        structlog.configure(
            wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL),
            logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        )

    configure_by(configure)


def actor(doing: str) -> str:
    """Who did it, for the events."""
    try:
        return f"{getpass.getuser()} ({doing})"
    except (KeyError, OSError):  # A container may run as a user without a name.
        return doing
