"""Virtual time, and processes that can be stopped at any step.

The loop holds what is due, in order; nothing waits and nothing depends on the machine it runs on. A process is a group
of tasks with its own clock. While it is paused everything that would run in it, an answer or a timer, is kept and
comes in order when it goes on; once it is killed nothing of it runs again. A task is a coroutine that awaits futures;
what it does between two of them is one step.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from typing import Any, Generic, TypeAlias, TypeVar

T = TypeVar("T")
Act: TypeAlias = Callable[..., None]


class Cancelled(BaseException):
    """Thrown into a task that is to end now."""


class Loop:
    """What is due, and when."""

    __slots__ = ("_heap", "_number", "_ready", "events", "now_s")

    def __init__(self) -> None:
        self.now_s = 0.0
        self.events = 0
        self._number = 0
        self._heap: list[tuple[float, int, Act, tuple[Any, ...]]] = []
        self._ready: deque[tuple[Act, tuple[Any, ...]]] = deque()

    def after(self, delay_s: float, act: Act, *args: Any) -> None:
        """Have this done when this much time has passed."""
        self._number += 1
        heapq.heappush(self._heap, (self.now_s + delay_s, self._number, act, args))

    def at(self, when_s: float, act: Act, *args: Any) -> None:
        """Have this done at that moment."""
        self._number += 1
        heapq.heappush(self._heap, (when_s, self._number, act, args))

    def soon(self, act: Act, *args: Any) -> None:
        """Have this done next, before any time passes."""
        self._ready.append((act, args))

    def run(self, until_s: float) -> None:
        """Do everything that is due until then."""
        heap, ready = self._heap, self._ready
        while True:
            while ready:
                act, args = ready.popleft()
                self.events += 1
                act(*args)
            if not heap or heap[0][0] > until_s:
                break
            self.now_s, _, act, args = heapq.heappop(heap)
            self.events += 1
            act(*args)
        self.now_s = until_s


class Future(Generic[T]):
    """A value that is not there yet. One task may await it."""

    __slots__ = ("_error", "_value", "is_done", "waiter")

    def __init__(self) -> None:
        self.is_done = False
        self.waiter: Task[Any] | None = None
        self._value: T | None = None
        self._error: Exception | None = None

    def resolve(self, value: T | None = None) -> None:
        """Here it is. Only the first one counts."""
        if not self.is_done:
            self.is_done, self._value = True, value
            if self.waiter is not None:
                self.waiter.wake()

    def arrive(self, value: T | None = None) -> None:
        """The same for what the loop itself delivers: the waiter goes on at once, since nothing else is running."""
        if not self.is_done:
            self.is_done, self._value = True, value
            if self.waiter is not None:
                self.waiter.go_on()

    def fail(self, error: Exception) -> None:
        """It will not come. Said by the loop only."""
        if not self.is_done:
            self.is_done, self._error = True, error
            if self.waiter is not None:
                self.waiter.go_on()

    def __await__(self) -> Generator[Future[Any], None, T]:
        if not self.is_done:
            yield self
        if self._error is not None:
            raise self._error
        return self._value  # type: ignore[return-value]  # What it was resolved with.


class Task(Generic[T]):
    """A coroutine of a process. Its end is awaited through `ended`, which is None if it was cancelled."""

    __slots__ = ("_awaited", "_coroutine", "_is_cancelled", "_process", "ended", "weight")

    def __init__(self, process: Process, coroutine: Coroutine[Any, Any, T], weight: int) -> None:
        self.ended: Future[T | None] = Future()
        self.weight = weight
        self._process = process
        self._coroutine = coroutine
        self._awaited: Future[Any] | None = None
        self._is_cancelled = False

    def wake(self) -> None:
        """Go on, when the process next runs."""
        self._process.loop.soon(self._process.run, self._step, self.weight)

    def go_on(self) -> None:
        """Go on now, if the process runs."""
        self._process.run(self._step, self.weight)

    def cancel(self) -> None:
        """End it where it stands."""
        if not self.ended.is_done and not self._is_cancelled:
            self._is_cancelled = True
            self.wake()

    def drop(self) -> None:
        """Its process is dead. One that never began is closed; any other is left where it stands."""
        if self._awaited is None and not self.ended.is_done:
            self._coroutine.close()

    def _step(self) -> None:
        if self.ended.is_done:
            return
        try:
            if self._is_cancelled:
                self._is_cancelled = False
                awaited = self._coroutine.throw(Cancelled())
            elif self._awaited is not None and not self._awaited.is_done:
                return  # Its wake-up was overtaken by a cancellation.
            else:
                awaited = self._coroutine.send(None)
        except StopIteration as stop:
            self.ended.resolve(stop.value)
        except Cancelled:
            self.ended.resolve(None)
        else:
            self._awaited = awaited
            awaited.waiter = self


class Signal:
    """Wakes the task that waits for it; if none does, the next one does not wait."""

    __slots__ = ("_future", "_is_set")

    def __init__(self) -> None:
        self._future: Future[None] | None = None
        self._is_set = False

    def set(self) -> None:
        """Something has happened."""
        self._is_set = True
        if self._future is not None:
            self._future.resolve()

    async def wait(self, process: Process, at_most_s: float) -> None:
        """Until something has happened, but no longer than this."""
        if not self._is_set:
            self._future = process.sleep(at_most_s)
            await self._future
            self._future = None
        self._is_set = False


class Process:
    """Tasks that run, stop, go on and die together."""

    def __init__(self, loop: Loop, name: str, rate: float = 1.0, offset_s: float = 0.0) -> None:
        self.loop = loop
        self.name = name
        self.is_alive = True
        self.is_paused = False
        self.pauses = 0
        self.resumed_at_s = 0.0  # When it last went on after a pause.
        self.steps_left = -1  # Until `on_stumble`; negative: never.
        self.on_stumble: Callable[[Process], None] | None = None
        self._rate = rate
        self._offset_s = offset_s
        self._backlog: list[tuple[Act, int]] = []
        # What was suspended when the process died is kept: letting go of it would run its last lines.
        self._tasks: list[Task[Any]] = []

    def clock_s(self) -> float:
        """The time by this process's own clock, which goes on while it is paused."""
        return self._offset_s + self.loop.now_s * self._rate

    def spawn(self, coroutine: Coroutine[Any, Any, T], weight: int = 1) -> Task[T]:
        """Begin a task. The weight says how likely a stumble finds it, compared with others."""
        task = Task(self, coroutine, weight)
        if not self.is_alive:
            task.drop()
        self._tasks.append(task)
        if len(self._tasks) > 200:
            self._tasks = [one for one in self._tasks if not one.ended.is_done]
        task.wake()
        return task

    def sleep(self, seconds: float) -> Future[None]:
        """Wait, by one's own clock."""
        future: Future[None] = Future()
        self.loop.after(seconds / self._rate, future.arrive)
        return future

    def after(self, seconds: float, act: Act) -> None:
        """A timer, by one's own clock."""
        self.loop.after(max(0.0, seconds) / self._rate, self.run, act)

    def run(self, act: Act, weight: int = 1) -> None:
        """One step: now, or when the process goes on, or never."""
        if not self.is_alive:
            return
        if not self.is_paused and self.steps_left >= 0:
            self.steps_left -= weight
            if self.steps_left < 0 and self.on_stumble is not None:
                self.on_stumble(self)
                if not self.is_alive:
                    return
        if self.is_paused:
            self._backlog.append((act, weight))
        else:
            act()

    def pause(self) -> None:
        """SIGSTOP."""
        if not self.is_paused:
            self.is_paused = True
            self.pauses += 1

    def resume(self) -> None:
        """SIGCONT: everything that came meanwhile comes now, in its order."""
        if self.is_paused and self.is_alive:
            self.is_paused = False
            self.resumed_at_s = self.loop.now_s
            backlog, self._backlog = self._backlog, []
            for act, weight in backlog:
                self.loop.soon(self.run, act, weight)

    def kill(self) -> None:
        """SIGKILL."""
        self.is_alive = False
        self._backlog = []
        for task in self._tasks:
            task.drop()
