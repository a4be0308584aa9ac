"""Dumps from the command line: the database they are kept in, running one here, and how it ends.

A dump needs no node. It is planned in Headgate's database, which is made on the way if there is none yet, and run by
this process. Ctrl-C ends it in order: what was copied stays, and the line that is printed resumes it.
"""

from __future__ import annotations

import asyncio
import gc
import getpass
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from headgate.cli import progress
from headgate.cli.call import Call
from headgate.cli.client import Reply
from headgate.cli.failures import FAILED, INTERRUPTED
from headgate.cli.output import complain, say, to_json, visible
from headgate.cli.up import stopping_signals
from headgate.errors import HeadgateError, NotFound, StoreError
from headgate.text import counted, duration, size

if TYPE_CHECKING:
    from uuid import UUID

    from headgate.cli.early import Defaults
    from headgate.config import Settings
    from headgate.runtime.dumps.plan import Storages
    from headgate.runtime.dumps.views import DumpView, TableView
    from headgate.store.database import Database as Store
    from headgate.store.dumps import Dumps
    from headgate.store.secrets import Keyring

SESSIONS = 8
LOOK_S = 0.5
MOST_TYPES = 12  # Columns whose types are shown.
MOST_KEYS = 5
REASONS = 20  # Lines that say why something was not copied; `dumps show` has them all.

T = TypeVar("T")

Database = Annotated[
    str | None,
    typer.Option("--database", metavar="URL", help="Headgate's own database. Or: HEADGATE_DATABASE; else embedded."),
]


class Interrupted(HeadgateError):
    """Ctrl-C, or SIGTERM."""

    code = "interrupted"


@dataclass(frozen=True, slots=True)
class Desk:
    """What a command works with."""

    call: Call
    settings: Settings | Defaults
    url: str
    database: Store
    keyring: Keyring | None
    dumps: Dumps
    signals: Signals
    given: str | None  # The database, if it was named on the command line.

    def command(self, *words: str) -> str:
        """A command that finds the same database."""
        from headgate.connectors.urls import redacted

        where = ["--database", redacted(self.given)] if self.given else []
        return " ".join(["headgate", *words, *where])


class Signals:
    """The first Ctrl-C ends what is under way, in order; the second ends the process."""

    def __init__(self) -> None:
        self._is_ended = False
        self._end: Callable[[], object] | None = None
        for number in stopping_signals():
            asyncio.get_running_loop().add_signal_handler(number, self._hear)

    def _hear(self) -> None:
        if self._is_ended:
            os._exit(INTERRUPTED)
        self._is_ended = True
        if self._end is not None:
            self._end()

    async def guard(self, work: Coroutine[object, object, T]) -> T:
        """Do it. Raises `Interrupted` after Ctrl-C or SIGTERM."""
        if self._is_ended:
            work.close()
            raise Interrupted("interrupted")
        task = asyncio.ensure_future(work)
        self._end = task.cancel
        try:
            return await task
        except asyncio.CancelledError:
            if self._is_ended:
                raise Interrupted("interrupted") from None
            raise
        finally:
            self._end = None


def straight(call: Call, database: str | None, act: Callable[[Desk], Awaitable[T]], *, make: bool = False) -> T:
    """Work on Headgate's database: the one that was named, or the embedded one, which is made with `make`."""
    import uvloop

    async def work() -> T:
        async with _opened(call, database, make=make) as desk:
            return await act(desk)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(work())


@asynccontextmanager
async def _opened(call: Call, given: str | None, *, make: bool) -> AsyncIterator[Desk]:
    from headgate.cli.direct import opened
    from headgate.store.dumps import Dumps
    from headgate.store.migrate import migrate
    from headgate.store.secrets import load_keyring

    signals = Signals()
    async with AsyncExitStack() as stack:
        settings: Settings | Defaults
        if call.early is not None:
            settings, server = call.early.settings, await call.early.take()
            stack.push_async_callback(asyncio.to_thread, server.leave)
            url = server.url
        else:
            settings, url = await _reached(given, stack, make=make)
        database = await stack.enter_async_context(opened(url, SESSIONS))
        await migrate(database)
        keyring = load_keyring(settings, embedded=settings.database is None)
        if not make:
            collect()
        yield Desk(call, settings, url, database, keyring, Dumps(database, keyring), signals, given)


