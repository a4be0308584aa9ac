"""The manifest of a table in files, `_headgate.json`.

It is written when a dump is finished: the types of the columns, which CSV and JSON do not know, and the parts with
their rows. For a single file it lies next to it, hidden, and counts only as long as the file is the one that was
written. Until then each part has its line of the ledger in a hidden file next to it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from headgate.connectors.api.bulk import Column, StorageError
from headgate.connectors.values.kinds import type_from_text

MANIFEST = "_headgate.json"


class Line(msgspec.Struct, frozen=True):
    """One part of a table: the ledger's line of its chunk."""

    name: str
    dump: str
    lo: str
    hi: str
    rows: int


class Field(msgspec.Struct, frozen=True):
    """One column in a manifest."""

    name: str
    type: str
    nullable: bool = True


class Manifest(msgspec.Struct):
    """What is known of a table that a dump wrote."""

    columns: list[Field] = []
    parts: list[Line] = []
    finished: list[str] = []  # Dumps.
    size: int = 0  # Of a single file: what it was when it was written,
    mtime_ns: int = 0  # and when.
    absent: bool = False  # NULL of a JSON column is a field that is absent, and null is a document.

    def types(self) -> tuple[Column, ...]:
        """The columns."""
        return tuple(Column(one.name, type_from_text(one.type), one.nullable) for one in self.columns)


def fields_of(columns: Sequence[Column]) -> list[Field]:
    """The columns as a manifest keeps them."""
    return [Field(column.name, str(column.type), column.nullable) for column in columns]


def manifest_of(path: Path) -> Manifest | None:
    """The manifest of a folder or of a file; None: there is none, or it speaks of another file."""
    try:
        if path.is_dir():
            return msgspec.json.decode((path / MANIFEST).read_bytes(), type=Manifest)
        found = msgspec.json.decode(manifest_path(path).read_bytes(), type=Manifest)
        state = path.stat()
    except FileNotFoundError:
        return None
    except (msgspec.MsgspecError, ValueError) as error:
        raise StorageError(f"the manifest of {path} is broken: {error}", hint="remove it, or bring it back") from None
    return found if (found.size, found.mtime_ns) == (state.st_size, state.st_mtime_ns) else None


def manifest_path(path: Path) -> Path:
    """Where the manifest of a single file lies."""
    return path.with_name(f".{path.name}.headgate.json")


def sidecar_of(part: Path) -> Path:
    """Where the line of a part lies until its dump is finished."""
    return part.with_name(f".{part.name}.json")
