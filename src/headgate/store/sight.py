"""What is seen of one database by all who use it: whether it answers, and whether it takes writes.

A database that goes away fails everybody who asks, over and over; the log says once that it went, and once that it is
back (`core.awaited` says when that is: what was asked before the last answer tells nothing). A server that stops ends
its sessions one after another, so some of them still answer when others have failed: what was asked within a moment of
the last failure is no return. All sessions of a process share what they see of one database, those of the beat's thread
included.

A database may answer and *refuse writes*: its disk is full, or it only reads. Reads go on and prove nothing then, so
this ends only when something has been written that needs room (`Database.try_to_write`).
"""

from __future__ import annotations

import math
import threading
from weakref import WeakValueDictionary

from headgate.clock import boot_s
from headgate.core import awaited
from headgate.core.awaited import Target
from headgate.log import get_logger

MOMENT_S = 1.0

log = get_logger()


class Sight:
    """One database, as this process sees it."""

    def __init__(self) -> None:
        self._target = Target()
        self._failed_at_s = -math.inf
        self._lock = threading.Lock()
        self.refusal: str | None = None  # Why it takes no writes.

    def answered(self, asked_at_s: float) -> None:
        """What it was asked at this time was answered."""
        with self._lock:
            if self._target.is_away and asked_at_s < self._failed_at_s + MOMENT_S:
                return
            before, self._target = self._target, awaited.answered(self._target, boot_s())
            if awaited.is_back(before, self._target):
                log.info("database back")

    def failed(self, asked_at_s: float, error: str) -> None:
        """What it was asked at this time was not answered."""
        with self._lock:
            self._failed_at_s = boot_s()
            before, self._target = self._target, awaited.silent(self._target, asked_at_s)
            if self._target.is_away and not before.is_away:
                log.warning("database away", error=error)

    def refused(self, error: str) -> None:
        """It answers, and takes no writes."""
        with self._lock:
            if self.refusal is None:
                log.warning("database takes no writes", error=error)
            self.refusal = error

    def took_a_write(self) -> None:
        """Something was written that needs room."""
        with self._lock:
            if self.refusal is not None:
                log.info("database takes writes again")
            self.refusal = None


_sights: WeakValueDictionary[str, Sight] = WeakValueDictionary()
_finding = threading.Lock()


def sight_of(url: str) -> Sight:
    """What is seen of the database at this URL."""
    with _finding:
        found = _sights.get(url)
        if found is None:
            found = _sights[url] = Sight()
        return found
