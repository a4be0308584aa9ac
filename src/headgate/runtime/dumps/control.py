"""What may be asked of dumps: the same for the commands, the API and the console.

What is asked of a dump that a process runs is written down, and that process looks a few times in a second. What is
asked of one that no process runs is done here. `core.chunks.outcome` says in which status what may be asked.
"""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from uuid import UUID

from headgate.connectors.api.bulk import By, Cleans
from headgate.core.chunks import outcome
from headgate.core.chunks.outcome import ALLOWED, RESUMABLE, DumpWanted, Status
from headgate.errors import ConfigError, HeadgateError, NotFound, Refused
from headgate.hidden import hide
from headgate.ids import new_id
from headgate.runtime.dumps import tables
from headgate.runtime.dumps.addresses import Addresses, written
from headgate.runtime.dumps.plan import (
    SOURCE_TIMEOUT_S,
    Rate,
    Storages,
    file_of,
    is_planned,
    options_of,
    parse_rate,
    plan_of,
    short,
)
from headgate.runtime.dumps.processes import is_dead, process_name
from headgate.runtime.dumps.views import DumpView, describe, is_run, status_of
from headgate.store.dump_rows import DumpRow, TableRow, Urls
from headgate.store.dumps import Dumps

MOST_CHUNKS = 10_000  # Of a list: a longer one is a mistake.


async def storages_of(
    dumps: Dumps,
    row: DumpRow,
    source: str | None = None,
    target: str | None = None,
    source_timeout_s: float = SOURCE_TIMEOUT_S,
    addresses: Addresses | None = None,
) -> Storages:
    """Where a dump reads and writes; what was not kept has to be given. `addresses`: what a node may reach for it."""
    kept = await dumps.urls(row.id) or Urls("", "")
    source, target = source or kept.source, target or kept.target
    if not source or not target:
        raise Refused(
            "the URLs of this dump cannot be read: no master key was set, or it has changed",
            code="no_urls",
            hint="give them with --source URL --target URL",
        )
    options = options_of(row)
    if addresses is None:
        sides = written(source), written(target)
    else:
        sides = await addresses.both(source, target, is_trusted=not options.is_bounded)
    timeout_s = options.source_timeout_s or source_timeout_s
    return replace(Storages.of(*sides, options.own), source_timeout_s=timeout_s)


async def pause(dumps: Dumps, id: str) -> DumpView:
    """Begin no more chunks; those under way are finished."""
    row = await _allowed(dumps, id, "paused")
    await dumps.set_wanted(row.id, DumpWanted.PAUSE)
    return await describe(dumps, str(row.id))


async def resume(dumps: Dumps, id: str) -> DumpView:
    """Go on, where that needs no process here: its process waits, or nodes take it. Else refused with the code
    `here`."""
    row = await _allowed(dumps, id, "resumed")
    _check_place(row, "resume")
    await dumps.set_lists(row.id, None)
    return await _run_again(dumps, row)


async def retry(dumps: Dumps, id: str, chunks: str, table: str | None = None) -> DumpView:
    """Try only these chunks of a table again, where nodes take the dump. Else refused with the code `here`."""
    row = await _allowed(dumps, id, "retried")
    _check_place(row, f"retry --chunks {chunks}")
    await choose(dumps, row, chunks, table)
    return await _run_again(dumps, row)


async def choose(dumps: Dumps, row: DumpRow, chunks: str, table: str | None = None) -> None:
    """Let the next run be for these chunks only."""
    status = status_of(row)
    if status not in ALLOWED["retried"]:
        raise _refused(row, status, "retried")
    numbers = parse_chunks(chunks)
    chosen = _table_of(await dumps.tables(row.id), table, row)
    if plan_of(chosen).source.by is By.BLOCK:
        raise Refused(
            f"{chosen.name} is cut by blocks, which mean nothing in another snapshot: it is copied again",
            code="blocks",
            hint=f"headgate dumps resume {short(row.id)}",
        )
    outcome.check_list([one.chunk for one in await dumps.chunks.all(row.id, chosen.number)], numbers)
    await dumps.set_lists(row.id, {chosen.number: numbers})


def parse_chunks(text: str) -> list[int]:
    """`3,7-9` is the chunks 3, 7, 8 and 9."""
    numbers: set[int] = set()
    for part in text.replace("–", "-").split(","):
        found = re.fullmatch(r"\s*(\d{1,9})\s*(?:-\s*(\d{1,9})\s*)?", part)
        first, last = (int(found[1]), int(found[2] or found[1])) if found else (1, 0)
        if first > last or last - first >= MOST_CHUNKS:
            raise ConfigError(f"{text!r} is not a list of chunks", hint="3, or 3,7-9, as headgate dumps history shows")
        numbers.update(range(first, last + 1))
    return sorted(numbers)


def _table_of(rows: list[TableRow], name: str | None, dump: DumpRow) -> TableRow:
    found = [row for row in rows if name in (None, row.name, row.target)]
    if not found:
        raise NotFound(f"dump {short(dump.id)} has no table {name}", hint=f"headgate dumps show {short(dump.id)}")
    if len(found) > 1:
        raise Refused(f"dump {short(dump.id)} has several tables", code="which", hint="name one with --table")
    return found[0]


