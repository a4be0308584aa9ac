"""Minutes, as nodes keep them: streams that move, rest, wait and change hands."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from uuid import UUID

import pytest

from headgate.core.minutes import RANGES
from headgate.errors import StoreError
from headgate.store.minutes import Line, Minutes
from tests.runtime.conftest import BLACKHOLE, Harness, generator


async def write(hg: Harness) -> None:
    assert hg.node.manager is not None
    await hg.node.manager.minutes.write()


async def total(hg: Harness, name: str) -> int:
    """The records of the last hour."""
    found = await hg.node.registry.get(name)
    window = await hg.node.minutes.read([found.id], RANGES["1h"])
    return sum(point.read for point in window.points.get(found.id, ()))


async def kept(hg: Harness) -> dict[str, int]:
    """The totals that the latest line of each datasource has."""
    of = "SELECT d.name, max(m.read) AS read FROM headgate.minute m JOIN headgate.datasource d ON d.id = m.datasource"
    rows = await hg.sql(f"{of} GROUP BY d.name")
    return {row["name"]: row["read"] for row in rows}


async def test_what_moved_is_kept_once_through_a_lost_write_a_drained_node_and_a_rest(
    join: Callable[..., Awaitable[Harness]], monkeypatch: pytest.MonkeyPatch
) -> None:
    left = await join("left")
    await left.apply(orders={"source": generator(count=400, rate=5000), "sink": BLACKHOLE})
    await left.apply(still={"source": generator(count=0), "sink": BLACKHOLE})
    await left.until("orders", status="STOPPED", detail="finished")
    await left.until("still", status="STOPPED", detail="finished")
    real = Minutes.write

    async def away(self: Minutes, lines: list[Line]) -> float:
        raise StoreError("the database is away")

    monkeypatch.setattr(Minutes, "write", away)
    with pytest.raises(StoreError):
        await write(left)
    monkeypatch.setattr(Minutes, "write", real)
    await write(left)  # Its streams are gone from this node, and nothing of them is forgotten.
    assert await total(left, "orders") == 400
    lines: list[UUID] = []

    async def seen(self: Minutes, found: list[Line]) -> float:
        lines.extend(line.datasource for line in found)
        return await real(self, found)

    monkeypatch.setattr(Minutes, "write", seen)
    await write(left)
    assert lines == []  # What rests costs nothing.

    right = await join("right")
    await left.apply(orders={"source": generator(count=100_000, rate=500), "sink": BLACKHOLE})
    await left.until("orders", status="RUNNING", detail="running")
    holder, other = (left, right) if (await left.owners())["orders:0"] == "left" else (right, left)
    await write(holder)
    await holder.stop()  # It says its last, and the other one goes on.
    await other.until_owners(orders=other.node.name)
    await other.until("orders", status="RUNNING")
    await other.apply(orders={"source": generator(count=100_000, rate=500), "sink": BLACKHOLE, "enabled": False})
    await other.until("orders", status="STOPPED", detail="stopped")
    await write(other)
    found = await other.node.registry.get("orders")
    listing, _ = (await other.node.registry.states.one(found.id)).of(found.id)
    assert sum(state.totals.read for state in listing) == (await kept(other))["orders"] == await total(other, "orders")
