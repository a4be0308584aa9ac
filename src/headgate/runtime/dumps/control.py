"""What people and programs see of dumps and may ask of them: the same for the commands, the API and the console.

A dump's status is one word:

    running      somebody copies             completed    all of it is there
    paused       told to wait                incomplete   some tables are there, and others could not be copied
    waiting      for a node to take it       failed       a storage was gone
    cancelling   told to end                 interrupted  whoever ran it has ended, or died
                                             cancelled    given up

What is asked of a dump that somebody runs is written down, and its process looks a few times in a second. What is asked
of one that nobody runs is done here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec

from headgate.core.chunks import Chunk, State
from headgate.errors import HeadgateError, Refused
from headgate.ids import new_id
from headgate.runtime.dumps.history import attempt_of
from headgate.runtime.dumps.plan import Options, Rate, Storages, file_of, parse_rate, plan_of, short
from headgate.runtime.dumps.workers import is_dead, process_name
from headgate.store.dumps import Dumps
from headgate.store.rows import decode
from headgate.text import error_line

INTERRUPTED = "interrupted"
OVER = ("completed", "cancelled")
RESUMABLE = ("paused", "interrupted", "failed", "incomplete")
STATUSES = (
    "failed",
    "incomplete",
    "interrupted",
    "cancelling",
    "paused",
    "waiting",
    "running",
    "completed",
    "cancelled",
)  # What needs somebody first.
NEARLY = 0.99  # The rows of a table are known roughly: until it is done it is never all there.


# What is seen.


async def describe(dumps: Dumps, id: str) -> dict[str, Any]:
    """All about one dump."""
    row = await dumps.find(id)
    tables = [_table(one) for one in await dumps.tables(row["id"])]
    found = summary(row)
    found["expected_rows"] = _sum(one["expected_rows"] for one in tables)
    found["expected_bytes"] = _sum(one["expected_bytes"] for one in tables)
    pace = await dumps.pace(row["id"]) if found["status"] == "running" else None
    rows_s, bytes_s = _speed(pace)
    return {
        **found,
        "share": _share(found, is_done=found["status"] == "completed"),
        "rows_per_s": rows_s,
        "bytes_per_s": bytes_s,
        "eta_s": _left_s(found, rows_s, bytes_s),
        "tables": tables,
    }


async def listed(dumps: Dumps, most: int) -> list[dict[str, Any]]:
    """All dumps, newest first, each without its tables."""
    return [summary(row) for row in await dumps.all(most)]


def summary(row: Any) -> dict[str, Any]:
    """One dump in short; its tables are a number."""
    status = status_of(row)
    options = options_of(row)
    found = {
        "id": str(row["id"]),
        "short": short(row["id"]),
        "source": row["source"],
        "target": row["target"],
        "status": status,
        "error": row["error"],
        "resume": f"headgate dumps resume {short(row['id'])}" if status in RESUMABLE else None,
        "mode": str(options.mode),
        "workers": options.workers,
        "rate": row["rate"],
        "fuzzy": row["fuzzy"],
        "place": row["place"],
        "spread": row["spread"],
        "process": row["process"] if is_run(row) else None,
        "datasource": row["datasource"],
        "actor": row["actor"],
        "created_at": row["created_at"].isoformat(),
        "ended_at": row["ended_at"] and row["ended_at"].isoformat(),
        "seconds": _seconds(row["created_at"], row["ended_at"]),
        "tables": row["tables"],
        "tables_done": row["finished"],
        "rows": row["rows"],
        "bytes": row["bytes"],
        "expected_rows": row["expected_rows"],
        "expected_bytes": row["expected_bytes"],
        "chunks": row["chunks"],
        "chunks_done": row["done"],
        "chunks_failed": row["failed"],
    }
    return {**found, "share": _share(found, is_done=status == "completed")}


def status_of(row: Any) -> str:
    """The word for what a dump is at."""
    status: str = row["status"]
    if status == "failed" and row["error"] == INTERRUPTED:
        return "interrupted"
    if status != "running":
        return status
    if not is_run(row) and row["place"] != "nodes":
        return "interrupted"
    told = {"pause": "paused", "cancel": "cancelling"}.get(row["wanted"])
    return told or ("running" if is_run(row) else "waiting")


def is_run(row: Any) -> bool:
    """Whether a process that lives runs it, as far as can be seen from here."""
    return bool(row["is_run"]) and not is_dead(row["process"])


def options_of(row: Any) -> Options:
    """How a dump is done."""
    return msgspec.convert(decode(row["options"]), Options)


def _table(row: Any) -> dict[str, Any]:
    plan = plan_of(row)
    is_done, is_part = row["state"] == "done", bool(plan.since)
    found = {
        "name": row["name"],
        "target": row["target"],
        "state": row["state"],
        "rows": row["rows"],
        "bytes": row["bytes"],
        "expected_rows": row["rows"] if is_done else None if is_part else plan.job.source.rows,
        "expected_bytes": row["bytes"] if is_done else None if is_part else plan.job.source.size,
        "chunks": row["chunks"],
        "chunks_done": row["done"],
        "chunks_failed": row["failed"],
        "is_planned": row["planned"],
        "seconds": _seconds(row["started_at"], row["ended_at"]) if row["started_at"] else None,
        "error": row["error"],
    }
    return {**found, "share": _share(found, is_done=is_done)}


def _share(found: dict[str, Any], *, is_done: bool) -> float | None:
    """How much of it is done, of one: by rows, or by bytes where rows are not known before. None: nobody knows."""
    if is_done:
        return 1.0
    for what in ("rows", "bytes"):
        expected: int | None = found[f"expected_{what}"]
        if expected:
            return round(min(NEARLY, int(found[what]) / expected), 4)
    return None


def _left_s(found: dict[str, Any], rows_s: float | None, bytes_s: float | None) -> float | None:
    for what, speed in (("rows", rows_s), ("bytes", bytes_s)):
        expected: int | None = found[f"expected_{what}"]
        if expected and speed:
            return round(max(0, expected - int(found[what])) / speed, 1)
    return None


def _sum(numbers: Iterable[int | None]) -> int | None:
    total = 0
    for number in numbers:
        if number is None:
            return None
        total += number
    return total


def _speed(pace: Any) -> tuple[float | None, float | None]:
    if pace is None or not pace["span_s"] or not pace["rows"]:
        return None, None
    return round(pace["rows"] / pace["span_s"], 1), round(pace["bytes"] / pace["span_s"], 1)


def _seconds(began: datetime, ended: datetime | None) -> float:
    return round(((ended or datetime.now(UTC)) - began).total_seconds(), 3)


async def chunks(dumps: Dumps, id: str, table: str | None = None) -> list[dict[str, Any]]:
    """Every chunk that is planned, in the order of the plan; of all tables, or of one."""
    row = await dumps.find(id)
    tables = {one["number"]: one for one in await dumps.tables(row["id"]) if table in (None, one["name"])}
    found = await dumps.chunks(row["id"])
    return [_chunk(tables[number], chunk, size) for number, chunk, size in found if number in tables]


def _chunk(table: Any, chunk: Chunk, size: int) -> dict[str, Any]:
    return {
        "table": table["name"],
        "target": table["target"],
        "chunk": chunk.number,
        "state": str(chunk.state),
        "lo": chunk.range.lo,
        "hi": chunk.range.hi,
        "rows": chunk.rows,
        "bytes": size,
        "attempts": chunk.attempts,
        "worker": chunk.worker,
        "error": chunk.error,
    }


_WORST = (State.FAILED, State.LEASED, State.PLANNED, State.DONE)


def squares(found: Sequence[dict[str, Any]], most: int) -> list[dict[str, Any]]:
    """The map of a table: a square for each chunk; for several, if there are too many. Each has the worst state of its
    chunks, so that none that failed is lost among those that are done."""
    each = max(1, -(-len(found) // most))
    made = []
    for start in range(0, len(found), each):
        some = found[start : start + each]
        worst = min(some, key=lambda one: _WORST.index(State(one["state"])))
        numbers = f"{some[0]['chunk']}–{some[-1]['chunk']}" if len(some) > 1 else str(some[0]["chunk"])
        rows = sum(one["rows"] for one in some)
        made.append({"chunks": numbers, "state": worst["state"], "rows": rows, "error": worst["error"]})
    return made


async def history(dumps: Dumps, id: str, after: int = 0, most: int = 1000) -> list[dict[str, Any]]:
    """Attempts after this one, oldest first."""
    row = await dumps.find(id)
    return [{"id": one["id"], **attempt_of(one)} for one in await dumps.history(row["id"], after, most)]


async def storages_of(dumps: Dumps, row: Any, source: str | None = None, target: str | None = None) -> Storages:
    """Where a dump reads and writes; what was not kept has to be given."""
    kept = await dumps.urls(row["id"]) or {}
    source, target = source or kept.get("source"), target or kept.get("target")
    if not source or not target:
        raise Refused(
            "the URLs of this dump were not kept: there was no master key, or it is another now",
            code="no_urls",
            hint="give them with --source URL --target URL",
        )
    return Storages(source, target, options_of(row).own)


# What is asked.


async def pause(dumps: Dumps, id: str) -> dict[str, Any]:
    """Begin no more chunks; those under way are finished."""
    row = await dumps.find(id)
    status = status_of(row)
    if status not in ("running", "waiting", "paused"):
        raise _refused(row, status, "paused")
    await dumps.set_wanted(row["id"], "pause")
    return await describe(dumps, str(row["id"]))


async def resume(dumps: Dumps, id: str) -> dict[str, Any]:
    """Go on, where that needs nobody here: its process waits, or nodes take it. Refused with the code `here` if not."""
    row = await dumps.find(id)
    status = status_of(row)
    if status not in RESUMABLE:
        raise _refused(row, status, "resumed")
    if not is_run(row) and row["place"] != "nodes":
        raise Refused(
            "nobody runs this dump, and it is not one for nodes",
            code="here",
            hint=f"on a machine that reaches both storages: headgate dumps resume {short(row['id'])}",
        )
    await dumps.set_wanted(row["id"], "run")
    if not is_run(row):
        await dumps.set_status(row["id"], "running")
    return await describe(dumps, str(row["id"]))


async def set_rate(dumps: Dumps, id: str, rate: str | None) -> dict[str, Any]:
    """How fast it may go from now on; None or `max` is as fast as it goes."""
    wanted = None if parse_rate(rate) == Rate() else rate
    row = await dumps.find(id)
    status = status_of(row)
    if status in (*OVER, "cancelling"):
        raise _refused(row, status, "given a rate")
    await dumps.set_rate(row["id"], wanted)
    return await describe(dumps, str(row["id"]))


async def cancel(dumps: Dumps, id: str) -> dict[str, Any]:
    """Give it up. What was built beside is removed; rows that were appended stay."""
    row = await dumps.find(id)
    status = status_of(row)
    if status == "completed":
        raise _refused(row, status, "cancelled")
    if status != "cancelled":
        await dumps.set_wanted(row["id"], "cancel")
        if not is_run(row):
            await _give_up(dumps, row)
    return await describe(dumps, str(row["id"]))


async def delete(dumps: Dumps, id: str, home: Path) -> dict[str, Any]:
    """Forget one that is over: its plan, its history, and the history that was saved here. No storage is touched."""
    found = await describe(dumps, id)
    if found["status"] not in OVER or not await dumps.delete(UUID(found["id"])):
        raise Refused(
            f"dump {found['short']} is {found['status']}; only one that is completed or cancelled can be deleted",
            code=found["status"],
            hint=f"headgate dumps cancel {found['short']}",
        )
    file_of(home, UUID(found["id"])).unlink(missing_ok=True)
    return found


async def _give_up(dumps: Dumps, row: Any) -> None:
    """Cancel a dump that nobody runs. Whoever begins to run it meanwhile sees that it should not."""
    me, dump = new_id(), row["id"]
    dead = row["process"] if is_dead(row["process"]) else None
    if await dumps.claim(dump, me, process_name(), dead) is None:
        return
    try:
        if (await dumps.find(str(dump)))["status"] != "completed":
            left = await _removed(dumps, row)
            await dumps.set_status(dump, "cancelled", left)
    finally:
        await dumps.release(dump, me)


async def _removed(dumps: Dumps, row: Any) -> str:
    """Remove what was built beside. Returns what could not be."""
    begun = [one for one in await dumps.tables(row["id"]) if one["state"] not in ("done", "waiting")]
    if not begun or row["datasource_id"] is not None:  # A backfill builds nothing beside.
        return ""
    try:
        writer = (await storages_of(dumps, row)).write()
    except HeadgateError as error:
        return f"what was built beside may be left in the target: {error.message}"
    left = []
    try:
        for one in begun:
            try:
                await writer.drop(plan_of(one).job)
            except HeadgateError as error:
                left.append(f"{one['target']}: {error_line(error)}")
    finally:
        with suppress(Exception):
            await writer.close()
    return f"what was built beside may be left in the target: {'; '.join(left)}" if left else ""


_WHY = {
    "running": "is running",
    "waiting": "waits for a node",
    "completed": "is completed",
    "cancelled": "is cancelled",
    "cancelling": "is being cancelled",
}


def _refused(row: Any, status: str, wish: str) -> Refused:
    """Not in this state; and what to do instead."""
    id = short(row["id"])
    why = _WHY.get(status, f"is {status}, and nobody runs it")
    hint = f"headgate dumps resume {id}" if status in RESUMABLE else f"headgate dumps show {id}"
    return Refused(f"dump {id} {why} and cannot be {wish}", code=status, hint=hint)