def _check_place(row: DumpRow, command: str) -> None:
    """Refuse what a process of this machine would have to run."""
    if not is_run(row) and row.place != "nodes":
        verb, _, rest = command.partition(" ")
        words = f"headgate dumps {verb} {short(row.id)} {rest}".rstrip()
        raise Refused(
            "this dump was not given to the nodes, and no process runs it",
            code="here",
            hint=f"on a machine that reaches both storages: {words}",
        )


async def _run_again(dumps: Dumps, row: DumpRow) -> DumpView:
    await dumps.set_wanted(row.id, DumpWanted.RUN)
    if not is_run(row):
        await dumps.set_status(row.id, Status.RUNNING)
    return await describe(dumps, str(row.id))


async def set_rate(dumps: Dumps, id: str, rate: str | None) -> DumpView:
    """How fast it may go from now on; None or `max` is as fast as it goes."""
    wanted = None if parse_rate(rate) == Rate() else rate
    row = await _allowed(dumps, id, "given a rate")
    await dumps.set_rate(row.id, wanted)
    return await describe(dumps, str(row.id))


async def cancel(dumps: Dumps, id: str, addresses: Addresses | None = None) -> DumpView:
    """Give it up. Tables that were being built are removed; rows that were appended stay."""
    row = await _allowed(dumps, id, "cancelled")
    if status_of(row) is not Status.CANCELLED:
        await dumps.set_wanted(row.id, DumpWanted.CANCEL)
        if not is_run(row):
            await _give_up(dumps, row, addresses)
    return await describe(dumps, str(row.id))


async def delete(dumps: Dumps, id: str, home: Path) -> DumpView:
    """Forget one that is over: its plan, its history, and the history that was saved here. No storage is touched."""
    found = await describe(dumps, id)
    if found.status not in ALLOWED["deleted"] or not await dumps.delete(UUID(found.id)):
        raise Refused(
            f"dump {found.short} is {found.status}; only one that is completed or cancelled can be deleted",
            code=found.status,
            hint=f"headgate dumps cancel {found.short}",
        )
    file_of(home, UUID(found.id)).unlink(missing_ok=True)
    return found


async def clean(dumps: Dumps, id: str, target: str | None = None, addresses: Addresses | None = None) -> DumpView:
    """Remove from the target what a dump that is over has left for itself: its lines of the ledger, and the ledger
    after the last of them; of files, what is hidden next to them. What was copied stays."""
    row = await _allowed(dumps, id, "cleaned")
    kept = await dumps.urls(row.id)
    writer = (await storages_of(dumps, row, kept.source if kept else target, target, addresses=addresses)).write()
    try:
        if isinstance(writer, Cleans):
            planned = [one for one in await dumps.tables(row.id) if is_planned(one)]
            await writer.clean(row.id, [plan_of(one).job.target for one in planned])
    finally:
        with suppress(Exception):
            await writer.close()
    return await describe(dumps, str(row.id))


async def _give_up(dumps: Dumps, row: DumpRow, addresses: Addresses | None) -> None:
    """Cancel a dump that no process runs. A process that begins to run it meanwhile sees that it should not."""
    me, dump = new_id(), row.id
    dead = row.process if is_dead(row.process) else None
    if await dumps.claim(dump, me, process_name(), dead) is None:
        return
    try:
        if (await dumps.find(str(dump))).status is not Status.COMPLETED:
            left = await _remove(dumps, row, addresses)
            await dumps.set_status(dump, Status.CANCELLED, left)
    finally:
        await dumps.release(dump, me)


async def _remove(dumps: Dumps, row: DumpRow, addresses: Addresses | None) -> str:
    """Remove tables that were being built. Returns what could not be removed."""
    rows = await dumps.tables(row.id)
    if not tables.begun(rows) or row.datasource_id is not None:  # A backfill builds no tables.
        return ""
    try:
        writer = (await storages_of(dumps, row, addresses=addresses)).write()
    except HeadgateError as error:
        return f"{tables.LEFT}: {hide(error.message)}"
    try:
        return await tables.remove(writer, rows)
    finally:
        with suppress(Exception):
            await writer.close()


_WHY = {
    Status.RUNNING: "is running",
    Status.WAITING: "waits for a node",
    Status.COMPLETED: "is completed",
    Status.CANCELLED: "is cancelled",
    Status.CANCELLING: "is being cancelled",
}


async def _allowed(dumps: Dumps, id: str, action: str) -> DumpRow:
    """The dump, if this may be asked of it now."""
    row = await dumps.find(id)
    if (status := status_of(row)) not in ALLOWED[action]:
        raise _refused(row, status, action)
    return row


def _refused(row: DumpRow, status: Status, action: str) -> Refused:
    """Not in this status; and what to do instead."""
    id = short(row.id)
    why = _WHY.get(status, f"is {status}, and no process runs it")
    hint = f"headgate dumps resume {id}" if status in RESUMABLE else f"headgate dumps show {id}"
    return Refused(f"dump {id} {why} and cannot be {action}", code=status, hint=hint)
