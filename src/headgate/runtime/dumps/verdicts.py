"""What people and programs see of a comparison: the same for the commands, the API and the console."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from headgate.text import counted


class Finding(StrEnum):
    """What a comparison found of a chunk, or of a table as a whole."""

    DIFFERENT = "different"
    MISSING = "missing"  # The target has no such table, or not all of its columns.
    EXTRA = "extra"  # The target has rows that the plan does not.
    UNKNOWN = "unknown"  # It could not be compared.


class Verdict(StrEnum):
    """What a comparison found in all."""

    EQUAL = "equal"
    DIFFERENT = "different"
    UNKNOWN = "unknown"  # Nothing differs, but not everything could be compared.


class DifferenceView(msgspec.Struct, frozen=True, kw_only=True):
    """A chunk, or a table as a whole, that is not known to be the same at the target."""

    table: str
    chunk: int | None
    finding: Finding
    why: str
    repaired: bool
    unrepaired: str

    @property
    def text(self) -> str:
        """In one line."""
        where = self.table if self.chunk is None else f"{self.table}, chunk {self.chunk}"
        end = "; repaired" if self.repaired else f"; not repaired: {self.unrepaired}" if self.unrepaired else ""
        return f"{where}: {self.why}{end}"


class VerifiedView(msgspec.Struct, frozen=True, kw_only=True):
    """What a comparison found."""

    tables: int
    chunks: int
    rows: int
    equal: bool
    verdict: Verdict
    repaired: int
    different: list[DifferenceView]

    @property
    def text(self) -> str:
        """In one line."""
        word = {Verdict.UNKNOWN: "not all could be compared"}.get(self.verdict, str(self.verdict))
        what = f"{counted(self.tables, 'table')}, {counted(self.chunks, 'chunk')}, {counted(self.rows, 'row')}"
        return f"{word}: {what} compared"


class VerifyRunning(msgspec.Struct, frozen=True, kw_only=True, tag_field="state", tag="running"):
    """A comparison under way."""

    repair: bool
    table: str | None = None
    chunks_done: int = 0
    chunks: int = 0


class VerifyDone(VerifiedView, frozen=True, kw_only=True, tag_field="state", tag="done"):
    """A comparison that has ended."""

    repair: bool


class VerifyFailed(msgspec.Struct, frozen=True, kw_only=True, tag_field="state", tag="failed"):
    """A comparison that could not be made."""

    repair: bool
    error: str
    hint: str
