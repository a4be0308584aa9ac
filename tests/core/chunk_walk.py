"""All that can happen to a few chunks: every interleaving of what workers do and say, up to the last new state.

A state is a bag of cells. A cell is a chunk, what the world knows of it, the workers that act as if they had it, and
the messages about it that are still under way. Chunks are alike and so are workers, so their names do not matter, and
neither does how high an epoch is: only which of two is older. That makes the states finitely many.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import NamedTuple

from headgate.core.chunks import Range, locks
from headgate.core.chunks import offsets as planning
from headgate.core.chunks.locks import Chunk, State
from headgate.core.chunks.offsets import Cut, Offsets
from headgate.errors import Refused

WORKERS = 2
ATTEMPTS = 2
NEWEST = 2  # How a cell's newest epoch is written. All older ones are 1, and 0 is that of a chunk nobody ever had.
PLAN = Offsets(("z",), ("z",), ended=True)

SAY: dict[str, Callable[[Chunk, int], Chunk | None]] = {
    "finish": lambda chunk, epoch: locks.finish(chunk, epoch, 1),
    "fail": lambda chunk, epoch: locks.fail(chunk, epoch, "no", 0.0, ATTEMPTS),
    "give back": lambda chunk, epoch: locks.give_back(chunk, epoch),
    "renew": lambda chunk, epoch: locks.renew(chunk, epoch, 0.0, 1.0),
}


class Broken(AssertionError):
    """What must hold does not."""


class Cell(NamedTuple):
    """One chunk and all that belongs to it."""

    chunk: Chunk
    holder: int = 0  # The epoch that has the chunk, as the world knows it; 0: nobody has.
    is_over: bool = False  # The lease, or the wait after a failure, has passed its deadline.
    is_written: bool = False
    workers: tuple[int, ...] = ()  # Epochs under which workers act as if they had it.
    messages: tuple[tuple[str, int], ...] = ()  # What is under way, and under which epoch it was said.


START = Cell(Chunk(1, Range(None, ("z",))))


def check(condition: object, message: str) -> None:
    if not condition:
        raise Broken(message)


def tidy(cell: Cell) -> Cell:
    """The same cell, with epochs written as newest or older, and what is of no matter left out."""
    chunk, newest = cell.chunk, cell.chunk.epoch

    def short(epoch: int) -> int:
        return NEWEST if epoch == newest else 1

    return cell._replace(
        chunk=replace(chunk, epoch=newest and NEWEST, worker="w" if chunk.worker else None, error=""),
        holder=cell.holder and short(cell.holder),
        workers=tuple(sorted(map(short, cell.workers))),
        messages=tuple(sorted({(what, short(epoch)) for what, epoch in cell.messages})),
    )


def said(cell: Cell, what: str, epoch: int) -> Cell:
    """A worker says this under that epoch."""
    found = SAY[what](cell.chunk, epoch)
    is_own = cell.holder == epoch
    check((found is not None) == is_own, f"{what} under epoch {epoch} while {cell.holder} has the chunk")
    if found is None:
        return cell
    fails = cell.chunk.attempts + 1 if what == "fail" else 0 if what == "finish" else cell.chunk.attempts
    check(found.attempts == fails, f"{what}: attempts are counted wrongly")
    left = State.FAILED if fails >= ATTEMPTS else State.PLANNED
    ends = {"finish": State.DONE, "fail": left, "give back": State.PLANNED, "renew": State.LEASED}
    check(found.state is ends[what], f"{what} makes the chunk {found.state}")
    waits = what == "renew" or (what == "fail" and left is State.PLANNED)
    check((found.until_s > 0.0) == waits, f"{what}: a chunk waits after a failure, and only then")
    return cell._replace(chunk=found, holder=epoch if what == "renew" else 0, is_over=False)


def without(items: tuple[int, ...], item: int) -> tuple[int, ...]:
    place = items.index(item)
    return items[:place] + items[place + 1 :]


def leased(cell: Cell) -> Cell | None:
    is_free = cell.chunk.state is State.PLANNED and (cell.is_over or cell.chunk.until_s == 0.0)
    try:
        found = locks.lease(cell.chunk, "w", 1.0 if cell.is_over else 0.0, 1.0)
    except Refused:
        check(not is_free, "a free chunk is not leased")
        return None
    check(is_free, "leased to two")
    check(found.epoch > cell.chunk.epoch, "an epoch that does not rise")
    found = replace(found, until_s=1.0)
    return cell._replace(chunk=found, holder=found.epoch, is_over=False, workers=(*cell.workers, found.epoch))


def moves(cell: Cell) -> Iterator[tuple[str, Cell]]:
    """All that can happen to one cell."""
    return ((label, tidy(following)) for label, following in _moves(cell))


def _moves(cell: Cell) -> Iterator[tuple[str, Cell]]:
    if found := leased(cell):
        yield "lease", found
    for epoch in cell.workers:
        yield "write", cell._replace(is_written=True)
        yield "crash", cell._replace(workers=without(cell.workers, epoch))
        for what in SAY:
            if what == "finish" and not cell.is_written:
                continue
            yield what, said(cell, what, epoch)  # The worker may say it again, or something else.
            yield (
                f"send {what}",
                cell._replace(workers=without(cell.workers, epoch), messages=(*cell.messages, (what, epoch))),
            )
    for what, epoch in cell.messages:
        yield f"late {what}", said(cell, what, epoch)  # It may come again.
        yield f"lose {what}", cell._replace(messages=tuple(m for m in cell.messages if m != (what, epoch)))
    if cell.chunk.until_s:
        yield "wait", cell._replace(is_over=True)
    found = locks.run_out(cell.chunk, 1.0 if cell.is_over else 0.0, ATTEMPTS)
    check((found is not None) == (cell.holder > 0 and cell.is_over), "a lease ends at its deadline")
    if found is not None:
        check(found.attempts == cell.chunk.attempts + 1, "a lease that ran out is a failure")
        yield "run out", cell._replace(chunk=found, holder=0, is_over=False)
    if cell.is_written:
        yield "settle", cell._replace(chunk=locks.settle(cell.chunk, 1), holder=0, is_over=False)
    yield "retry", cell._replace(chunk=locks.retry(cell.chunk))


def look(cell: Cell) -> None:
    """What must hold in each cell."""
    chunk = cell.chunk
    check((chunk.state is State.LEASED) == (cell.holder > 0), f"{chunk.state}, and {cell.holder} has it")
    check(not cell.holder or chunk.epoch == cell.holder, "leased under another epoch")
    check((chunk.worker is not None) == (cell.holder > 0), "nobody's chunk has a worker, or a worker's has none")
    check(chunk.state is not State.DONE or cell.is_written, "done, and not written")
    check(chunk.state is not State.FAILED or chunk.attempts == ATTEMPTS, "left too early")
    check(chunk.state is not State.PLANNED or chunk.attempts < ATTEMPTS, "not left")


def at_rest(cell: Cell) -> Cell:
    """The cell once nothing more goes wrong: messages arrive, workers finish, what has run out is leased again."""
    for what, epoch in cell.messages:
        cell = said(cell, what, epoch)
    cell = cell._replace(messages=())
    for _ in range(2 * WORKERS + 2):
        if cell.workers:
            epoch, cell = cell.workers[0], cell._replace(is_written=True, workers=cell.workers[1:])
            cell = said(cell, "finish", epoch)
        elif cell.holder:
            found = locks.run_out(cell.chunk, 1.0, ATTEMPTS)
            check(found is not None, "a lease that never runs out")
            assert found is not None
            cell = cell._replace(chunk=found, holder=0)
        else:
            cell = leased(cell._replace(is_over=True)) or cell
    return cell


def walk(number: int, under_way: int) -> int:
    """All states of so many chunks, with so many messages under way; how many there were. A violation is told with
    its story."""
    book = Book()
    start = (book.number_of(START),) * number
    origins: dict[tuple[int, ...], tuple[tuple[int, ...], str] | None] = {start: None}
    frontier = deque([start])
    while frontier:
        places = frontier.popleft()
        try:
            book.ends_well(places)
            for label, following in book.everything(places, under_way):
                if following not in origins:
                    origins[following] = places, label
                    frontier.append(following)
        except Broken as broken:
            raise Broken(f"{broken}, after: {told(origins, places)}") from broken
    return len(origins)


class Book:
    """Every cell that was met has a number, and what can happen to it is worked out once."""

    def __init__(self) -> None:
        self.numbers: dict[Cell, int] = {}
        self.cells: list[Cell] = []
        self.rests: list[State] = []
        self.ends: set[tuple[State, ...]] = set()  # Those that are known to be good.
        self.moves: dict[int, list[tuple[str, int, int, int]]] = {}

    def number_of(self, cell: Cell) -> int:
        if cell not in self.numbers:
            look(cell)
            self.numbers[cell] = len(self.cells)
            self.cells.append(cell)
            self.rests.append(at_rest(cell).chunk.state)
        return self.numbers[cell]

    def ends_well(self, places: tuple[int, ...]) -> None:
        """Whether it comes to rest, and the machine knows."""
        states = tuple(self.rests[place] for place in places)
        if states in self.ends:
            return
        self.ends.add(states)
        rows = [replace(START.chunk, state=state) for state in states]
        check(set(states) <= {State.DONE, State.FAILED}, "it does not end")
        check(planning.is_stuck(PLAN, rows) == (State.FAILED in states), "stuck is what failed and waits for nothing")
        check(planning.is_complete(PLAN, rows) != (State.FAILED in states), "complete is what is done")

    def everything(self, places: tuple[int, ...], under_way: int) -> Iterator[tuple[str, tuple[int, ...]]]:
        """All that can happen in a state: something to one of its cells."""
        idle = WORKERS - sum(len(self.cells[place].workers) for place in places)
        quiet = under_way - sum(len(self.cells[place].messages) for place in places)
        for place in set(places):
            others = without(places, place)
            for label, number, workers, messages in self.moves.get(place) or self.find_moves(place):
                if workers <= idle and messages <= quiet:
                    yield label, tuple(sorted((*others, number)))

    def find_moves(self, place: int) -> list[tuple[str, int, int, int]]:
        """What can happen to a cell: how it is called, the cell it becomes, and how many more are busy or under way."""
        cell = self.cells[place]
        happens: dict[int, tuple[str, int, int, int]] = {}
        for label, following in moves(cell):
            check(cell.chunk.state is not State.DONE or following.chunk == cell.chunk, f"{label} changes what is done")
            number = self.number_of(following)
            workers = len(following.workers) - len(cell.workers)
            messages = len(following.messages) - len(cell.messages)
            if number != place:
                happens[number] = label, number, workers, messages
        self.moves[place] = list(happens.values())
        return self.moves[place]


def told(origins: dict[tuple[int, ...], tuple[tuple[int, ...], str] | None], places: tuple[int, ...]) -> str:
    labels: list[str] = []
    while (origin := origins[places]) is not None:
        places, label = origin
        labels.append(label)
    return ", ".join(reversed(labels)) or "nothing"


# The plan.


def walk_plans(keys: int) -> int:
    """All plans of a table of so many keys: cuts of any size, taken back at any moment; how many there were."""
    top = (str(keys),)
    start: tuple[Offsets, tuple[Chunk, ...]] = (planning.from_start(top), ())
    seen = {start}
    frontier = deque([start])
    while frontier:
        offsets, rows = frontier.popleft()
        for following in plans(offsets, rows, keys):
            look_at_plan(*following, top)
            if following not in seen:
                seen.add(following)
                frontier.append(following)
    return len(seen)


def plans(offsets: Offsets, rows: tuple[Chunk, ...], keys: int) -> Iterator[tuple[Offsets, tuple[Chunk, ...]]]:
    offsets, found = planning.next_chunk(offsets)
    check((found is None) == (rows != () and rows[-1].range.hi == (str(keys),)), "planning ends at the top")
    if isinstance(found, Cut):
        at = int(found.after[0]) if found.after else 0
        for hi in range(at + 1, keys + 1):
            following, cut = planning.planned(offsets, (str(hi),))
            yield following, (*rows, Chunk(len(rows) + 1, cut))
    for place, row in enumerate(rows):
        if row.state is State.PLANNED:
            held = locks.lease(row, "w", 0.0)
            after = locks.give_back(held, held.epoch), locks.finish(held, held.epoch, 1)
            for changed in (held, *after):
                assert changed is not None
                yield offsets, (*rows[:place], replace(changed, epoch=1), *rows[place + 1 :])
    kept = list(rows)
    while kept and (kept[-1].state, kept[-1].epoch) == (State.PLANNED, 0):
        kept.pop()
    following, tail = planning.recut(offsets, rows)
    check(tail == list(reversed(rows[len(kept) :])), "not the tail that nobody ever had")
    yield following, tuple(kept)


def look_at_plan(offsets: Offsets, rows: tuple[Chunk, ...], top: tuple[str]) -> None:
    numbers = [key for row in rows for key in range(int((row.range.lo or ("0",))[0]) + 1, int(row.range.hi[0]) + 1)]
    check(numbers == list(range(1, len(numbers) + 1)), "a gap or an overlap")
    check(offsets.at == ((str(len(numbers)),) if numbers else None), "the next chunk begins elsewhere")
    is_whole = len(numbers) == int(top[0])
    check(offsets.ended == is_whole, "planning ends at the top")
    check(planning.is_covered(top, rows) == is_whole, "covered is what goes up to the top")
    check(
        planning.is_complete(offsets, rows) == (is_whole and all(row.state is State.DONE for row in rows)), "complete"
    )
    check(not planning.is_stuck(offsets, rows), "stuck, and nothing failed")