def collect() -> None:
    """Begin to collect garbage. Before all is imported, nothing is: looking for it is a tenth of the start's time."""
    gc.freeze()
    gc.enable()


async def _reached(given: str | None, stack: AsyncExitStack, *, make: bool) -> tuple[Settings, str]:
    """The settings, and the database that they say."""
    from headgate.cli.up import database_url, make_home
    from headgate.config import load

    settings = load(database=given)
    embedded = settings.database is None
    if embedded and make:
        make_home(settings.home)
    elif embedded and not (settings.home / "postgres").exists():
        raise NotFound(f"{settings.home} has no database", hint="no dump has begun here; or --database URL")
    return settings, await database_url(settings, stack)


def actor() -> str:
    """Who does it."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # A container may run as a user without a name.
        return "someone"


# Running.


async def run_here(desk: Desk, dump: UUID, storages: Storages) -> None:
    """Run a dump in this process until its end, and say how that was. Ends the command if it was not all done."""
    from headgate.core.chunks.outcome import DumpWanted
    from headgate.runtime.dumps.plan import options_of
    from headgate.runtime.dumps.process import DumpFailed, StreamProcess

    options = options_of(await desk.dumps.find(str(dump)))
    await desk.dumps.set_wanted(dump, DumpWanted.RUN)
    collect()
    shown = progress.chosen()
    watch = progress.Watch(desk.dumps, dump, shown)
    process = StreamProcess(
        desk.dumps,
        dump,
        storages,
        options.workers,
        desk.settings.home,
        notify=watch.notify,
        processes=desk.url if options.processes else None,
    )
    watching = asyncio.create_task(watch.run(process.workers.progress, process.building))
    try:
        await desk.signals.guard(process.run())
    except Interrupted:
        await _show_as_json(desk, dump)
        hint = _resume(desk, dump)
        raise Interrupted("interrupted; what was copied stays", hint=hint) from None
    except DumpFailed as error:
        await _show_as_json(desk, dump)
        raise DumpFailed(error.message, hint=f"{_resume(desk, dump)}; {error.hint.rpartition('; ')[2]}") from None
    finally:
        watching.cancel()
        await asyncio.wait([watching])
        with suppress(StoreError):
            await watch.look()
        shown.close()
    await _conclude(desk, dump)


async def say_first(desk: Desk, dump: UUID) -> None:
    """Show what nobody asked for: types that are guesses from the first records, foreign keys that are made again."""
    from headgate.runtime.dumps.plan import options_of, plan_of

    around = options_of(await desk.dumps.find(str(dump))).around
    if around is not None and (again := around.made_again):
        names = [f"{one.name} of {one.of}" for one in again[:MOST_KEYS]]
        more = f" and {len(again) - MOST_KEYS} more" if len(again) > MOST_KEYS else ""
        complain(
            visible(f"headgate: foreign keys in a circle are dropped, and made again after: {', '.join(names)}{more}")
        )
    for row in await desk.dumps.tables(dump):
        table = plan_of(row).source
        guesses = table.details.get("guessed", [column.name for column in table.columns])
        if table.sampled and guesses:
            types = [f"{column.name} {column.type}" for column in table.named(guesses[:MOST_TYPES])]
            more = f" and {len(guesses) - MOST_TYPES} more" if len(guesses) > MOST_TYPES else ""
            shown = f"{', '.join(types)}{more} (--column NAME=TYPE sets another)"
            complain(visible(f"headgate: {row.name}: types as in the first records: {shown}"))


async def follow(desk: Desk, dump: UUID) -> None:
    """Show a dump that others run, until its end."""
    from headgate.core.chunks.outcome import OVER, RESUMABLE, Status
    from headgate.runtime.dumps import views

    collect()
    shown = progress.chosen()
    watch = progress.Watch(desk.dumps, dump, shown)

    async def until_over() -> None:
        before: Status | None = None
        while (status := views.status_of(await desk.dumps.find(str(dump)))) not in OVER | RESUMABLE - {Status.PAUSED}:
            if status not in (before, Status.RUNNING):
                shown.say(status_line(short_of(dump), status))
            before = status
            await watch.look()
            await asyncio.sleep(LOOK_S)

    try:
        await desk.signals.guard(until_over())
    except Interrupted:
        complain(f"headgate: the dump goes on without us ({desk.command('dumps', 'show', short_of(dump))})")
        raise typer.Exit(INTERRUPTED) from None
    finally:
        shown.close()
    await _conclude(desk, dump)


def status_line(dump: str, status: str) -> str:
    """What is said when a dump that others run does something else than run."""
    return f"{dump} is {status}" + (" for a node" if status == "waiting" else "")


def short_of(dump: UUID) -> str:
    """A dump's id, as a person types it."""
    from headgate.runtime.dumps.plan import short

    return short(dump)


