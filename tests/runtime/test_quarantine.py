"""A datasource that blocked a node while the database was away: the node's next start quarantines it."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

from headgate.runtime.cluster import quarantine
from tests.runtime.conftest import BLACKHOLE, Harness, generator, running_node


async def published(hg: Harness) -> UUID:
    await hg.apply(orders={"source": generator(), "sink": BLACKHOLE})
    return (await hg.node.registry.get("orders")).id


async def test_the_next_start_quarantines_what_blocked_the_node(hg: Harness, url: str, tmp_path: Path) -> None:
    home = tmp_path / "next"
    quarantine.leave(home, await published(hg), "it blocked the event loop")
    async with running_node(url, home, node_name="next") as after:
        assert (await after.state("orders"))["quarantine"] == "it blocked the event loop"
        assert "quarantined" in await after.events("orders")
    assert [file.name for file in home.rglob("*.json")] == ["witness.json"]


async def test_what_an_older_version_wrote_is_read_once(hg: Harness, url: str, tmp_path: Path) -> None:
    home = tmp_path / "upgraded"
    (home / "set-aside").mkdir(parents=True)
    file = home / "set-aside" / f"{await published(hg)}.json"
    file.write_text('{"reason": "it blocked the event loop"}')
    async with running_node(url, home, node_name="upgraded") as after:
        assert (await after.state("orders"))["quarantine"] == "it blocked the event loop"
    assert not file.exists()
