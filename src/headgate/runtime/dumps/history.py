"""The history of a dump as JSON: saved when it fails, also when it is Headgate's own database that is gone.

So the process that runs a dump keeps every attempt, those of earlier runs too; beyond a megabyte, in a temporary file.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from tempfile import SpooledTemporaryFile
from uuid import UUID

import msgspec

from headgate.runtime.dumps.plan import file_of
from headgate.runtime.dumps.views import AttemptView, attempt_view
from headgate.store.dump_rows import Attempt, AttemptRow, TableRow

IN_MEMORY_BYTES = 1_000_000


class _Table(msgspec.Struct, omit_defaults=True):
    """A table in the file."""

    source: str
    target: str
    error: str = ""


class _Head(msgspec.Struct, frozen=True):
    """What the file says before the attempts."""

    dump: UUID
    error: str
    resume: str
    tables: list[_Table]


class History:
    """Every attempt of one dump."""

    def __init__(self, home: Path, dump: UUID) -> None:
        self._file = file_of(home, dump)
        self._dump = dump
        self._tables: dict[int, _Table] = {}
        self._lines = SpooledTemporaryFile(max_size=IN_MEMORY_BYTES)  # noqa: SIM115

    def begin(self, tables: Sequence[TableRow]) -> None:
        """The tables of the dump."""
        self._tables = {row.number: _Table(row.name, row.target) for row in tables}

    def append(self, row: AttemptRow) -> None:
        """One attempt of the database's history."""
        self._write(attempt_view(row))

    def append_unrecorded(self, attempt: Attempt) -> None:
        """One attempt that the database did not take."""
        name, now = self._tables[attempt.table].source, datetime.now(UTC)
        fields = {field: getattr(attempt, field) for field in Attempt.__slots__}
        self._write(attempt_view(AttemptRow(id=0, name=name, at=now, **fields)))

    def _write(self, attempt: AttemptView) -> None:
        self._lines.write(msgspec.json.encode(attempt) + b"\n")

    def table_failed(self, number: int, error: str) -> None:
        """A table that cannot be copied."""
        self._tables[number].error = error

    def save(self, error: str) -> Path:
        """Write it all down, whole or not at all."""
        resume = f"headgate dumps resume {self._dump}"
        head = msgspec.json.encode(_Head(self._dump, error, resume, list(self._tables.values())))
        self._file.parent.mkdir(parents=True, exist_ok=True)
        part = self._file.with_suffix(".part")
        with part.open("wb") as file:
            file.write(msgspec.json.format(head).removesuffix(b"\n}") + b',\n  "attempts": [')
            self._lines.seek(0)
            for number, line in enumerate(self._lines):
                file.write((b",\n    " if number else b"\n    ") + line.rstrip())
            self._lines.seek(0, os.SEEK_END)
            file.write(b"\n  ]\n}\n")
        os.replace(part, self._file)
        return self._file

    def remove(self) -> None:
        """The dump is complete: nothing is left to resume."""
        self._file.unlink(missing_ok=True)

    def close(self) -> None:
        """Let go of the temporary file."""
        self._lines.close()
