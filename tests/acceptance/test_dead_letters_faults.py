"""A batch with bad records of every kind, and a node that is killed while it is handled, or while letters are replayed.

`HEADGATE_TEST_KILLS` says how often (30 takes some minutes), `HEADGATE_TEST_KILL_SEED` repeats a run.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from tests.acceptance.test_faults import fetch
from tests.waiting import wait_until

KILLS = int(os.environ.get("HEADGATE_TEST_KILLS", "3"))
SEED = int(os.environ.get("HEADGATE_TEST_KILL_SEED") or time.time_ns())

RECORDS, EACH = 5000, 5
TABLE = """
CREATE TABLE parent (id integer PRIMARY KEY);
INSERT INTO parent VALUES (1);
CREATE TABLE target (
    id bigint PRIMARY KEY, n integer, total numeric CHECK (total >= 0), parent integer REFERENCES parent, note text,
    code varchar(8), at timestamptz
);
CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN IF NEW.note = 'refused' THEN RAISE 'not this one: %', NEW.note; END IF; RETURN NEW; END $$;
CREATE TRIGGER refuse BEFORE INSERT OR UPDATE ON target FOR EACH ROW EXECUTE FUNCTION refuse();
"""
MENDED = """
ALTER TABLE target DROP CONSTRAINT target_total_check, DROP CONSTRAINT target_parent_fkey;
ALTER TABLE target ALTER n TYPE numeric, ALTER code TYPE text, ALTER at TYPE text, ADD COLUMN extra bigint;
DROP TRIGGER refuse ON target;
"""
# What each kind does to a good record; those of the second group can only be helped by editing the letter.
BY_TABLE: dict[str, Callable[[dict[str, Any]], Any]] = {
    "range": lambda record: {**record, "n": 2**40},
    "fraction": lambda record: {**record, "n": 1.5},
    "unknown field": lambda record: {**record, "extra": 1},
    "check": lambda record: {**record, "total": -1},
    "foreign key": lambda record: {**record, "parent": 2},
    "trigger": lambda record: {**record, "note": "refused"},
    "too long": lambda record: {**record, "code": "much too long"},
    "no time": lambda record: {**record, "at": "the day before yesterday"},
}
BY_EDIT: dict[str, Callable[[dict[str, Any]], Any]] = {
    "nul": lambda record: {**record, "note": "a\0b"},
    "no key": lambda record: {**record, "id": None},
    "scalar": lambda record: record["id"],
    "not json": lambda record: record,
}
KINDS = {**BY_TABLE, **BY_EDIT}


def good(id: int) -> dict[str, Any]:
    return {"id": id, "n": id, "total": id / 4, "parent": 1, "note": f"note {id}", "code": "abc", "at": "2026-01-02"}


def write_batch(path: Path, chance: random.Random) -> dict[int, str]:
    """A file of good records with bad ones among them. Returns the kind of each bad one."""
    places = chance.sample(range(RECORDS), EACH * len(KINDS))
    bad = dict(zip(places, list(KINDS) * EACH, strict=True))
    lines = []
    for id in range(RECORDS):
        record = KINDS[bad[id]](good(id)) if id in bad else good(id)
        lines.append("{oops" if bad.get(id) == "not json" else json.dumps(record))
    path.write_text("\n".join(lines) + "\n")
    return bad


def execute(url: str, statements: str) -> None:
    async def run() -> None:
        connection = await asyncpg.connect(url)
        try:
            await connection.execute(statements)
        finally:
            await connection.close()

    asyncio.run(run())


def kill_soon(node: Any, start_node: Any, chance: random.Random, within_s: float) -> Any:
    """Kill the node at some moment, and start another."""
    time.sleep(chance.uniform(0.0, within_s))
    node.end(signal.SIGKILL)
    return start_node(environment={"HEADGATE_LEASE_S": "3"})


def letters(node: Any, outcome: str = "open") -> list[Any]:
    return list(node.call("GET", f"/api/dead-letters?datasource=orders&limit=1000&outcome={outcome}")["items"])


@pytest.mark.parametrize("mode", ["upsert", "insert"])
@pytest.mark.timeout(max(300, 40 * KILLS))
def test_killed_at_any_moment_each_record_is_written_once_or_is_a_letter_once(
    url: str, start_node: Any, tmp_path: Path, mode: str
) -> None:
    chance = random.Random(SEED)
    print(f"HEADGATE_TEST_KILL_SEED={SEED}")
    bad = write_batch(tmp_path / "in.jsonl", chance)
    execute(url, TABLE)
    node = start_node(environment={"HEADGATE_LEASE_S": "3"})
    document = {
        "source": {"type": "files", "path": str(tmp_path / "in.jsonl"), "batch": RECORDS},
        "mapping": {"key": "id"},
        "sink": {"type": "postgres", "url": url, "table": "target", "mode": mode},
    }
    node.apply({"orders": document})
    for _ in range(KILLS):
        node = kill_soon(node, start_node, chance, 3.0)
    finished = node.wait_for("orders", lambda one: bool(one["detail"] == "finished"))
    written = {row["id"] for row in fetch(url, "SELECT id FROM target")}
    assert written == set(range(RECORDS)) - set(bad)
    assert fetch(url, "SELECT count(*) AS n FROM target")[0]["n"] == RECORDS - len(bad)
    wait_until(lambda: len(letters(node)) == len(bad))
    figures = fetch(url, "SELECT * FROM headgate.stream")[0]
    assert finished["health"] == "ended"
    assert figures["records_read"] == RECORDS
    assert figures["records_written"] == RECORDS - len(bad)
    assert figures["records_dead_lettered"] == len(bad)
    for one in letters(node):
        assert one["place"]
        assert one["reason"]
        assert one["stage"] == ("source" if one["reason"] == "the line is not JSON" else "sink")

    # The table is mended, and what only an edit can help is edited. Then all are replayed, under fire again.
    execute(url, MENDED)
    places = {one["place"]: one for one in letters(node)}
    offsets = [0]
    for line in (tmp_path / "in.jsonl").read_text().splitlines():
        offsets.append(offsets[-1] + len(line.encode()) + 1)
    for id, kind in bad.items():
        one = places[f"{tmp_path / 'in.jsonl'}, offset {offsets[id]}"]
        if kind in BY_EDIT:
            node.call("PUT", f"/api/dead-letters/{one['id']}", {"payload": good(id)})
    node.call("POST", "/api/datasources/orders/dead-letters/replay", {"overwrite": True})
    for _ in range(KILLS):
        node = kill_soon(node, start_node, chance, 1.0)
    wait_until(lambda: not letters(node))
    found = fetch(url, "SELECT id, count(*) AS n FROM target GROUP BY id ORDER BY id")
    assert [(row["id"], row["n"]) for row in found] == [(id, 1) for id in range(RECORDS)]
    wait_until(lambda: len(letters(node, "replayed")) == len(bad))
    assert fetch(url, "SELECT records_written FROM headgate.stream")[0]["records_written"] == RECORDS - len(bad)
