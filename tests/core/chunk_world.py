"""A world around the chunks of one table, in which it is known who has what and which rows are where.

The source is a table whose keys have an order of their own, and rows come and go while it is copied. Workers lease,
renew, write, finish, fail, give back and crash; they are late, and say things twice. The target's ledger takes each
range once, with the rows that the source has then. The registry may be set back to any moment before, with all workers
gone, while the target keeps what it has.

Beside the machine the world keeps its own book, a `Fact` for each chunk, and compares the two at every step.
`World.live` goes through one history, chosen by numbers; `World.end` lets nothing more go wrong, and looks at the rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, NamedTuple

from headgate.core.chunks import Bound, Range, locks
from headgate.core.chunks import offsets as planning
from headgate.core.chunks.locks import LEASE_S, Chunk, State
from headgate.core.chunks.offsets import Cut, Offsets
from headgate.errors import Refused

ALPHABET = "bAéaB"  # In the order of this source's collation, which is not that of code points.
ROUNDS = 400  # More than there are keys, so that one chunk in each is enough.
HIGHEST = 60  # Keys that come are made of numbers up to this; greater ones come for ever.


class Kind(NamedTuple):
    """What keys look like, and the source's order of them. Greater numbers make greater keys."""

    name: str
    make: Callable[[int], Bound]
    rank: Callable[[Bound], Any]


