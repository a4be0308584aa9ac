"""A real node for each module of tests; every test uses names of its own, so that none sees another's datasources."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from headgate.store.embedded import EmbeddedServer
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
