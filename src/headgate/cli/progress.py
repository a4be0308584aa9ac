"""What is seen of a dump while it runs: a bar for each table on a terminal, a line every few seconds elsewhere.

Everything goes to stderr; stdout is for the result. Rows that are under way are not in the database yet. A worker of
this process says how many bytes of its chunk have gone by, and that is shown as rows, as long as rows of before were.
"""

from __future__ import annotations

import asyncio
import shutil
import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from time import monotonic
from typing import TYPE_CHECKING, Protocol
from uuid import UUID

from headgate.cli.output import complain, visible
from headgate.errors import StoreError
from headgate.text import counted, duration, size

if TYPE_CHECKING:
    from rich.progress import TaskID

    from headgate.runtime.dumps.process import Notification
    from headgate.runtime.dumps.views import TableView
    from headgate.runtime.dumps.worker import Progress
    from headgate.store.dumps import Dumps

BARS_S = 0.25
LINES_S = 5.0
WINDOW_S = 10.0  # Speeds are those of so long ago until now.
LEAST_S = 0.5
NEARLY = 0.99  # What is left of the rest cannot be told: estimates of rows are not so good.
ROW_BYTES = 100.0  # Until rows have shown how long they are.


class Speed:
    """How fast it goes, by what it was a while ago."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, float, float, float]] = deque()

    def learn(self, rows: float, size: float, share: float | None) -> None:
        """The figures of now."""
        now_s = monotonic()
        self._seen.append((now_s, rows, size, share or 0.0))
        while len(self._seen) > 2 and now_s - self._seen[1][0] > WINDOW_S:
            self._seen.popleft()

    def words(self, share: float | None) -> list[str]:
        """`45 %`, `5,000 rows/s`, `1.2 MB/s`, `35 s left`, as far as they are known."""
        parts = [] if share is None else [f"{int(100 * share)} %"]
        if len(self._seen) < 2:
            return parts
        first, last = self._seen[0], self._seen[-1]
        span_s = max(last[0] - first[0], LEAST_S)
        rows_s, bytes_s, share_s = (
            max(0.0, now - then) / span_s for now, then in zip(last[1:], first[1:], strict=True)
        )
        parts += [f"{counted(rows_s, 'row')}/s", f"{size(bytes_s)}/s"]
        is_known = share and share_s and share < NEARLY
        return [*parts, f"{duration((1 - (share or 0)) / share_s)} left"] if is_known else parts


class Table:
    """One table, as it is shown."""

    def __init__(self, seen: TableView) -> None:
        self.name = seen.name
        self.target = seen.target
        self.expected = seen.expected_rows
        self.expected_bytes = seen.expected_bytes
        self.state = ""
        self.building = ""  # What is built for it, when its rows are there.
        self.rows = self.bytes = 0.0
        self.speed = Speed()

    def learn(self, seen: TableView, under_way: float = 0.0) -> None:
        """What the database has, and bytes that are on their way there."""
        self.state = seen.state
        each = seen.bytes / seen.rows if seen.rows and seen.bytes else ROW_BYTES
        rows = seen.rows + under_way / each
        # What was under way and is being counted must not make the bar go back.
        self.rows = seen.rows if self.state in ("done", "failed") else max(self.rows, rows)
        self.bytes = max(self.bytes, seen.bytes + under_way)
        self.speed.learn(self.rows, self.bytes, self.share)

    @property
    def share(self) -> float | None:
        """How much of it is done, of one: by rows, or by bytes where rows are not known before."""
        from headgate.runtime.dumps.views import share

        return share(self.state == "done", (self.rows, self.expected), (self.bytes, self.expected_bytes))

    @property
    def is_at_work(self) -> bool:
        """Whether something happens with it now."""
        return self.state in ("copying", "finishing")

    def figures(self) -> str:
        """`1,234 rows  45 %  5,000 rows/s  1.2 MB/s  35 s left`."""
        parts = [counted(round(self.rows), "row")]
        if self.state == "copying":
            parts += self.speed.words(self.share)
        elif self.state != "done":
            parts.append(self.building or self.state)
        return "  ".join(parts)


class Shown(Protocol):
    """One way to show it."""

    every_s: float

    def show(self, tables: Sequence[Table]) -> None:
        """The figures of now."""
        ...

    def say(self, text: str) -> None:
        """A line that stays."""
        ...

    def close(self) -> None:
        """It is over."""
        ...


class Lines:
    """Where nobody looks at a terminal."""

    every_s = LINES_S

    def __init__(self) -> None:
        self._speed = Speed()
        self._said_at_s = monotonic()

    def show(self, tables: Sequence[Table]) -> None:
        """One line for all."""
        rows, total = sum(one.rows for one in tables), sum(one.bytes for one in tables)
        shares = [one.share for one in tables]
        share = None if None in shares else sum(one or 0.0 for one in shares) / max(1, len(shares))
        self._speed.learn(rows, total, share)
        if monotonic() - self._said_at_s < LINES_S:
            return
        self._said_at_s = monotonic()
        done = sum(one.state == "done" for one in tables)
        parts = [f"{done} of {counted(len(tables), 'table')}", counted(round(rows), "row")]
        if any(one.state == "copying" for one in tables):
            parts += self._speed.words(share)
        parts += [f"{one.name} {one.building or 'is being finished'}" for one in tables if one.state == "finishing"]
        self.say(", ".join(parts))

    def say(self, text: str) -> None:
        """A line."""
        complain(f"headgate: {text}")

    def close(self) -> None:
        """Nothing is left on the screen."""


class Bars:
    """On a terminal. Of many tables only those are shown that something happens with."""

    every_s = BARS_S

    def __init__(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn

        self._progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TextColumn("{task.fields[figures]}", markup=False),
            console=Console(stderr=True, highlight=False),
            auto_refresh=False,
        )
        self._tasks: dict[str, TaskID] = {}
        self._progress.start()

    def show(self, tables: Sequence[Table]) -> None:
        """A bar for each."""
        room = max(3, shutil.get_terminal_size().lines - 4)
        busy = [one for one in tables if one.is_at_work]
        shown = tables if len(tables) <= room else busy[:room]
        for one in tables:
            if one.target not in self._tasks:
                self._tasks[one.target] = self._progress.add_task(visible(one.name), total=None, figures="")
            self._progress.update(
                self._tasks[one.target],
                total=None if one.share is None else 1.0,  # Without an end the bar moves to and fro.
                completed=one.share or 0.0,
                figures=one.figures(),
                visible=one in shown,
            )
        self._progress.refresh()

    def say(self, text: str) -> None:
        """A line above the bars."""
        self._progress.console.print(visible(text), markup=False)

    def close(self) -> None:
        """The bars stay as they are."""
        self._progress.stop()


def chosen() -> Shown:
    """Bars on a terminal, lines elsewhere."""
    return Bars() if sys.stderr.isatty() else Lines()


def given_up(table: str) -> str:
    """The line for a table that has failed. Why it has is said once, at the end."""
    return f"{table} has failed"


class Watch:
    """Looks at a dump again and again, and shows it."""

    def __init__(self, dumps: Dumps, dump: UUID, shown: Shown) -> None:
        self._dumps = dumps
        self._dump = dump
        self._shown = shown
        self._tables: dict[int, Table] = {}

    def notify(self, notification: Notification) -> None:
        """What a worker reported. Only a table that is given up is worth a line: a chunk that failed is tried again,
        and the history has it."""
        if notification.kind == "error" and notification.chunk < 0:
            self._shown.say(given_up(notification.table))

    async def run(
        self, under_way: Callable[[], Sequence[Progress]] = tuple, building: Mapping[int, str] | None = None
    ) -> None:
        """Until cancelled."""
        while True:
            with suppress(StoreError):  # The process that runs the dump notices, too, and reports it.
                await self.look(under_way(), building or {})
            await asyncio.sleep(min(self._shown.every_s, 1.0))

    async def look(self, under_way: Sequence[Progress] = (), building: Mapping[int, str] | None = None) -> None:
        """Once."""
        from headgate.runtime.dumps.views import table_view

        for row in await self._dumps.tables(self._dump):
            seen = table_view(row)
            table = self._tables.setdefault(row.number, Table(seen))
            table.learn(seen, sum(one.bytes for one in under_way if one.table == row.number))
            table.building = (building or {}).get(row.number, "")
        self._shown.show(list(self._tables.values()))