def word(n: int) -> str:
    return "".join(ALPHABET[n // 5**place % 5] for place in (4, 3, 2, 1, 0))


def place(text: str) -> list[int]:
    return [ALPHABET.index(letter) for letter in text]


KINDS = (
    Kind("numbers", lambda n: (str(n - 20),), lambda bound: int(bound[0])),
    Kind("texts", lambda n: (word(n),), lambda bound: place(bound[0])),
    Kind("compound", lambda n: (word(n // 7), str(n % 7 - 3)), lambda bound: (place(bound[0]), int(bound[1]))),
)


class Source:
    """A table with a unique key."""

    def __init__(self, kind: Kind, numbers: Iterable[int]) -> None:
        self.kind = kind
        self.keys = {kind.make(n) for n in numbers}

    def is_after(self, key: Bound, at: Bound | None) -> bool:
        return at is None or self.kind.rank(key) > self.kind.rank(at)

    def top(self) -> Bound | None:
        return max(self.keys, key=self.kind.rank, default=None)

    def read(self, lo: Bound | None, hi: Bound) -> list[Bound]:
        rank = self.kind.rank
        last, ranked = rank(hi), [(rank(key), key) for key in self.keys]
        first = None if lo is None else rank(lo)
        return [key for place, key in sorted(ranked) if place <= last and (first is None or place > first)]

    def cut(self, after: Bound | None, top: Bound, rows: int) -> Bound:
        inside = self.read(after, top)
        return inside[rows - 1] if rows < len(inside) else top


@dataclass(slots=True)
class Fact:
    """What the world knows of one chunk."""

    range: Range
    state: str = "planned"
    epoch: int = 0
    worker: str | None = None
    until_s: float = 0.0
    fails: int = 0

    def free(self, state: str) -> None:
        self.state, self.worker, self.until_s = state, None, 0.0


@dataclass(slots=True)
class Work:
    """What a worker acts upon as if it had it."""

    number: int
    range: Range
    epoch: int


class Saved(NamedTuple):
    """The registry at one moment."""

    offsets: Offsets
    rows: tuple[Chunk, ...]
    facts: dict[int, Fact]


class World:
    """Everything that can happen to one table, with what must hold asserted at each step."""

    def __init__(self, kind: Kind, numbers: Iterable[int], rows: int | None = None) -> None:
        self.source = Source(kind, numbers)
        self.existed = set(self.source.keys)
        self.size = rows
        self.now_s = 0.0
        self.happened: Counter[str] = Counter()
        self.begin()

    def begin(self) -> None:
        """A new dump of what is there now, into an empty target."""
        self.top = self.source.top()
        self.lasting = set(self.source.keys)  # Those that were there all the time.
        self.ledger: dict[Range, int] = {}
        self.target: Counter[Bound] = Counter()
        self.is_whole = True
        self.set_to(Saved(planning.from_start(self.top, self.size), (), {}))
        self.saved = [self.save()]

    def set_to(self, saved: Saved) -> None:
        self.offsets, self.rows = saved.offsets, list(saved.rows)
        self.facts = {number: replace(fact) for number, fact in saved.facts.items()}
        self.works: list[Work] = []

    def save(self) -> Saved:
        return Saved(self.offsets, tuple(self.rows), {number: replace(fact) for number, fact in self.facts.items()})

    def live(self, choices: Iterable[int]) -> None:
        for choice in choices:
            move = MOVES[choice % len(MOVES)]
            move(self, choice // len(MOVES))
            self.check()
            if self.saved[-1][:2] != (self.offsets, tuple(self.rows)):
                self.saved.append(self.save())

    # What must hold.

    def check(self) -> None:
        for chunk in self.rows:
            fact = self.facts[chunk.number]
            told = (chunk.range, chunk.state, chunk.epoch, chunk.worker, chunk.until_s, chunk.attempts)
            known = (fact.range, fact.state, fact.epoch, fact.worker, fact.until_s, fact.fails)
            assert told == known, f"chunk {chunk.number} is {told}, and not {known}"
            if chunk.state is State.DONE:
                assert self.ledger[chunk.range] == chunk.rows, "done, and the target has something else"
        assert all(count == 1 for count in self.target.values()), "a row was copied twice"
        assert not any(self.source.is_after(key, self.top) for key in self.target), "a row above the top was copied"
        if self.is_whole:
            self.check_plan()
        states = Counter(chunk.state for chunk in self.rows)
        is_at_rest = self.offsets.ended and not self.offsets.again and not states[State.PLANNED] + states[State.LEASED]
        assert planning.is_complete(self.offsets, self.rows) == (is_at_rest and not states[State.FAILED])
        assert planning.is_stuck(self.offsets, self.rows) == (is_at_rest and states[State.FAILED] > 0)

    def check_plan(self) -> None:
        """The planned prefix has no gap and no overlap; at the top it ends."""
        bounds = [None, *(chunk.range.hi for chunk in self.rows)]
        assert [chunk.range.lo for chunk in self.rows] == bounds[:-1], "a gap or an overlap"
        assert all(self.source.is_after(hi, lo) for lo, hi in pairwise(bounds) if hi), "a chunk that goes back"
        assert self.offsets.at == bounds[-1]
        assert self.offsets.ended == (self.offsets.at == self.top)
        assert planning.is_covered(self.offsets.at, self.rows)
        assert planning.is_covered(self.top, self.rows) == self.offsets.ended
        assert set(self.ledger) <= {chunk.range for chunk in self.rows}, "written, and nobody knows of it"

    # The plan.

    def plan(self, arg: int) -> None:
        if not self.offsets.fixed:
            self.offsets = replace(self.offsets, rows=1 + arg % 7)
        self.offsets, found = planning.next_chunk(self.offsets)
        if isinstance(found, Cut):
            assert self.top is not None
            assert found.rows == (self.size or 1 + arg % 7), "a fixed size stays, another is followed"
            hi = self.source.cut(found.after, self.top, found.rows)
            self.offsets, found = planning.planned(self.offsets, hi)
        if found is not None:
            number = len(self.rows) + 1
            self.rows.append(Chunk(number, found))
            self.facts[number] = Fact(found)

    def recut(self, arg: int) -> None:
        free = 0
        for fact in reversed(self.facts.values()):
            if (fact.state, fact.epoch) != ("planned", 0) or not self.is_whole:
                break
            free += 1
        self.offsets, tail = planning.recut(self.offsets, self.rows)
        assert tail == self.rows[::-1][:free], "not the tail that nobody ever had"
        for chunk in tail:
            self.happened["cut anew"] += 1
            self.rows.remove(chunk)
            del self.facts[chunk.number]

    # Rows come and go.

    def insert(self, arg: int) -> None:
        key = self.source.kind.make(arg % HIGHEST)
        self.source.keys.add(key)
        self.existed.add(key)

    def delete(self, arg: int) -> None:
        key = self.source.kind.make(arg % HIGHEST)
        self.source.keys.discard(key)
        self.lasting.discard(key)

    # Workers.

    def lease(self, arg: int) -> None:
        if not self.rows or len(self.works) > 5:
            return
        chunk, worker = self.rows[arg % len(self.rows)], "abc"[arg % 3]
        fact = self.facts[chunk.number]
        is_free = fact.state == "planned" and fact.until_s <= self.now_s
        try:
            found = locks.lease(chunk, worker, self.now_s)
        except Refused:
            assert not is_free, "a free chunk is not leased"
            return
        assert is_free, "leased to two"
        assert found.epoch == fact.epoch + 1, "an epoch that does not rise"
        self.put(found)
        fact.state, fact.epoch, fact.worker, fact.until_s = "leased", fact.epoch + 1, worker, self.now_s + LEASE_S
        self.works.append(Work(chunk.number, chunk.range, found.epoch))

    def write(self, arg: int) -> None:
        """The ledger takes a range once. Whoever is second hears that it is there."""
        if self.works:
            self.copy(self.works[arg % len(self.works)])

    def copy(self, work: Work) -> None:
        if work.range in self.ledger:
            self.happened["already written"] += 1
            return
        rows = self.source.read(work.range.lo, work.range.hi)
        self.ledger[work.range] = len(rows)
        self.target.update(rows)

    def say(self, arg: int, what: Callable[[Chunk, Work], Chunk | None], change: Callable[[Fact], None]) -> bool:
        """A worker reports. What it says under an epoch that is over changes nothing."""
        work = self.works[arg % len(self.works)]
        fact = self.facts.get(work.number)
        assert fact is not None, "a chunk that somebody had was taken back"
        assert fact.range == work.range, "a chunk that somebody had was cut anew"
        is_own = (fact.state, fact.epoch) == ("leased", work.epoch)
        found = what(self.find(work.number), work)
        assert (found is not None) == is_own, "what a worker says counts under its own lease, and only there"
        if found is None:
            self.happened["stale"] += 1
        else:
            self.put(found)
            change(fact)
        return is_own

    def renew(self, arg: int) -> None:
        def prolong(fact: Fact) -> None:
            fact.until_s = self.now_s + LEASE_S

        if self.works and not self.say(arg, lambda chunk, work: locks.renew(chunk, work.epoch, self.now_s), prolong):
            self.leave(arg)

    def finish(self, arg: int) -> None:
        def end(fact: Fact) -> None:
            fact.fails = 0
            fact.free("done")

        if self.works and (work := self.works[arg % len(self.works)]).range in self.ledger:
            rows = self.ledger[work.range]
            self.say(arg, lambda chunk, work: locks.finish(chunk, work.epoch, rows), end)
            self.leave(arg)

    def fail(self, arg: int) -> None:
        def count(fact: Fact) -> None:
            fact.fails += 1
            fact.free("failed" if fact.fails == locks.ATTEMPTS else "planned")
            if fact.state == "planned":  # Where in between is not a matter of right or wrong.
                chunk = self.find(number)
                shortest_s, longest_s = 0.5 * fact.fails, 1.0 * fact.fails
                assert shortest_s <= chunk.until_s - self.now_s <= longest_s, "a chunk waits before it is tried again"
                fact.until_s = chunk.until_s

        if self.works:
            number = self.works[arg % len(self.works)].number
            self.say(arg, lambda chunk, work: locks.fail(chunk, work.epoch, "no", self.now_s), count)
            self.leave(arg)

    def spoil(self, arg: int) -> None:
        """A chunk fails until it is left."""
        before, self.works = self.works, []
        while not self.works and self.rows and self.find(1 + arg % len(self.rows)).state is State.PLANNED:
            self.now_s = max(self.now_s, self.find(1 + arg % len(self.rows)).until_s)
            self.lease(arg)
            self.fail(0)
            self.works = []
        self.works = before

    def give_back(self, arg: int) -> None:
        if self.works:
            self.say(arg, lambda chunk, work: locks.give_back(chunk, work.epoch), lambda fact: fact.free("planned"))
            self.leave(arg)

    def leave(self, arg: int) -> None:
        """The worker goes on to something else; now and then it says the same again later."""
        if arg % 3:
            self.works.pop(arg % len(self.works))

    def crash(self, arg: int) -> None:
        if self.works:
            self.works.pop(arg % len(self.works))

    # The orchestrator.

    def wait(self, arg: int) -> None:
        self.now_s += LEASE_S * (1 + arg % 3) / 2

    def run_out(self, arg: int) -> None:
        if not self.rows:
            return
        chunk = self.rows[arg % len(self.rows)]
        fact = self.facts[chunk.number]
        is_over = fact.state == "leased" and fact.until_s <= self.now_s
        found = locks.run_out(chunk, self.now_s)
        assert (found is not None) == is_over, "a lease ends at its deadline"
        if found is not None:
            self.put(found)
            fact.fails += 1
            fact.free("failed" if fact.fails == locks.ATTEMPTS else "planned")
            self.happened["ran out"] += 1

    def settle(self, arg: int) -> None:
        for chunk in list(self.rows):
            if chunk.range in self.ledger:
                self.put(locks.settle(chunk, self.ledger[chunk.range]))
                self.facts[chunk.number].fails = 0
                self.facts[chunk.number].free("done")

    def retry(self, arg: int) -> None:
        for chunk in list(self.rows):
            fact = self.facts[chunk.number]
            self.put(locks.retry(chunk))
            if fact.state == "failed":
                fact.state, fact.fails = "planned", 0
                self.happened["tried again"] += 1

    def restart(self, arg: int) -> None:
        """All workers are gone, and perhaps some of the registry. The ledger is read first, and decides."""
        earlier = arg // 2 % len(self.saved) if arg % 2 else len(self.saved) - 1
        self.set_to(self.saved[earlier])
        self.saved = self.saved[: earlier + 1]
        if planning.unplanned(self.rows, self.ledger):
            self.happened["begun anew"] += 1
            self.begin()
        self.happened["restarted"] += 1
        self.settle(0)

    def find(self, number: int) -> Chunk:
        return self.rows[number - 1]

    def put(self, chunk: Chunk) -> None:
        self.rows[chunk.number - 1] = chunk

    # The end.

    def end(self, arg: int = 0) -> None:
        """Nothing more goes wrong, but rows are inserted above the top for ever."""
        self.run_to_rest(arg)
        if planning.is_stuck(self.offsets, self.rows):
            self.happened["stuck"] += 1
            self.settle(0)
            if arg % 2:
                self.retry(0)
            else:
                self.take_the_failed()
            self.run_to_rest(arg)
        assert planning.is_complete(self.offsets, self.rows), "not complete, and nothing goes wrong"
        assert self.lasting <= set(self.target), "a row was left out"
        assert set(self.target) <= self.existed, "a row that never was"

    def run_to_rest(self, arg: int) -> None:
        for number in range(ROUNDS):
            key = self.source.kind.make(HIGHEST + number)
            self.source.keys.add(key)
            self.existed.add(key)
            self.plan(arg)
            self.wait(1)
            while self.works:
                self.copy(self.works[-1])
                self.say(-1, lambda chunk, work: locks.finish(chunk, work.epoch, self.ledger[work.range]), self.done)
                self.works.pop()
            for place, chunk in enumerate(self.rows):
                self.run_out(place)
                if self.find(chunk.number).state is State.PLANNED:
                    self.lease(place)
                    break
            self.check()
            if planning.is_complete(self.offsets, self.rows) or planning.is_stuck(self.offsets, self.rows):
                return
        raise AssertionError("it does not end")

    @staticmethod
    def done(fact: Fact) -> None:
        fact.fails = 0
        fact.free("done")

    def take_the_failed(self) -> None:
        """Another run, over nothing but the chunks that failed."""
        failed = [chunk.range for chunk in self.rows if chunk.state is State.FAILED]
        self.is_whole = False
        self.set_to(Saved(planning.from_list(failed), (), {}))
        self.happened["only the failed"] += bool(failed)


MOVES: tuple[Callable[[World, int], None], ...] = (
    *[World.plan] * 4,
    *[World.lease] * 8,
    *[World.write] * 5,
    *[World.finish] * 4,
    *[World.fail] * 6,
    *[World.wait] * 2,
    *[World.run_out] * 2,
    *[World.spoil] * 2,
    World.recut,
    World.renew,
    World.give_back,
    World.crash,
    World.insert,
    World.delete,
    World.settle,
    World.retry,
    World.restart,
)
