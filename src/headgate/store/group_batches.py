"""Commands of many groups, carried out together.

**Theory.** A transaction costs its round trips and one flush of the log, however many groups it is about. So commands
that arrive while a transaction is under way go into the next one together: the busier a node is, the larger its batches
are. A command that finds none under way goes at once; no command waits for company.

A command names a *place*: a group by its id, or by its stream and name. Places wait in a line. A batch takes the first
of them, a few commands of each; a place that has more goes to the end of the line, so no group holds up the others.
While a transaction has a place, further commands for it wait.

What happens to a command happens to it alone:

- A batch waits for no lock. A group that another transaction has locked is left over, and its commands are asked again
  in a transaction that is theirs, which waits. So a lock that is never released holds up one group.
- If a batch fails although the database is there (another transaction is in its way, a value is not accepted), nothing
  of it was saved. Each place is then asked alone, and if that fails too, each command.
- If the database is away, all commands of the batch are told so, and none is repeated: the commit may have happened.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import OrderedDict, deque
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias
from uuid import UUID

from headgate.core.groups.requests import Outcome, Request
from headgate.errors import StoreError
from headgate.store.database import is_undone
from headgate.store.hosts import CONNECT_S

MOST = 128  # Commands in a batch.
MOST_OF_A_PLACE = 16
ALONE = 4  # Transactions that wait for locks, at most: half of the pool is left for everything else.

Place: TypeAlias = UUID | tuple[str, str]
"""A group: its id, or its stream and name."""


@dataclass(eq=False, slots=True)
class Asked:
    """Requests for one group, which are stepped one after another, and who waits for the outcome.

    The outcome is None if there is no such group.
    """

    place: Place
    requests: Sequence[Request]
    answer: asyncio.Future[Outcome | None]
    number: int  # In the order of arrival.

    def tell(self, answer: Outcome | Exception | None) -> None:
        """What became of it. Nobody may be waiting any more."""
        if self.answer.done():
            return
        if isinstance(answer, Exception):
            self.answer.set_exception(answer)
        else:
            self.answer.set_result(answer)


Answers: TypeAlias = Mapping[Asked, Outcome | Exception | None]


class CarryOut(Protocol):
    """One transaction. Has an answer for each that it carried out; those without one are to be asked again, alone."""

    async def __call__(self, asked: Sequence[Asked], *, waits: bool) -> Answers: ...


class Line:
    """Who waits, and whose turn it is."""

    def __init__(self) -> None:
        self._waiting: OrderedDict[Place, deque[Asked]] = OrderedDict()
        self._busy: dict[Place, deque[Asked]] = {}  # A transaction has the place; these came later, or were too many.

    def add(self, asked: Asked) -> None:
        """At the end."""
        if (behind := self._busy.get(asked.place)) is not None:
            behind.append(asked)
        else:
            self._waiting.setdefault(asked.place, deque()).append(asked)

    def take(self) -> list[Asked]:
        """The next batch, in the order of arrival. Its places are busy from now on."""
        batch: list[Asked] = []
        while self._waiting and len(batch) < MOST:
            place, waiting = self._waiting.popitem(last=False)
            most = min(MOST_OF_A_PLACE, MOST - len(batch))
            wanted = (one for one in _popped(waiting) if not one.answer.done())  # Or else its caller has gone.
            taken = list(itertools.islice(wanted, most))
            if taken:
                self._busy[place] = waiting
                batch += taken
        return sorted(batch, key=lambda one: one.number)

    def free(self, places: Iterable[Place]) -> None:
        """Their transaction has ended. A place that has more goes to the end of the line."""
        for place in places:
            if waiting := self._busy.pop(place):
                self._waiting[place] = waiting

    def __bool__(self) -> bool:
        return bool(self._waiting)


class Batches:
    """The commands of one node."""

    def __init__(self, carry_out: CarryOut) -> None:
        self._carry_out = carry_out
        self._line = Line()
        self._numbers = itertools.count()
        self._is_working = False
        self._slots = asyncio.Semaphore(ALONE)
        self._tasks: set[asyncio.Task[None]] = set()  # The loop itself holds them only weakly.

    def put(self, place: Place, requests: Sequence[Request]) -> asyncio.Future[Outcome | None]:
        """Carry this out, soon. If the future is cancelled before its batch begins, nothing happens."""
        answer: asyncio.Future[Outcome | None] = asyncio.get_running_loop().create_future()
        self._line.add(Asked(place, requests, answer, next(self._numbers)))
        self._begin()
        return answer

    def _begin(self) -> None:
        if self._line and not self._is_working:
            self._is_working = True
            self._spawn(self._work(), "group commands")

    def _spawn(self, work: Coroutine[Any, Any, None], name: str) -> None:
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _work(self) -> None:
        try:
            while batch := self._line.take():
                apart: dict[Place, list[Asked]] = {one.place: [] for one in batch}
                for one in await self._attempt(batch, waits=False):
                    apart[one.place].append(one)
                self._line.free(place for place, left in apart.items() if not left)
                for place, left in apart.items():
                    if left:
                        self._spawn(self._ask_alone(place, left), "group command")
        finally:
            self._is_working = False

    async def _ask_alone(self, place: Place, asked: Sequence[Asked]) -> None:
        """Ask again for what a batch has left over, of one place."""
        try:
            async with asyncio.timeout(CONNECT_S):
                await self._slots.acquire()
            try:
                for one in await self._attempt(asked, waits=True):
                    await self._attempt([one], waits=True)
            finally:
                self._slots.release()
        except TimeoutError:
            for one in asked:
                one.tell(StoreError("the database did not answer: too many groups are locked"))
        finally:
            for one in asked:
                one.answer.cancel()  # Nobody waits for an answer that never comes.
            self._line.free([place])
            self._begin()

    async def _attempt(self, asked: Sequence[Asked], *, waits: bool) -> Sequence[Asked]:
        """Carry these out in one transaction, and tell each its answer. Returns those that are to be asked again."""
        try:
            answers = await self._carry_out(asked, waits=waits)
        except StoreError as error:
            if is_undone(error) and not waits:
                return asked
            answers = {one: StoreError(error.message, hint=error.hint) for one in asked}
        except Exception as error:
            if len(asked) > 1 or not waits:
                return asked
            answers = {asked[0]: error}
        except BaseException:
            for one in asked:
                one.answer.cancel()
            raise
        for one, answer in answers.items():
            one.tell(answer)
        return [one for one in asked if one not in answers]


def _popped(waiting: deque[Asked]) -> Iterable[Asked]:
    while waiting:
        yield waiting.popleft()
