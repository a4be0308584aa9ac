"""A real node for each module of tests; every test uses names of its own, so that none sees another's datasources."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, BrowserContext, expect

from headgate.store.embedded import EmbeddedServer
from headgate.testing.processes import NodeProcess
from tests.web.browser import WAIT_MS, running_browser, running_node
from tests.web_node import Databases, Web, numbers, started


@pytest.fixture(scope="module")
def databases(server: EmbeddedServer) -> Iterator[Databases]:
    """Databases for this module."""
    made = Databases(server)
    yield made
    made.drop()


@pytest.fixture(scope="module")
def web(databases: Databases, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Web]:
    """The node of this module."""
    with started(tmp_path_factory.mktemp("node"), databases.make()) as node:
        yield node


@pytest.fixture
def name(request: pytest.FixtureRequest) -> Iterator[str]:
    """A name that no other test uses. What is published under it ends with the test: nodes would run more and more."""
    name = f"ds-{next(numbers)}"
    yield name
    if "web" in request.fixturenames:
        request.getfixturevalue("web").stop_all(name)


# The console's tests have a node with an embedded database, and a browser.


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeProcess]:
    """The node of this module, as `headgate up` starts it."""
    with running_node(tmp_path_factory.mktemp("node")) as node:
        yield node


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """The browser of this module."""
    expect.set_options(timeout=WAIT_MS)
    with running_browser() as browser:
        yield browser


@pytest.fixture
def context(browser: Browser) -> Iterator[BrowserContext]:
    """One profile of it, with nobody signed in."""
    context = browser.new_context(viewport={"width": 1280, "height": 800})
    context.set_default_timeout(WAIT_MS)
    yield context
    context.close()
