"""MongoDB as a storage: collections are cut by `_id`, whatever types it has.

    mongodb://user:password@host/database?sample=50000

A collection has no schema, so its columns are a guess from its first documents. The options in the URL:

    sample=N        how many documents to look at, 10,000 unless told
    nested=json     a document in a document is one JSON column; the default
    nested=flatten  its fields are columns of their own, such as `address.city`; arrays stay JSON
    doc=json        two columns: `_id`, and `doc` with the whole document as JSON
    micros=…        for a target: what becomes of microseconds (`headgate.connectors.mongodb.values.Micros`)

A document that has a field which none of the sampled ones had ends its chunk with an error: no field is lost silently.

**Ranges.** `{_id: {$gt: a}}` finds only ids of the type of `a`. A range is therefore read by the bounds of the index,
`min` and `max`, which know the order of all types. `min` includes its bound, and `$ne` takes it out; `max` does not
include its own, and one more query by `_id` brings it. A bound is the id in canonical extended JSON.

**Languages.** Between two MongoDBs documents travel as COPY: the BSON itself, which nobody decodes, so the order of
fields and the width of numbers stay; the server leaves out the fields whose columns are left out. Everybody else gets
ROWS. There is no snapshot: each chunk is read as it is at its time.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit, urlunsplit

import bson
from bson.errors import BSONError
from pymongo import AsyncMongoClient, errors

from headgate.connectors.api.bulk import (
    Bound,
    Column,
    Csv,
    Language,
    Piece,
    Pieces,
    Range,
    StorageError,
    StorageGone,
    Table,
)
from headgate.connectors.mongodb import values
from headgate.connectors.sql import ledger
from headgate.connectors.urls import redacted
from headgate.connectors.values.kinds import TEXT, Kind, Type
from headgate.errors import ConfigError, NotFound
from headgate.text import one_line

FAMILY = "mongodb"
WRITTEN = "headgate_dump_written"  # Beside the ledger: which ids a chunk that is not done may have left.
SAMPLE = 10_000
BATCH = 2_000  # Documents in a piece. The server sends fewer where they are large.
TIMEOUT_MS = 5_000  # Whoever does not answer for so long is gone.
ORDER = [("_id", 1)]

_AUTHENTICATION = {18, 8000}
_UNAUTHORIZED = 13
_OURS = re.compile(rf"^system\.|^({ledger.TABLE}|{WRITTEN})$|__hg_[0-9a-f]{{8}}$")


# The URL and the session.


@dataclass(frozen=True, slots=True)
class Options:
    """What a URL says, the part that is for us and the part that is for the client."""

    url: str
    database: str
    sample: int = SAMPLE
    flatten: bool = False
    whole: bool = False
    micros: values.Micros = values.Micros.REFUSE


def options_of(url: str) -> Options:
    """Read the URL. Raises `ConfigError`."""
    parts = urlsplit(url)
    database = unquote(parts.path.lstrip("/")).partition(".")[0]
    if not database:
        raise ConfigError(f"{redacted(url)} names no database", hint="mongodb://host/database")
    given = parse_qsl(parts.query, keep_blank_values=True)
    ours = {name: value for name, value in given if name in _CHOICES}
    for name, value in ours.items():
        if not re.fullmatch(_CHOICES[name], value):
            raise ConfigError(f"{redacted(url)}: {name}={value} is not understood", hint=_CHOICES[name])
    rest = urlencode([(name, value) for name, value in given if name not in _CHOICES], safe=",:/")
    return Options(
        url=urlunsplit((parts.scheme, parts.netloc, parts.path, rest, "")),
        database=database,
        sample=int(ours.get("sample", SAMPLE)),
        flatten=ours.get("nested") == "flatten",
        whole=ours.get("doc") == "json",
        micros=values.Micros(ours.get("micros", "refuse")),
    )


_CHOICES = {"sample": "[1-9][0-9]{0,8}", "nested": "json|flatten", "doc": "json", "micros": "refuse|text|truncate"}


class Session:
    """A client that connects when it is used first."""

    def __init__(self, url: str) -> None:
        self._url = url
        self.options = options_of(url)
        self._client: AsyncMongoClient[dict[str, Any]] | None = None

    def database(self) -> Any:
        """The database of the URL."""
        if self._client is None:
            with told(self._url):
                named = self.options.url.lower()
                limits: dict[str, Any] = {
                    name: TIMEOUT_MS
                    for name in ("serverSelectionTimeoutMS", "connectTimeoutMS")
                    if name.lower() not in named
                }
                self._client = AsyncMongoClient(self.options.url, appname="headgate dump", **limits)
                if not self._client.write_concern.acknowledged:
                    raise ConfigError(f"{redacted(self._url)}: w=0 would lose documents without a word")
        return self._client.get_database(self.options.database, codec_options=values.CODEC)

    async def info(self, table: str) -> dict[str, Any] | None:
        """What the server says of a collection. None: there is none."""
        cursor = await self.database().list_collections(filter={"name": table})
        found: list[dict[str, Any]] = await cursor.to_list()
        return found[0] if found else None

    async def close(self) -> None:
        """End the session."""
        if self._client is not None:
            client, self._client = self._client, None
            await client.close()


@contextmanager
def told(url: str, where: str = "") -> Iterator[None]:
    """The client's errors in one line, sorted by what to do about them."""
    place = f"{redacted(url)} {where}".strip()
    try:
        yield
    except (errors.ConnectionFailure, errors.WaitQueueTimeoutError) as error:
        raise StorageGone(f"{place} does not answer: {_line(error)}") from None
    except errors.OperationFailure as error:
        needs_login = error.code == _UNAUTHORIZED and "requires authentication" in str(error)
        if error.code in _AUTHENTICATION or needs_login:
            raise ConfigError(f"{redacted(url)} does not accept the user or the password: {_line(error)}") from None
        raise StorageError(f"{place}: {_line(error)}") from None
    except (errors.ConfigurationError, errors.InvalidURI) as error:
        raise ConfigError(f"{redacted(url)}: {_line(error)}") from None
    except (errors.PyMongoError, BSONError, OverflowError) as error:
        raise StorageError(f"{place}: {_line(error)}") from None


