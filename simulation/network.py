"""The network: requests and answers that are late, lost or never come.

A request may be lost on its way, or its answer may be: then the caller sees the same error, although in the second case
the work was done. A service that hangs takes requests and works on them when it is back, whether or not anybody still
waits. Calls go over connections of a pool, so they overtake one another.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any, Literal, TypeAlias

from simulation.kernel import Future, Loop, Process

Reply: TypeAlias = Callable[[Any], None]
Request: TypeAlias = Callable[[Reply], None]
Mode: TypeAlias = Literal["up", "refuses", "hangs"]
Lost: TypeAlias = Literal["request", "answer"] | None

AT_ONCE_S = 0.012  # A few round trips.
STATEMENT_S = 15.0  # How long a caller waits for an answer, if it says nothing else.


class Away(Exception):
    """There was no answer. What was asked for may have been done."""


@dataclass(frozen=True, slots=True)
class Weather:
    """How well messages get through."""

    slow: float = 0.0  # The share of calls that take long.
    slowest_s: float = 1.5
    loss: float = 0.0  # The share of calls whose request or answer is lost.
    amnesia: float = 0.0  # The share of commits that are carried out and whose answer is lost: the worst moment.


FAIR = Weather()


class Network:
    """Links between processes and services."""

    def __init__(self, loop: Loop, random: Random, weather: Weather) -> None:
        self.loop = loop
        self.random = random
        self.weather = weather
        self._cuts: dict[tuple[str, str], Mode] = {}
        self._stuck: dict[tuple[str, str], list[Callable[[], None]]] = {}
        self.worse: dict[str, Weather] = {}  # For callers that have their own weather.
        self.troubled_at_s: dict[str, float] = {}  # When a caller last met with trouble that only it has.

    def delay_s(self) -> float:
        """How long one message takes when all is well."""
        return 0.0005 + self.random.random() * 0.0025

    def weather_of(self, caller: str) -> Weather:
        """The weather that a caller has."""
        return self.worse.get(caller, self.weather) if self.worse else self.weather

    def slowness_s(self, weather: Weather) -> float:
        """What is added to a message in this weather: nothing, mostly."""
        if weather.slow and self.random.random() < weather.slow:
            # Most are a little slow, few are very slow.
            return weather.slowest_s * float(self.random.random()) ** 2
        return 0.0

    def lost(self, weather: Weather, is_commit: bool) -> Lost:
        """What of a call is lost in this weather."""
        if is_commit and weather.amnesia and self.random.random() < weather.amnesia:
            return "answer"
        if weather.loss and self.random.random() < weather.loss:
            return "request" if self.random.random() < 0.5 else "answer"
        return None

    def trouble(self, name: str) -> None:
        """Remember that this caller was unlucky, so that nobody blames the service."""
        self.troubled_at_s[name] = self.loop.now_s

    def mode(self, caller: str, service: str) -> Mode:
        """How the link between the two is."""
        return self._cuts.get((caller, service), "up") if self._cuts else "up"

    def cut(self, caller: str, service: str, mode: Mode) -> None:
        """Break a link: it refuses, or it swallows messages."""
        self._cuts[caller, service] = mode

    def restore(self, caller: str, service: str) -> None:
        """Mend a link. What was stuck in it is sent again, as TCP does, and arrives late."""
        if self._cuts.pop((caller, service), None) is not None:
            self.trouble(caller)
            for message in self._stuck.pop((caller, service), ()):
                message()

    def stick(self, caller: str, service: str, message: Callable[[], None]) -> None:
        """Keep a message until the link is mended."""
        self._stuck.setdefault((caller, service), []).append(message)

    def release_stuck(self, service: str) -> None:
        """Somebody else turns to this service: what is stuck may have got beyond the cut, and arrives right now."""
        for (_, name), messages in self._stuck.items():
            if name == service and messages and self.random.random() < 0.7:
                for message in messages:
                    self.loop.after(self.random.random() * AT_ONCE_S, message)
                messages.clear()

    def is_fair(self) -> bool:
        """Whether every message gets through, and soon."""
        return not self._cuts and not self.worse and self.weather == FAIR


class Call:
    """One request, on its way there and back."""

    __slots__ = ("_answer", "_back_s", "_caller", "_deadline_s", "_lost", "_request", "_service")

    def __init__(self, service: Service, caller: Process, request: Request, timeout_s: float, is_commit: bool) -> None:
        network = service.network
        self._service = service
        self._caller = caller.name
        self._request = request
        self._answer: Future[Any] = Future()
        self._deadline_s = network.loop.now_s + timeout_s
        weather = network.weather_of(caller.name)
        self._lost = network.lost(weather, is_commit)
        there_s, self._back_s = network.delay_s(), network.delay_s()
        slow_s = network.slowness_s(weather)
        if slow_s > 0.0:
            share = network.random.random()
            there_s, self._back_s = there_s + slow_s * share, self._back_s + slow_s * (1.0 - share)
        if slow_s > 0.5 or self._lost is not None:
            network.trouble(caller.name)
        network.loop.after(there_s, self._arrive)
        if there_s > timeout_s:
            network.loop.after(timeout_s, self._fail)

    def send(self) -> Future[Any]:
        """The answer, when there is one."""
        return self._answer

    def _arrive(self) -> None:
        network = self._service.network
        mode = network.mode(self._caller, self._service.name)
        if mode != "up":
            network.trouble(self._caller)
        if mode == "refuses" or self._lost == "request":
            self._fail()
        elif mode == "hangs":
            network.stick(self._caller, self._service.name, self._enter)
            self._fail_late()
        else:
            self._enter()

    def _enter(self) -> None:
        if self._service.mode == "hangs":
            self._service.parked.append(self._work)
            self._fail_late()
        elif self._service.mode == "refuses":
            self._service.network.loop.after(self._back_s, self._fail)
        elif self._service.work_s > 0.0:
            self._service.network.loop.after(self._service.work_s, self._work)
        else:
            self._work()

    def _work(self) -> None:
        is_answered = False

        def reply(value: Any) -> None:
            nonlocal is_answered
            is_answered = True
            self._reply(value)

        self._request(reply)
        if not is_answered:  # It waits for a lock.
            self._fail_late()

    def _reply(self, value: Any) -> None:
        network = self._service.network
        mode = network.mode(self._caller, self._service.name)
        if self._lost is not None or mode == "refuses":
            network.loop.after(self._back_s, self._fail)
        elif mode == "hangs":
            network.stick(self._caller, self._service.name, lambda: self._reply(value))
            self._fail_late()
        elif network.loop.now_s + self._back_s > self._deadline_s:
            self._fail_late()
        elif isinstance(value, Exception):
            network.loop.after(self._back_s, self._answer.fail, value)
        else:
            network.loop.after(self._back_s, self._answer.arrive, value)

    def _fail(self) -> None:
        self._answer.fail(Away(self._service.name))

    def _fail_late(self) -> None:
        loop = self._service.network.loop
        loop.after(max(0.0, self._deadline_s - loop.now_s), self._fail)


class Service:
    """Something that answers requests, unless it is away."""

    def __init__(self, network: Network, name: str) -> None:
        self.network = network
        self.name = name
        self.mode: Mode = "up"
        self.work_s = 0.0  # How long it works on a request.
        self.parked: list[Callable[[], None]] = []
        self.away_at_s = -2000.0  # When it last went away,
        self.back_at_s = -1000.0  # and was back.

    def call(
        self, caller: Process, request: Request, timeout_s: float = STATEMENT_S, *, is_commit: bool = False
    ) -> Future[Any]:
        """Send a request; its work is done when and if it arrives."""
        return Call(self, caller, request, timeout_s, is_commit).send()

    def ask(self, caller: Process, work: Callable[[], Any], timeout_s: float = STATEMENT_S) -> Future[Any]:
        """The same for work that needs no waiting."""
        return self.call(caller, lambda reply: reply(work()), timeout_s)

    def leave(self, mode: Mode) -> None:
        """Go away."""
        self.mode, self.away_at_s = mode, self.network.loop.now_s

    def come_back(self) -> None:
        """Answer again, first of all what has come in meanwhile."""
        if self.mode != "up":
            self.mode, self.back_at_s = "up", self.network.loop.now_s
            parked, self.parked = self.parked, []
            for work in parked:
                work()
