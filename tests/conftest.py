"""What all tests share: one real PostgreSQL for the run, and a fresh database for each test that asks."""

from __future__ import annotations

import asyncio
import itertools
import os
import shutil
import signal
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import asyncpg
import httpx
import pytest
import structlog

from headgate.store.database import Database
from headgate.store.embedded import EmbeddedServer
from headgate.store.migrate import migrate
from headgate.testing.forks import FORKS_EXIST, Forks
from headgate.testing.processes import NodeProcess
from tests import scratch
from tests.waiting import LONG_S

pytest.register_assert_rewrite("headgate.testing.contract")

LONGEST_FIRST = ("storm", "acceptance", "web", "cli", "runtime", "store", "simulation", "core")

_numbers = itertools.count()
_scratch = scratch.choose()

# No test trusts a public authority. Reading all their certificates took 25 ms for each call of a node's API, and twice
# that on a slow machine: half of what tests themselves cost.
os.environ.pop("SSL_CERT_FILE", None)
os.environ["SSL_CERT_DIR"] = os.devnull

# Unless told otherwise, httpx gives up after five seconds, which an answer may take on a busy machine.
for _step in ("connect", "read", "write", "pool"):
    setattr(httpx._config.DEFAULT_TIMEOUT_CONFIG, _step, LONG_S)

if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    # A run that was started in the background goes on ignoring Ctrl-C, but by a handler: what tests start would inherit
    # SIG_IGN, and some of it is to be ended by Ctrl-C.
    signal.signal(signal.SIGINT, lambda number, frame: None)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The folders whose files take longest begin; the many short files of the others then fill what is left."""
    items.sort(key=lambda item: _rank(item.path))  # It is stable: within a folder, nothing changes its place.


def _rank(path: Path) -> int:
    folder = path.parent.name
    return LONGEST_FIRST.index(folder) if folder in LONGEST_FIRST else len(LONGEST_FIRST)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(exitstatus: int) -> None:
    """What tests wrote is kept only if one failed."""
    if _scratch is not None and exitstatus == pytest.ExitCode.OK:
        shutil.rmtree(_scratch, ignore_errors=True)


@pytest.fixture(scope="session", autouse=FORKS_EXIST)
def forks() -> Iterator[Forks]:
    """The fork server of this run: every node that a test starts is a fork of it."""
    forks = NodeProcess.forks = Forks()
    yield forks
    NodeProcess.forks = None
    forks.close()


@pytest.fixture(autouse=True)
def _logs() -> Iterator[None]:
    """A command that a test runs in its own process may configure logging, which is for that test only."""
    before = structlog.get_config()
    yield
    structlog.configure(**before)


@pytest.fixture(scope="session")
def server() -> Iterator[EmbeddedServer]:
    """One server for the whole run. Not durable: tests that kill a server bring their own."""
    home = Path(tempfile.mkdtemp(prefix="hg"))
    settings = {"fsync": "off", "max_connections": "300", "full_page_writes": "off", "max_wal_size": "256MB"}
    settings |= {"autovacuum": "off", "io_method": "sync"}  # No table of a test lives long enough to need them.
    running = EmbeddedServer.join(home, settings)
    asyncio.run(_make_template(running.url))
    yield running
    running.leave()
    shutil.rmtree(home, ignore_errors=True)


async def _make_template(url: str) -> None:
    """A database with the schema in it, to copy from."""
    connection = await asyncpg.connect(url)
    await connection.execute("CREATE DATABASE template_headgate")
    await connection.close()
    database = await Database.open(url.replace("/headgate?", "/template_headgate?"))
    await migrate(database)
    await database.close()


@pytest.fixture
async def empty_url(server: EmbeddedServer) -> AsyncIterator[str]:
    """The URL of a new, empty database."""
    async for url in _fresh(server, "template1"):
        yield url


@pytest.fixture
async def url(server: EmbeddedServer) -> AsyncIterator[str]:
    """The URL of a new database with Headgate's schema."""
    async for url in _fresh(server, "template_headgate"):
        yield url


async def _fresh(server: EmbeddedServer, template: str) -> AsyncIterator[str]:
    name = f"t{os.getpid()}_{next(_numbers)}"
    connection = await asyncpg.connect(server.url)
    await connection.execute(f"CREATE DATABASE {name} TEMPLATE {template} STRATEGY FILE_COPY")
    try:
        yield server.url.replace("/headgate?", f"/{name}?")
    finally:
        await connection.execute(f"DROP DATABASE {name} WITH (FORCE)")
        await connection.close()


@pytest.fixture
async def database(url: str) -> AsyncIterator[Database]:
    """A connected database with the schema."""
    database = await Database.open(url)
    yield database
    await database.close()


@pytest.fixture
def start_node(tmp_path: Path, url: str) -> Iterator[object]:
    """Start `headgate up` as a process of its own, on this test's database. Ends what is left."""
    started: list[NodeProcess] = []

    def start(home: str = "home", **options: object) -> NodeProcess:
        token = started[0].token if started else ""
        node = NodeProcess.start(tmp_path / home, database=url, token=token, **options)  # type: ignore[arg-type]
        started.append(node)
        return node

    yield start
    for node in started:
        node.end(signal.SIGKILL)
