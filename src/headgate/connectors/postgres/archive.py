"""The table of contents of an archive that `pg_dump --format=custom` has written.

An archive without data is nothing but this table: one entry for each object, with the SQL that makes it, its owner, and
the entries that it needs. Reading it takes a few lines, and it gives what a script does not: where one object's SQL
ends and the next one's begins, which nobody has to guess from text that a function's body or a comment may imitate.
Nothing in it is a command to a client: what `psql` would take for one is a syntax error to the server.

    header    "PGDMP", version (3 bytes), size of an integer, size of an offset, format (1: custom)
    integer   a byte for its sign, then its bytes, the lowest first
    text      its length as an integer, -1 for none, then its bytes
    entry     see `_Reader.entry`

The format has its own version, which changes seldom: 1.14 to 1.16 are those of PostgreSQL 12 to 18. Of any other
nothing is read.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

MAGIC = b"PGDMP"
CUSTOM = 1
OLDEST, NEWEST = (1, 14), (1, 16)
MOST_ENTRIES = 10_000_000


class Section(IntEnum):
    """When an entry is restored."""

    NONE = 1
    PRE_DATA = 2
    DATA = 3
    POST_DATA = 4


@dataclass(frozen=True, slots=True)
class Entry:
    """One object, or one thing that is said of an object."""

    number: int
    kind: str  # `TABLE`, `FK CONSTRAINT`, `ACL`, …
    tag: str  # Its name, sometimes after that of its table.
    schema: str
    owner: str
    section: int
    sql: str
    drop: str  # What drops it: it says how the object is called in SQL.
    tablespace: str
    access_method: str
    needs: tuple[int, ...]


class NotAnArchive(ValueError):
    """What was read is no archive, or one of a version that is not known."""


def parse(data: bytes) -> list[Entry]:
    """The entries of an archive, in the order in which they are restored. Raises `NotAnArchive`."""
    try:
        return _Reader(data).entries()
    except (IndexError, UnicodeDecodeError) as error:
        raise NotAnArchive("the archive of pg_dump is cut off") from error


class _Reader:
    """Reads an archive from its beginning to the end of its table of contents."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0
        if self._take(len(MAGIC)) != MAGIC:
            raise NotAnArchive("pg_dump has not written an archive")
        major, minor, _ = self._take(3)
        self._version = (major, minor)
        if not OLDEST <= self._version <= NEWEST:
            raise NotAnArchive(f"archives of version {major}.{minor} are not known")
        self._integer, self._offset, form = self._take(3)
        if form != CUSTOM:
            raise NotAnArchive("the archive is not in the custom format")

    def entries(self) -> list[Entry]:
        if self._version >= (1, 15):
            self._take(1)  # How it is compressed,
        else:
            self._number()
        for _ in range(7):  # when it was written,
            self._number()
        for _ in range(3):  # of which database, server and tool.
            self._text()
        count = self._number()
        if not 0 <= count <= MOST_ENTRIES:
            raise NotAnArchive("the archive of pg_dump cannot be read")
        return [self.entry() for _ in range(count)]

    def entry(self) -> Entry:
        number = self._number()
        self._number()  # Whether it has data.
        self._text(), self._text()  # Its place in the catalog of the source.
        tag, kind = self._text(), self._text()
        section = self._number()
        sql, drop = self._text(), self._text()
        self._text()  # How its data are copied.
        schema, tablespace, access_method = self._text(), self._text(), self._text()
        if self._version >= (1, 16):
            self._number()  # What kind of relation it is.
        owner = self._text()
        self._text()  # Whether it has oids: not since PostgreSQL 12.
        needs = tuple(int(one) for one in iter(self._text, ""))
        self._take(1 + self._offset)  # Where its data are.
        return Entry(number, kind, tag, schema, owner, section, sql, drop, tablespace, access_method, needs)

    def _take(self, size: int) -> bytes:
        end = self._at + size
        if end > len(self._data):
            raise IndexError
        taken = self._data[self._at : end]
        self._at = end
        return taken

    def _number(self) -> int:
        sign = self._take(1)[0]
        value = int.from_bytes(self._take(self._integer), "little")
        return -value if sign else value

    def _text(self) -> str:
        """A text; one that is not there is empty."""
        size = self._number()
        return "" if size < 0 else self._take(size).decode()