def _resume(desk: Desk, dump: UUID) -> str:
    return desk.command("dumps", "resume", short_of(dump))


async def _show_as_json(desk: Desk, dump: UUID) -> None:
    """For a program, also how it did not end well; if the database answers."""
    from headgate.runtime.dumps import views

    if desk.call.as_json:
        with suppress(StoreError):
            say(to_json(await views.describe(desk.dumps, str(dump))))


async def _conclude(desk: Desk, dump: UUID) -> None:
    from headgate.runtime.dumps import views

    found = await views.describe(desk.dumps, str(dump))
    conclude(desk.call, Reply(found, found), _resume(desk, dump))


def conclude(call: Call, reply: Reply[DumpView], resume: str) -> None:
    """One line for each table, one for all, and the exit code. `resume` is the command that goes on with it."""
    from headgate.core.chunks.outcome import Status

    found = reply.value
    call.relay(reply, conclusion)
    if found.fuzzy:
        complain("headgate: it was resumed: each chunk shows the source as it was when that chunk was read")
    for line in left_lines(found):
        complain(f"headgate: {line}")
    if found.status is Status.COMPLETED:
        if not found.complete:
            raise typer.Exit(FAILED)
        return
    if found.status is Status.CANCELLED:
        complain(f"headgate: dump {found.short} was cancelled" + (f"; {found.error}" if found.error else ""))
    else:
        bad = [one.name for one in found.tables if one.state != "done"]
        some = f"{', '.join(bad[:5])}{' and more' if len(bad) > 5 else ''}"
        what = f"{some} could not be copied" if bad else "not all that belongs to the tables could be made"
        error = found.error if found.status is not Status.INCOMPLETE else what
        complain(f"headgate: {found.status}: {error} ({resume})")
    raise typer.Exit(FAILED)


def conclusion(found: DumpView) -> str:
    """What was copied, table by table."""
    lines = [_line(one) for one in found.tables]
    done = sum(one.state == "done" for one in found.tables)
    what = f"{done} of {counted(len(found.tables), 'table')}, {counted(found.rows, 'row')}, {size(found.bytes)}"
    lines.append(f"{found.status}: {what}, in {duration(found.seconds)} (dump {found.short})")
    return visible("\n".join(lines))


def left_lines(found: DumpView) -> list[str]:
    """What the target does not have: all of it in one line, then why, line by line."""
    from headgate.core.chunks.left import Left, summed_up

    lines = []
    left = [Left(one.kind, one.name, one.of, one.why, one.excuse) for one in found.left_behind]
    for said, some in (
        ("not copied", [one for one in left if not one.excuse]),
        ("not copied, because the target cannot have it", [one for one in left if one.excuse == "kind"]),
        ("not copied, as asked", [one for one in left if one.excuse == "asked"]),
    ):
        if some:
            lines.append(f"{said}: {summed_up(some)}")
            reasons: dict[str, list[Left]] = {}
            for one in some:
                if one.why:
                    reasons.setdefault(one.why, []).append(one)
            lines += [f"  {summed_up(alike)}: {why}" for why, alike in [*reasons.items()][:REASONS]]
            if len(reasons) > REASONS:
                lines.append(f"  and more: headgate dumps show {found.short}")
    return [visible(line) for line in lines]


def _line(one: TableView) -> str:
    text = f"{one.label}: {counted(one.rows, 'row')}, {size(one.bytes)}"
    if one.seconds:
        text += f", in {duration(one.seconds)} ({counted(one.rows / one.seconds, 'row')}/s)"
    return text if one.state == "done" else f"{text}; {one.state}{': ' + one.error if one.error else ''}"
