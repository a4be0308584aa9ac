"""MongoDB as a source: collections are cut by `_id`, whatever types it has.

A document that has a field which none of the sampled ones had ends its chunk with an error: no field is lost silently.

**Ranges.** `{_id: {$gt: a}}` finds only ids of the type of `a`. A range is therefore read by the bounds of the index,
`min` and `max`, which know the order of all types. `min` includes its bound, and `$ne` takes it out; `max` does not
include its own, and one more query by `_id` brings it. A bound is the id in canonical extended JSON.

Servers that speak MongoDB's protocol, such as FerretDB, may ignore `min` and `max`. There chunks are cut by `$gt` and
`$lt`, if all ids are of one type in which these find each id once; else the collection is refused.

**Languages.** Between two MongoDBs documents travel as COPY: the BSON itself, which is not decoded, so the order of
fields and the width of numbers stay; the server leaves out the fields whose columns are left out. All other targets get
ROWS. There is no snapshot: each chunk is read as it is at that moment.
"""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from functools import partial
from typing import Any

import bson
from pymongo import errors

from headgate.connectors.api.bulk import (
    Bound,
    Column,
    Csv,
    Language,
    Piece,
    Pieces,
    Range,
    StorageError,
    Table,
)
from headgate.connectors.mongodb import values
from headgate.connectors.mongodb.session import Session, translate_errors
from headgate.connectors.mongodb.values import FAMILY, Document
from headgate.connectors.sql import ledger
from headgate.connectors.urls import redacted
from headgate.connectors.values.kinds import TEXT, Kind, Type
from headgate.errors import NotFound

WRITTEN = "headgate_dump_written"  # Next to the ledger: which ids a chunk that is not done may have left.
BATCH = 2_000  # Documents in a piece. The server sends fewer where they are large.
ORDER = [("_id", 1)]
# The types in which `$gt`, `$lt`, `$eq` and the order of `_id` agree, as MongoDB's `$type` calls them.
COMPARED = ("objectId", "number", "string", "date", "binData")
SEVERAL = "several"