def _line(error: Exception) -> str:
    """The first part of what the client says; the rest describes its whole view of the servers."""
    text = one_line(error)
    return re.split(r", full error: |, Timeout: | \(configured timeouts: ", text)[0][:300]


# Reading.


class MongoReader:
    """One session that reads."""

    languages: Sequence[Language] = (Language.COPY, Language.ROWS)
    family = FAMILY

    def __init__(self, url: str) -> None:
        self._url = url
        self._session = Session(url)
        self._options = self._session.options

    async def tables(self) -> list[str]:
        """All collections that are not the server's or ours. Views and time series have no `_id` to cut by."""
        with told(self._url, "list collections"):
            cursor = await self._session.database().list_collections()
            found = await cursor.to_list()
        return sorted(one["name"] for one in found if one["type"] == "collection" and not _OURS.search(one["name"]))

    async def describe(self, table: str) -> Table:
        """Columns as the first documents have them."""
        with told(self._url, table):
            info = await self._session.info(table)
            if info is None:
                raise NotFound(f"{redacted(self._url)} has no collection {table}")
            if info["type"] != "collection":
                raise StorageError(f"{table} is a {info['type']}, which has no unique _id to cut it by")
            columns = await self._columns(table)
            collection = self._session.database()[table]
            indexes = [values.extended(one) for one in await (await collection.list_indexes()).to_list()]
            rows = await collection.estimated_document_count()
            size = await self._size(table)
        return Table(
            name=table,
            columns=columns,
            key=("_id",),
            rows=rows,
            size=size,
            family=FAMILY,
            details={
                "fields": {column.name: str(column.type) for column in columns},
                "shape": "document" if self._options.whole else "flat" if self._options.flatten else "fields",
                "indexes": indexes,
                "collation": values.extended(info.get("options", {}).get("collation")),
            },
            sampled=True,
        )

    async def _columns(self, table: str) -> tuple[Column, ...]:
        types: dict[str, Type | None] = {"_id": None}
        names: dict[str, dict[str, None]] = {"_id": {}}  # An ordered set of what MongoDB calls the types.
        only_id = {"_id": 1} if self._options.whole else None
        cursor = self._session.database()[table].find({}, only_id, limit=self._options.sample, batch_size=BATCH)
        async for document in cursor:
            for name, value in self._fields(document):
                types[name] = values.together(types.get(name), values.type_of(value))
                names.setdefault(name, {})[values.name_of(value)] = None
        if self._options.whole:
            types["doc"], names["doc"] = Type(Kind.JSON), {"object": None}
        if self._options.flatten:  # A document that is null in places is none but its fields.
            parents = {name[:at] for name in types for at, mark in enumerate(name) if mark == "."}
            types = {name: type for name, type in types.items() if type or name not in parents}
        required = ("_id", "doc") if self._options.whole else ("_id",)
        return tuple(
            Column(name, type or TEXT, nullable=name not in required, native="|".join(names[name]))
            for name, type in types.items()
        )

    def _fields(self, document: dict[str, Any]) -> Any:
        return values.flat(document) if self._options.flatten else document.items()

    async def _size(self, table: str) -> int | None:
        """About how many bytes; not everybody may ask."""
        try:
            stats = await self._session.database().command("collStats", table)
        except errors.OperationFailure:
            return None
        return int(stats.get("size", 0))

    async def begin(self) -> str | None:
        """There is no snapshot that several sessions share: each chunk is read as it is at its time."""
        return None

    async def top(self, table: Table) -> Bound | None:
        """The greatest `_id`."""
        with told(self._url, table.name):
            last = await self._session.database()[table.name].find_one({}, {"_id": 1}, sort=[("_id", -1)])
        return None if last is None else values.bound_of(last["_id"])

    async def cut(self, table: Table, after: Bound | None, top: Bound, rows: int) -> Bound:
        """The `_id` after so many, or the top."""
        with told(self._url, table.name):
            cursor = _between(self._session.database()[table.name].find, after, top, projection={"_id": 1})
            found = await cursor.sort(ORDER).skip(rows - 1).limit(1).to_list()
        return values.bound_of(found[0]["_id"]) if found else top

    async def query(self, table: Table, range: Range, language: Language, csv: Csv) -> Pieces:
        """One range, about 2,000 documents at a time."""
        shape = self._shaper(table)
        left_out = table.details.get("fields", {}).keys() - {column.name for column in table.columns}
        without = dict.fromkeys(left_out, 0) if language is Language.COPY else {}
        with told(self._url, table.name):
            async for batch in self._batches(table.name, range, without):
                if language is Language.COPY:
                    yield Piece(batch, len(batch), _count(batch))
                else:
                    rows = await asyncio.to_thread(_shaped, batch, shape)
                    yield Piece(rows, len(batch), len(rows))

    async def _batches(self, table: str, range: Range, without: dict[str, int]) -> AsyncIterator[bytes]:
        find = partial(self._session.database()[table].find_raw_batches, batch_size=BATCH, projection=without or None)
        for cursor in (_between(find, range.lo, range.hi), find({"_id": {"$eq": values.id_of(range.hi)}})):
            try:
                async for batch in cursor:
                    if batch:
                        yield batch
            finally:
                await cursor.close()

    def _shaper(self, table: Table) -> Any:
        """What makes a row of a document."""
        make = values.readers(table.columns)
        if table.details.get("shape") == "document":
            take_id = make.get("_id")

            def whole(document: dict[str, Any]) -> dict[str, Any]:
                row = {"doc": values.json_of(document)} if "doc" in make else {}
                return {"_id": _made(document["_id"], take_id, "_id", document), **row} if take_id else row

            return whole
        known = set(table.details.get("fields", ()))
        blank: dict[str, Any] = dict.fromkeys(make)
        is_flat = table.details.get("shape") == "flat"

        def shape(document: dict[str, Any]) -> dict[str, Any]:
            row = blank.copy()
            for name, value in values.flat(document) if is_flat else document.items():
                making = make.get(name)
                if value is None:
                    continue  # Null and absent are the same to a column.
                if making is None:
                    if name not in known:
                        raise _unknown(table, name, document)
                else:
                    if is_flat and row[name] is not None:
                        raise StorageError(f"{table.name}: {_of(document)} has the field {name!r} twice, once dotted")
                    row[name] = value if type(value) is making[0] else _made(value, making, name, document)
            return row

        return shape

    async def close(self) -> None:
        """End the session."""
        await self._session.close()


