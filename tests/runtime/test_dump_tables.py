"""The tables of a dump, when all of them are copied."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pytest

from headgate.connectors.api.bulk import Job, Left, StorageError, StorageGone, Table
from headgate.runtime.dumps import tables


class Writer:
    """One that cannot make indexes, for this reason."""

    family = ""

    def __init__(self, error: StorageError) -> None:
        self._error = error

    async def index(self, job: Job) -> list[Left]:
        raise self._error


@pytest.fixture
def rows(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    class Plan:
        job = Job(uuid4(), Table("t", ()), "t", created=True)

    monkeypatch.setattr(tables, "plan_of", lambda row: Plan)
    return [None]


async def test_an_index_that_cannot_be_made_is_named(rows: list[Any]) -> None:
    (left,) = await tables.link(Writer(StorageError("it is too long")), rows)  # type: ignore[arg-type]
    assert left == Left("schema", of="t", why="it is too long")


async def test_a_target_that_is_gone_is_not_an_index_that_cannot_be_made(rows: list[Any]) -> None:
    with pytest.raises(StorageGone):
        await tables.link(Writer(StorageGone("the server does not answer")), rows)  # type: ignore[arg-type]