_OURS = re.compile(rf"^system\.|^({ledger.TABLE}|{WRITTEN})$|__hg_[0-9a-f]{{8}}$")


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
        with translate_errors(self._url, "list collections"):
            cursor = await self._session.database().list_collections()
            found = await cursor.to_list()
        return sorted(one["name"] for one in found if one["type"] == "collection" and not _OURS.search(one["name"]))

    async def describe(self, table: str) -> Table:
        """Columns as the first documents have them."""
        with translate_errors(self._url, table):
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
            ids = await self._kind_of_ids(collection)
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
                "ids": ids,
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

    def _fields(self, document: Document) -> Iterable[tuple[str, object]]:
        return values.flat(document) if self._options.flatten else document.items()

    async def _size(self, table: str) -> int | None:
        """About how many bytes; not everybody may ask."""
        try:
            stats = await self._session.database().command("collStats", table)
        except errors.OperationFailure:
            return None
        return int(stats.get("size", 0))

    async def _kind_of_ids(self, collection: Any) -> str:
        """The one type that all ids have, where the server ignores the bounds of a query. Else nothing."""
        first = await collection.find_one({}, {"_id": 1}, sort=ORDER)
        if first is None:
            return ""
        before = _between(collection.find, None, values.bound_of(first["_id"]), "", projection={"_id": 1})
        if first not in await before.sort(ORDER).limit(1).to_list():
            return ""
        if isinstance(first["_id"], float) and math.isnan(first["_id"]):
            return SEVERAL  # It comes before all numbers, and is found by none of them.
        for kind in COMPARED:
            if await collection.count_documents({"_id": {"$type": kind}}, limit=1):
                others = await collection.count_documents({"_id": {"$not": {"$type": kind}}}, limit=1)
                return SEVERAL if others else kind
        return SEVERAL

    async def begin(self) -> str | None:
        """There is no snapshot that several sessions share: each chunk is read as it is at that moment."""
        return None

    async def top(self, table: Table) -> Bound | None:
        """The greatest `_id`."""
        with translate_errors(self._url, table.name):
            collection = self._session.database()[table.name]
            last = await collection.find_one({}, {"_id": 1}, sort=[("_id", -1)])
            if last is None:
                return None
        if table.details.get("ids") == SEVERAL:
            raise StorageError(
                f"{table.name}: this server ignores the bounds of a query (min, max), so chunks would overlap: its ids"
                " are of several types, or of one that cannot be compared",
                hint="FerretDB is such a server: copy its own database, or from a MongoDB",
            )
        return values.bound_of(last["_id"])

    async def cut(self, table: Table, after: Bound | None, top: Bound, rows: int) -> Bound:
        """The `_id` after that many, or the top."""
        with translate_errors(self._url, table.name):
            find = self._session.database()[table.name].find
            cursor = _between(find, after, top, table.details.get("ids", ""), projection={"_id": 1})
            found = await cursor.sort(ORDER).skip(rows - 1).limit(1).to_list()
        return values.bound_of(found[0]["_id"]) if found else top

    async def query(self, table: Table, range: Range, language: Language, csv: Csv) -> Pieces:
        """One range, about 2,000 documents at a time."""
        shape = self._shaper(table)
        left_out = table.details.get("fields", {}).keys() - {column.name for column in table.columns}
        without = dict.fromkeys(left_out, 0) if language is Language.COPY else {}
        with translate_errors(self._url, table.name):
            async for batch in self._batches(table, range, without):
                if language is Language.COPY:
                    yield Piece(batch, len(batch), _count(batch))
                else:
                    rows = await asyncio.to_thread(_shaped, batch, shape)
                    yield Piece(rows, len(batch), len(rows))

    async def _batches(self, table: Table, range: Range, without: dict[str, int]) -> AsyncIterator[bytes]:
        collection = self._session.database()[table.name]
        find = partial(collection.find_raw_batches, batch_size=BATCH, projection=without or None)
        inner = _between(find, range.lo, range.hi, table.details.get("ids", ""))
        for cursor in (inner, find({"_id": {"$eq": values.id_of(range.hi)}})):
            try:
                async for batch in cursor:
                    if batch:
                        yield batch
            finally:
                await cursor.close()

    def _shaper(self, table: Table) -> Callable[[Document], Document]:
        """What makes a row of a document."""
        make = values.readers(table.columns)
        if table.details.get("shape") == "document":
            take_id = make.get("_id")

            def whole(document: Document) -> Document:
                row = {"doc": values.json_of(document)} if "doc" in make else {}
                return {"_id": _made(document["_id"], take_id, "_id", document), **row} if take_id else row

            return whole
        known = set(table.details.get("fields", ()))
        blank: Document = dict.fromkeys(make)
        is_flat = table.details.get("shape") == "flat"

        def shape(document: Document) -> Document:
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


def _between(find: Any, lo: Bound | None, hi: Bound, ids: str, **more: Any) -> Any:
    """The documents after `lo` and before `hi`, which is not among them, by the bounds of the index; or by comparison,
    where all ids are known to be of one type."""
    if ids:
        after = {} if lo is None else {"$gt": values.id_of(lo)}
        return find({"_id": {**after, "$lt": values.id_of(hi)}}, **more)
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


def _shaped(batch: bytes, shape: Callable[[Document], Document]) -> list[Document]:
    return [shape(document) for document in bson.decode_all(batch, values.CODEC)]


def _made(value: Any, making: values.Making, name: str, document: Document) -> Any:
    if type(value) is making[0]:
        return value
    try:
        return making[1](value)
    except ValueError as error:
        raise StorageError(
            f"field {name!r} of {_of(document)} does not fit its column: {error}",
            hint="sample more documents (?sample=100000 in the URL), or take whole ones (?doc=json)",
        ) from None


def _of(document: Document) -> str:
    return f"the document with the _id {values.shown(document['_id'])}"


def _unknown(table: Table, name: str, document: Document) -> StorageError:
    return StorageError(
        f"{table.name}: {_of(document)} has the field {name!r}, which no sampled document has",
        hint="sample more documents (?sample=100000 in the URL), or take whole ones (?doc=json)",
    )
