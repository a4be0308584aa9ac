"""`headgate dumps`: what became of dumps, and what operators ask of them; at a node, or straight on the database."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from time import monotonic
from typing import TYPE_CHECKING, Annotated

import typer

from headgate.cli import dumping
from headgate.cli.call import Call, Yes, command, confirm, noun
from headgate.cli.dump_places import AtNode, is_at_node, place_of, refuse
from headgate.cli.dumping import Database, Desk
from headgate.cli.failures import FAILED
from headgate.cli.output import DASH, ago, complain, one_line, pairs, table
from headgate.cli.progress import LINES_S
from headgate.errors import Refused
from headgate.text import counted, duration, size

if TYPE_CHECKING:
    from collections.abc import Callable

    from headgate.cli.client import Reply
    from headgate.core.chunks import Bound
    from headgate.runtime.dumps.verdicts import VerifiedView
    from headgate.runtime.dumps.views import AttemptList, AttemptView, DumpList, DumpSummary, DumpView
    from headgate.store.dump_rows import DumpRow

MOST = 10_000  # Dumps that are looked at.

app = noun("Dumps: tables that are copied, or were, from one storage to another.")

Id = Annotated[str, typer.Argument(metavar="ID", help="The dump, by its id or the beginning of it.")]
Limit = Annotated[int, typer.Option("--limit", "-n", min=1, max=100_000, help="How many to show.")]
After = Annotated[int, typer.Option("--after", min=0, metavar="N", help="Only attempts after this one.")]
OlderDays = Annotated[int, typer.Option("--older", min=0, metavar="DAYS", help="Only those that ended before that.")]
RateText = Annotated[str, typer.Argument(metavar="RATE", help="5000 or 20k rows, or 20MB, a second; max: no limit.")]
Repair = Annotated[bool, typer.Option("--repair", help="Copy again the chunks that differ.")]
Source = Annotated[str | None, typer.Option("--source", metavar="URL", help="The source, if its URL was not kept.")]
Target = Annotated[str | None, typer.Option("--target", metavar="URL", help="The target, if its URL was not kept.")]
Chunks = Annotated[
    str, typer.Option("--chunks", metavar="N,N-N", help="Only these chunks, by the numbers that history shows.")
]
Table = Annotated[str | None, typer.Option("--table", "-t", metavar="TABLE", help="Of this table; needed if several.")]
Here = Annotated[bool, typer.Option("--here", help="Run it in this process, also if it is for nodes.")]


@command(app, "list")
def list_(call: Call, limit: Limit = 50, database: Database = None) -> None:
    """All dumps, the newest first."""
    call.relay(place_of(call, database).all(limit), _table)


@command(app, "show")
def show(call: Call, id: Id, database: Database = None) -> None:
    """One dump and its tables."""
    call.relay(place_of(call, database).one(id), _page)


@command(app, "pause")
def pause(call: Call, id: Id, database: Database = None) -> None:
    """Have a dump begin no more chunks; those under way are finished."""
    _say(call, place_of(call, database).pause(id), "is paused")


@command(app, "cancel")
def cancel(call: Call, id: Id, database: Database = None) -> None:
    """Give a dump up. Tables that it was building are removed; rows that it appended stay."""
    _say(call, place_of(call, database).cancel(id), "is {status}")


@command(app, "delete")
def delete(call: Call, id: Id, database: Database = None) -> None:
    """Forget a dump that is completed or cancelled, and its history. What it copied stays."""
    found = place_of(call, database).delete(id)
    call.say({"id": found.id, "action": "delete"}, f"deleted dump {found.short}")


@command(app, "clean")
def clean(call: Call, id: Id, target: Target = None, database: Database = None) -> None:
    """Remove what a dump that is over has left for itself in the target: its ledger, or hidden files. Rows stay."""
    found = place_of(call, database, target=target).clean(id).value
    call.say({"id": found.id, "action": "clean"}, f"the target has nothing of dump {found.short} but what it copied")


@command(app, "forget")
def forget(call: Call, older: OlderDays = 0, yes: Yes = False, database: Database = None) -> None:
    """Forget all dumps that are completed or cancelled, and their histories. What they copied stays."""
    place = place_of(call, database)
    found = [one for one in place.all(MOST).value.items if _is_over(one, older)]
    if found:
        confirm(f"Forget {counted(len(found), 'dump')}?", yes=yes)
    for one in found:
        place.delete(one.id)
    ids = [one.id for one in found]
    call.say({"ids": ids, "action": "delete"}, f"deleted {counted(len(ids), 'dump')}")


@command(app, "rate")
def rate(call: Call, id: Id, rate: RateText, database: Database = None) -> None:
    """Have a dump go faster or slower; one that runs does so at once."""
    _say(call, place_of(call, database).set_rate(id, rate), "may copy {rate} a second")


@command(app, "resume")
def resume(
    call: Call, id: Id, source: Source = None, target: Target = None, here: Here = False, database: Database = None
) -> None:
    """Go on with a dump: one that is paused goes on where it runs; one that no process runs is run here."""
    if is_at_node(call, database):
        refuse(source=source, target=target, here=here)
        _say(call, AtNode(call).resume(id), "is {status}")
        return

    async def act(desk: Desk) -> None:
        from headgate.core.chunks.outcome import OVER
        from headgate.runtime.dumps import control, views

        row = await desk.dumps.find(id)
        if _is_elsewhere(row, here) or views.status_of(row) in OVER:
            found = await control.resume(desk.dumps, id)
            call.say(found, f"dump {found.short} is {found.status}")
            return
        await desk.dumps.set_lists(row.id, None)
        await _run_here(desk, row, source, target)

    dumping.straight(call, database, act)


@command(app, "retry")
def retry(
    call: Call,
    id: Id,
    chunks: Chunks,
    table: Table = None,
    source: Source = None,
    target: Target = None,
    here: Here = False,
    database: Database = None,
) -> None:
    """Copy only some chunks of a dump that failed or was interrupted; `resume` copies everything that is left."""
    if is_at_node(call, database):
        refuse(source=source, target=target, here=here)
        _say(call, AtNode(call).retry(id, chunks, table), "is {status}")
        return

    async def act(desk: Desk) -> None:
        from headgate.runtime.dumps import control

        row = await desk.dumps.find(id)
        if _is_elsewhere(row, here):
            found = await control.retry(desk.dumps, id, chunks, table)
            call.say(found, f"dump {found.short} is {found.status}")
            return
        await control.choose(desk.dumps, row, chunks, table)
        await _run_here(desk, row, source, target)

    dumping.straight(call, database, act)


def _is_elsewhere(row: DumpRow, here: bool) -> bool:
    from headgate.runtime.dumps import views

    return views.is_run(row) or (row.place == "nodes" and not here)


async def _run_here(desk: Desk, row: DumpRow, source: str | None, target: str | None) -> None:
    from headgate.connectors.plugins import whole
    from headgate.runtime.dumps import control

    if row.datasource_id is not None:
        raise Refused("a backfill is run by nodes", code="backfill", hint=f"headgate dumps resume {row.id}")
    given, to = source and whole(source), target and whole(target)
    storages = await control.storages_of(desk.dumps, row, given, to, desk.settings.source_timeout_s)
    await dumping.run_here(desk, row.id, storages)


@command(app, "verify")
def verify(
    call: Call,
    id: Id,
    repair: Repair = False,
    source: Source = None,
    target: Target = None,
    database: Database = None,
) -> None:
    """Compare the target with the source of now, chunk by chunk. The exit code is 1 if something differs, or could not
    be compared."""
    place = place_of(call, database, source, target)
    try:
        found = place.verify(id, repair, _progress())
    except KeyboardInterrupt:
        complain(f"headgate: the node goes on comparing without us (headgate dumps show {id})")
        raise
    call.say(found.sent, _verified(found.value))
    if not found.value.equal:
        raise typer.Exit(FAILED)


@command(app, "history")
def history(call: Call, id: Id, limit: Limit = 1000, after: After = 0, database: Database = None) -> None:
    """Every attempt of every chunk, oldest first: worker, range, rows, time, error."""
    found = place_of(call, database).history(id, after, limit)
    call.relay(found, _attempts)
    items = found.value.items
    if len(items) == limit:
        shown = counted(limit, "attempt")
        complain(f"headgate: perhaps not all are shown, only {shown} (--limit, --after {items[-1].id})")


def _progress() -> Callable[[str, int, int], None]:
    """Says now and then how far the comparison is."""
    said_at_s = monotonic()

    def tell(table: str, done: int, chunks: int) -> None:
        nonlocal said_at_s
        if monotonic() - said_at_s >= LINES_S:
            said_at_s = monotonic()
            complain(f"headgate: {table}: {done} of {counted(chunks, 'chunk')} compared")

    return tell


def _say(call: Call, reply: Reply[DumpView], text: str) -> None:
    """What became of something that was asked of a dump."""
    found = reply.value
    said = text.format(status=found.status, rate=found.rate or "as much as it can")
    remark = f"; {found.error}" if found.status == "cancelled" and found.error else ""
    call.say(reply.sent, f"dump {found.short} {said}{remark}")


def _is_over(one: DumpSummary, days: int) -> bool:
    """Whether a dump may be forgotten, and ended this long ago."""
    if one.status not in ("completed", "cancelled"):
        return False
    ended = datetime.fromisoformat(one.ended_at or one.created_at)
    return datetime.now(UTC) - ended >= timedelta(days=days)


# How it looks.


def _table(found: DumpList) -> str:
    rows = [
        (
            one.short,
            one.status,
            _percent(one.share),
            f"{one.rows:,}",
            f"{one.tables_done}/{one.tables}",
            ago(one.created_at),
            f"{one.source} → {one.target}",
        )
        for one in found.items
    ]
    heads = ("ID", "STATUS", "DONE", "ROWS", "TABLES", "BEGAN", "FROM → TO")
    return table(heads, rows, empty="no dumps", right=("DONE", "ROWS", "TABLES"))


def _percent(share: float | None) -> str:
    return DASH if share is None else f"{100 * share:.0f} %"


def _page(one: DumpView) -> str:
    speed = f"{counted(one.rows_per_s, 'row')}/s, {size(one.bytes_per_s or 0)}/s" if one.rows_per_s else None
    facts = pairs(
        [
            ("dump", one.id),
            ("source", one.source),
            ("target", one.target),
            ("status", one.status + (", fuzzy" if one.fuzzy else "")),
            ("error", one.error or None),
            ("resume", one.resume),
            ("run by", one.process),
            ("mode", one.mode),
            ("workers", f"{one.workers} on each node" if one.spread else one.workers),
            ("rate", one.rate),
            ("began", f"{ago(one.created_at)}, by {one.actor}"),
            ("took", duration(one.seconds) if one.ended_at else None),
            ("speed", speed),
            ("left", duration(one.eta_s) if one.eta_s is not None else None),
            ("rows", f"{one.rows:,}, {size(one.bytes)}"),
        ]
    )
    rows = [
        (
            each.label,
            each.state,
            _percent(each.share),
            f"{each.rows:,}",
            size(each.bytes),
            f"{each.chunks_done}/{each.chunks}",
            each.chunks_failed or "",
            one_line(each.error),
        )
        for each in one.tables
    ]
    heads = ("TABLE", "STATE", "DONE", "ROWS", "SIZE", "CHUNKS", "FAILED", "ERROR")
    tables = table(heads, rows, empty="no tables", right=("DONE", "ROWS", "SIZE", "CHUNKS", "FAILED"))
    return "\n\n".join([facts, tables, *([_left(one)] if one.left_behind else [])])


def _left(one: DumpView) -> str:
    """What the target does not have."""
    said = {"": "", "asked": "as asked", "kind": "the target is another kind of database"}
    rows = [
        (each.kind, each.name or DASH, each.of or DASH, one_line(each.why), said[each.excuse])
        for each in one.left_behind
    ]
    return table(("NOT COPIED", "NAME", "OF", "WHY", "EXCUSE"), rows, empty="")


def _attempts(found: AttemptList) -> str:
    rows = [
        (
            one.id,
            ago(one.at),
            one.table,
            one.chunk if one.chunk >= 0 else DASH,
            _range(one),
            one.notification,
            f"{one.rows:,}",
            duration(one.seconds),
            one.worker,
            one.error,
        )
        for one in found.items
    ]
    heads = ("N", "WHEN", "TABLE", "CHUNK", "RANGE", "WHAT", "ROWS", "TOOK", "WORKER", "ERROR")
    return table(heads, rows, empty="nothing yet", right=("N", "CHUNK", "ROWS", "TOOK"))


def _range(one: AttemptView) -> str:
    """`(…, 100]`, `(100, 200]`: after the first key, up to and including the second."""
    return DASH if one.hi is None else f"({_bound(one.lo)}, {_bound(one.hi)}]"


def _bound(bound: Bound | None) -> str:
    return "…" if bound is None else "/".join(part if len(part) <= 20 else f"{part[:19]}…" for part in bound)


def _verified(found: VerifiedView) -> str:
    return "\n".join([*(one_line(one.text) for one in found.different), found.text])