def _between(find: Any, lo: Bound | None, hi: Bound, **more: Any) -> Any:
    """The documents after `lo` and before `hi`, which is not among them, by the bounds of the index."""
    if lo is None:
        return find({}, **more).max([("_id", values.id_of(hi))]).hint(ORDER)
    begin = values.id_of(lo)
    bounded = find({"_id": {"$ne": begin}}, **more).min([("_id", begin)]).max([("_id", values.id_of(hi))])
    return bounded.hint(ORDER)


def _count(batch: bytes) -> int:
    """How many documents. Each begins with its length."""
    at = rows = 0
    while at < len(batch):
        at += int.from_bytes(batch[at : at + 4], "little")
        rows += 1
    return rows


def _shaped(batch: bytes, shape: Any) -> list[dict[str, Any]]:
    return [shape(document) for document in bson.decode_all(batch, values.CODEC)]


def _made(value: Any, making: values.Making, name: str, document: dict[str, Any]) -> Any:
    if type(value) is making[0]:
        return value
    try:
        return making[1](value)
    except ValueError as error:
        raise StorageError(
            f"field {name!r} of {_of(document)} does not fit its column: {error}",
            hint="sample more documents (?sample=100000 in the URL), or take whole ones (?doc=json)",
        ) from None


def _of(document: dict[str, Any]) -> str:
    return f"the document with the _id {values.shown(document['_id'])}"


def _unknown(table: Table, name: str, document: dict[str, Any]) -> StorageError:
    return StorageError(
        f"{table.name}: {_of(document)} has the field {name!r}, and the sampled ones had not",
        hint="sample more documents (?sample=100000 in the URL), or take whole ones (?doc=json)",
    )
