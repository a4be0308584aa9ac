"""What a node is doing now, for those who trace it: runs, batches, calls, chunks.

Nobody traces unless that was configured (`telemetry.traces`), and then this costs one look at an attribute. What a span
says are names and numbers; there is no way in for a record, and an error is told by its cause, not by its words.
"""

from __future__ import annotations

from typing import Protocol, TypeAlias

Attribute: TypeAlias = str | int | float | bool


class Span(Protocol):
    """Something that has begun and will end."""

    def fail(self, cause: str) -> None:
        """It does not end well."""

    def part(self, name: str, took_s: float, **attributes: Attribute) -> None:
        """Something within it that has just ended; one in a second at most is kept."""

    def end(self) -> None:
        """It is over."""


class Nobody:
    """Nobody wants to know."""

    def fail(self, cause: str) -> None:
        """Nothing."""

    def part(self, name: str, took_s: float, **attributes: Attribute) -> None:
        """Nothing."""

    def end(self) -> None:
        """Nothing."""


class Tracer(Protocol):
    """Who keeps spans."""

    def begin(self, name: str, attributes: dict[str, Attribute]) -> Span:
        """Something begins."""

    def tell(self, name: str, took_s: float, attributes: dict[str, Attribute], cause: str) -> None:
        """Something has just ended."""


NOBODY = Nobody()


class Spans:
    """The way to the tracer of this process, if there is one."""

    __slots__ = ("_tracer", "is_on")

    def __init__(self) -> None:
        self._tracer: Tracer | None = None
        self.is_on = False

    def use(self, tracer: Tracer | None) -> None:
        """Have this one keep them from now on."""
        self._tracer, self.is_on = tracer, tracer is not None

    def begin(self, name: str, **attributes: Attribute) -> Span:
        """Something begins that takes a while."""
        return NOBODY if self._tracer is None else self._tracer.begin(name, attributes)

    def tell(self, name: str, took_s: float, cause: str = "", **attributes: Attribute) -> None:
        """Something has just ended, well unless a cause is given."""
        if self._tracer is not None:
            self._tracer.tell(name, took_s, attributes, cause)


spans = Spans()
