"""Backfill: old records through a datasource's mapping into its sink, beside the live stream; and dumps on nodes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from headgate.errors import NotFound, Refused
from headgate.runtime.dumps import backfill, views
from headgate.runtime.dumps.plan import Request, create
from tests.runtime.conftest import Harness
from tests.waiting import until


def orders(url: str, **source: Any) -> dict[str, Any]:
    """A datasource that counts, and upserts what it counts."""
    return {
        "source": {"type": "generator", "fields": {"id": "sequence", "name": "word"}, **source},
        "mapping": {"where": "id % 10 != 9", "set": {"id": "id", "name": "upper(name)", "via": "'live'"}, "key": "id"},
        "sink": {"type": "postgres", "url": url, "table": "orders", "mode": "upsert"},
    }


async def ended(harness: Harness, dump: Any) -> Any:
    """How a dump that nodes run ends."""

    async def has_ended() -> Any:
        found = await harness.node.dumps.find(str(dump))
        return found if found.status != "running" else None

    return await until(has_ended)


async def begin(harness: Harness, wish: backfill.Wish, name: str = "orders") -> Any:
    found = await harness.node.registry.get(name)
    _, prepared = await backfill.running_version(harness.node.registry, found.id)
    return await backfill.create(harness.node.dumps, found.id, name, prepared, wish, "tester")


async def test_old_records_go_through_the_mapping_and_the_live_ones_stay(hg: Harness, url: str, tmp_path: Path) -> None:
    old = tmp_path / "old.jsonl"
    old.write_text("".join(f'{{"id": {number}, "name": "old {number}"}}\n' for number in range(1000)))
    await hg.apply(orders=orders(url, count=50))
    await hg.until_rows(44, "orders")
    await hg.until("orders", status="STOPPED", detail="finished")
    before = await hg.sql("SELECT position::text FROM headgate.stream")
    found = await ended(hg, await begin(hg, backfill.Wish(str(old), rows=100)))
    assert found.status == "completed", found.error
    rows = await hg.sql("SELECT name LIKE 'OLD %' AS is_old, count(*) FROM orders GROUP BY 1 ORDER BY 1")
    assert [tuple(row) for row in rows] == [(False, 45), (True, 855)], "the mapping drops one in ten"
    assert await hg.sql("SELECT position::text FROM headgate.stream") == before


async def test_a_source_with_a_history_is_read_itself_beside_the_live_stream(hg: Harness, url: str) -> None:
    await hg.apply(orders=orders(url, count=300, rate=50))
    await hg.until_rows(1, "orders")
    found = await ended(hg, await begin(hg, backfill.Wish(rows=50)))
    assert found.status == "completed", found.error
    assert len(await hg.ids("orders")) == 270


async def test_nothing_of_the_sinks_url_is_shown_because_it_may_be_a_secret(hg: Harness, url: str) -> None:
    await hg.node.registry.set_secret("warehouse", url, "tester")
    document = orders(url, count=30)
    document["sink"]["url"] = {"$secret": "warehouse"}
    await hg.apply(orders=document)
    await hg.until_rows(1, "orders")
    dump = await begin(hg, backfill.Wish(rows=50))
    found = await views.describe(hg.node.dumps, str(dump))
    assert (found.source, found.target) == ("history:orders", "sink:orders")
    assert "postgresql://" not in str([await views.listed(hg.node.dumps, 10), found])
    await ended(hg, dump)


async def test_what_cannot_be_backfilled_is_refused(hg: Harness, url: str, tmp_path: Path) -> None:
    plain = orders(url)
    plain["sink"] = {"type": "postgres", "url": url, "table": "plain"}
    await hg.apply(orders=orders(url, rate=1), plain=plain)
    with pytest.raises(Refused, match="does not upsert"):
        await begin(hg, backfill.Wish("x.jsonl"), "plain")
    with pytest.raises(Refused, match="keeps no history"):
        await begin(hg, backfill.Wish())
    with pytest.raises(NotFound):
        await begin(hg, backfill.Wish(str(tmp_path / "absent.jsonl")))


async def test_a_dump_that_is_spread_is_worked_on_by_all_nodes_and_outlives_the_one_that_plans_it(
    join: Callable[..., Awaitable[Harness]], url: str, tmp_path: Path
) -> None:
    source = tmp_path / "numbers.csv"
    source.write_text("id\n" + "".join(f"{number}\n" for number in range(20_000)))
    first = await join("first")
    request = Request(str(source), url, rows=500, rate="4000", spread=True, place="nodes", actor="tester")
    dump = await create(first.node.dumps, request)
    await first.until_true(lambda: has_pools(first, dump, 1))
    second = await join("second")
    second.node.dumps._keyring = first.node.dumps._keyring
    await first.until_true(lambda: has_pools(first, dump, 2))
    await first.stop()
    await second.node.dumps.set_rate(dump, None)
    found = await ended(second, dump)
    assert found.status == "completed", found.error
    assert found.epoch == 2
    rows = await second.sql("SELECT count(*), count(DISTINCT id) FROM numbers")
    assert tuple(rows[0]) == (20_000, 20_000)


async def has_pools(harness: Harness, dump: Any, number: int) -> bool:
    """Whether workers of so many nodes have copied something."""
    rows = await harness.sql(
        "SELECT DISTINCT split_part(worker, '.', 1) FROM headgate.dump_attempt WHERE dump = $1", dump
    )
    return len(rows) >= number
