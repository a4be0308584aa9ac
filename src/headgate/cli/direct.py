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

import structlog

from headgate.config import Settings, load
from headgate.store.database import Database, refusals_in_words
from headgate.store.migrate import migrate
from headgate.store.secrets import Secrets, load_keyring
from headgate.store.wake import Waker

if TYPE_CHECKING:
    from headgate.datasources.registry import Registry

T = TypeVar("T")


def apply(url: str, text: str, file: str) -> dict[str, Any]:
    """Create or update what the text has, in one transaction. Running nodes hear of it."""
    from headgate.datasources.documents import gather_yaml

    found = gather_yaml(text, file)

    async def act(registry: Registry) -> dict[str, Any]:
        done = await registry.apply(found, _actor("import"), is_admin=True)
        return {"changes": [asdict(change) for change in done]}

    return asyncio.run(_with_registry(url, act))


def export(url: str) -> str:
    """Every published datasource, as YAML."""
    from headgate.datasources.documents import write_yaml

    async def act(registry: Registry) -> str:
        return write_yaml(await registry.export())

    return asyncio.run(_with_registry(url, act))


async def recover(url: str) -> tuple[str, str]:
    """A new admin token, its name and its text, for those who have the database."""
    from headgate.store.tokens import Tokens

    async with opened(url) as database:
        await migrate(database)
        name = f"recovered {datetime.now(UTC):%Y-%m-%d %H:%M:%S}"
        _, text = await Tokens(database).create(name, "admin", _actor("recover"), recovered=True)
        waker = Waker(database)
        waker.wake("events")
        await waker.close()
    return name, text


async def _with_registry(url: str, act: Callable[[Registry], Awaitable[T]]) -> T:
    from headgate.datasources.registry import Registry

    async with opened(url) as database:
        settings = load(database=url)
        await migrate(database)
        waker = Waker(database)
        file = settings.registry_file
        read_only = f"the registry is the file {file}; edit that" if file else ""
        secrets = Secrets(database, load_keyring(settings, embedded=False))
        try:
            return await act(Registry(database, secrets, waker, read_only=read_only))
        finally:
            await waker.close()


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
async def opened(url: str, size: int = 2) -> AsyncIterator[Database]:
    """The database; what it refuses becomes a line that people can read."""
    quiet()
    database = await Database.open(url, size=size)
    try:
        with refusals_in_words():
            yield database
    finally:
        await database.close()


def quiet() -> None:
    """Logs are for nodes: here only what cannot be said otherwise, and never on stdout."""
    structlog.configure(
        wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )


def _actor(doing: str) -> str:
    """Who did it, for the events."""
    try:
        return f"{getpass.getuser()} ({doing})"
    except (KeyError, OSError):  # A container may run as a user without a name.
        return doing
