"""Several nodes on one database, for the tests of this folder."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.acceptance.cluster import Cluster


@pytest.fixture
async def cluster(tmp_path: Path, url: str) -> AsyncIterator[Cluster]:
    """Nodes, and the table that their streams write into."""
    found = Cluster(tmp_path, url)
    try:
        await found.fetch("CREATE TABLE target (stream text, id bigint)")
        yield found
    finally:
        await found.close()
