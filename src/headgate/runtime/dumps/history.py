"""The history of a dump as JSON: saved when it fails, also when it is Headgate's own database that is gone."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec

from headgate.runtime.dumps.plan import file_of
from headgate.store.rows import decode

MOST = 100_000  # Attempts kept in memory; a table of a billion rows has some thousands.


class History:
    """What this process has heard of, attempt by attempt."""

    def __init__(self, home: Path, dump: UUID) -> None:
        self._file = file_of(home, dump)
        self._dump = dump
        self._tables: dict[int, dict[str, Any]] = {}
        self._attempts: list[dict[str, Any]] = []

    def begin(self, tables: dict[int, tuple[str, str]]) -> None:
        """The tables of the dump, source and target."""
        self._tables = {number: {"source": source, "target": target} for number, (source, target) in tables.items()}

    def append(self, row: Any) -> None:
        """One attempt."""
        if len(self._attempts) < MOST:
            self._attempts.append(attempt_of(row))

    def table_failed(self, number: int, error: str) -> None:
        """A table that cannot be copied."""
        self._tables[number]["error"] = error

    def save(self, error: str) -> Path:
        """Write it all down, whole or not at all."""
        content = {
            "dump": str(self._dump),
            "error": error,
            "resume": f"headgate dumps resume {self._dump}",
            "tables": list(self._tables.values()),
            "attempts": self._attempts,
        }
        self._file.parent.mkdir(parents=True, exist_ok=True)
        beside = self._file.with_suffix(".part")
        beside.write_bytes(msgspec.json.format(msgspec.json.encode(content)))
        os.replace(beside, self._file)
        return self._file

    def remove(self) -> None:
        """The dump is complete: nothing is left to resume."""
        self._file.unlink(missing_ok=True)


def attempt_of(row: Any) -> dict[str, Any]:
    """An attempt, for people and programs."""
    return {
        "table": row["name"],
        "chunk": row["chunk"],
        "worker": row["worker"],
        "notification": row["kind"],
        "lo": decode(row["lo"]),
        "hi": decode(row["hi"]),
        "rows": row["rows"],
        "bytes": row["bytes"],
        "seconds": round(row["seconds"], 3),
        "error": row["error"],
        "at": row["at"].isoformat(),
    }
