"""MongoDB as a target: each document once, without transactions.

The `_id` of a document is the same at every attempt: that of the source if it has one, else the job's key, a single
value or a document of several, else `<dump>:<chunk>:<row>`.

**A chunk's life.** Its line goes into the ledger first, as `begun`, with the token of the attempt, and becomes `done`
with the number of rows when all is written. Before some documents are inserted, their ids are looked up: one that is
there belongs to another writer, and the chunk is refused, with nothing touched. Then their ids and digests are noted in
`headgate_dump_written`, and then they are inserted. So a document is what a broken attempt left if a note has its id
and its digest, whatever has happened to the source since. Those are removed before the next attempt, which begins
again; one with another content is somebody else's and stays. The notes stay until the chunk is done, because an insert
may end after its worker has. A second worker takes the line over by its token; the first finds that at its next step,
stops, and removes nothing.

**Upsert and absent** may be done twice and need no notes. By `_id` a document is replaced; by another key, which has a
unique index then, the columns are set and other fields stay. `absent` inserts, and what is there already says so.

A chunk that is written `again` is written by `_id`. Documents that the source no longer has stay: nothing
records which of them came with the chunk.

**The swap** is one rename, and a collection keeps its UUID in it. The last line of the ledger has that UUID before the
rename, as `swapping`, so after a crash it is known which of the two names has what was built.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any
from uuid import UUID, uuid4

import bson
from bson.raw_bson import RawBSONDocument
from pymongo import errors

from headgate.connectors.api.bulk import (
    PLAIN,
    AlreadyWritten,
    Job,
    Language,
    Mode,
    Pieces,
    Range,
    StorageError,
    StorageGone,
    Table,
    bad_name,
)
from headgate.connectors.mongodb import values
from headgate.connectors.mongodb.documents import digest, id_in, indexes_of, key_of, replacing, shaped, shaper, spec_of
from headgate.connectors.mongodb.reader import WRITTEN
from headgate.connectors.mongodb.session import Session, translate_errors
from headgate.connectors.mongodb.values import FAMILY, Document
from headgate.connectors.sql import ledger
from headgate.connectors.values.convert import Normalizes
from headgate.errors import Refused
from headgate.text import one_line

AT_ONCE = 10_000  # Documents that are written with one note,
AT_ONCE_BYTES = 8 << 20  # or this many bytes of them.

LONGEST = 170  # Bytes of a name: with the database's, which has up to 63, and what is added while it is built, 255.
_DUPLICATE = 11000
_EXISTS = 48
_BEGUN, _DONE = "begun", "done"


class MongoWriter(Normalizes):
    """One session that writes."""

    languages: Sequence[Language] = (Language.COPY, Language.ROWS)
    csv = PLAIN
    transactional = False
    family = FAMILY

    def __init__(self, url: str) -> None:
        self._url = url
        self._session = Session(url)

    @property
    def _lines(self) -> Any:
        return self._session.database()[ledger.TABLE]

    @property
    def _notes(self) -> Any:
        return self._session.database()[WRITTEN]

    def name_for(self, plain: str) -> str:
        """The same: a name is never taken apart here."""
        return plain

    async def place_of(self, table: str) -> str:
        """The name, if a collection can have it."""
        is_long = len(table.encode(errors="surrogatepass")) > LONGEST
        is_taken = table.startswith("system.") or table in (ledger.TABLE, WRITTEN)
        if is_long or is_taken or "\0" in table or "$" in table or not all(table.split(".")):
            raise bad_name(table, "a collection")
        return table

    async def look(self, table: str) -> Table | None:
        """What is there. A collection has no columns that could be wrong, so none are returned."""
        with translate_errors(self._url, table):
            if await self._session.info(table) is None:
                return None
            collection = self._session.database()[table]
            has_rows = await collection.find_one({}, {"_id": 1}) is not None
            rows = max(1, await collection.estimated_document_count()) if has_rows else 0
            return Table(table, (), key=("_id",), rows=rows, family=FAMILY, sampled=True)

    async def prepare(self, job: Job) -> Table:
        """The collection that chunks go into."""
        key = key_of(job)
        if job.mode in (Mode.UPSERT, Mode.ABSENT) and not key:
            raise Refused(
                f"{job.target} has no key by which rows can be found", code="no_key", hint="name it with --key"
            )
        with translate_errors(self._url, job.target):
            name = job.target
            if job.is_apart and not await self._is_in_place(job):
                name = job.apart_name
                if await self.done(job) and await self._session.info(name) is None:
                    raise Refused(
                        f"{name} is gone, and the ledger has chunks of it",
                        code="apart_gone",
                        hint="cancel the dump and begin again",
                    )
            await self._create(name, job)
            if job.mode in (Mode.UPSERT, Mode.ABSENT) and key != ("_id",):
                await self._session.database()[name].create_index([(one, 1) for one in key], unique=True)
            return Table(name, job.source.columns, key=("_id",), family=FAMILY, sampled=True)

    async def _create(self, name: str, job: Job) -> None:
        if await self._session.info(name) is not None:
            return
        collation = values.from_extended(job.source.details.get("collation") or "null")
        try:
            await self._session.database().command("create", name, **({"collation": collation} if collation else {}))
        except errors.OperationFailure as error:
            if error.code != _EXISTS:
                raise

    async def done(self, job: Job) -> dict[Range, int]:
        """The chunks that are written."""
        with translate_errors(self._url, ledger.TABLE):
            found = await self._lines.find({**_all(job), "state": _DONE}).to_list()
        return {
            ledger.range_of(line["lo"], line["hi"]): line["rows"]
            for line in found
            if line["_id"][ledger.KEY] != ledger.FINISHED
        }

    async def unfinished(self, target: str) -> list[UUID]:
        """Dumps of this collection that are not finished."""
        with translate_errors(self._url, ledger.TABLE):
            found = await self._lines.find({"_id.target": target}, {"_id": 1, "state": 1}).to_list()
        ended = {
            line["_id"]["dump"]
            for line in found
            if line["_id"][ledger.KEY] == ledger.FINISHED and line["state"] == _DONE
        }
        return [UUID(dump) for dump in dict.fromkeys(line["_id"]["dump"] for line in found) if dump not in ended]

    def accepts(self, table: Table, job: Job) -> Sequence[Language]:
        """BSON as it is, if fields come from a MongoDB as it has them, and `_id` is what finds them."""
        source, by_id = job.source, job.mode in (Mode.APPEND, Mode.REPLACE) or key_of(job) == ("_id",)
        fields = source.details.get("fields", {}) if source.details.get("shape") == "fields" else {}
        is_same = all(fields.get(one.name) == str(one.type) for one in source.columns)
        left_out = fields.keys() - {column.name for column in source.columns}
        # The server leaves fields out by their names, and cannot if they look like paths.
        can_leave = not any(name == "_id" or "." in name or name.startswith("$") for name in left_out)
        is_native = source.family == FAMILY and bool(fields)
        return self.languages if is_native and by_id and is_same and can_leave else (Language.ROWS,)

    async def write(
        self, job: Job, table: Table, range: Range, language: Language, pieces: Pieces, *, again: bool = False
    ) -> int:
        """One chunk. What goes wrong takes back what was written, if the server answers."""
        with translate_errors(self._url, job.target):
            token, again = await self._begin(job, table, range, again)
            by_key = again or job.mode in (Mode.UPSERT, Mode.ABSENT)
            rows = 0
            try:
                async for documents in self._documents(job, range, language, pieces):
                    rows += len(documents)
                    if by_key:
                        await self._merge(job, table, documents)
                    else:
                        await self._insert(job, table, range, token, documents)
            except (StorageError, errors.PyMongoError, bson.errors.BSONError, OverflowError) as error:
                if not by_key and not isinstance(error, (StorageGone, errors.ConnectionFailure)):
                    await self._take_back(job, table, range, token)
                raise
            await self._end(job, range, token, rows)
            return rows

    async def _begin(self, job: Job, table: Table, range: Range, again: bool) -> tuple[str, bool]:
        """Have the chunk's line. What a broken attempt left goes first. Also says whether it was written before."""
        key, lo, hi = ledger.line_of(range)
        token = uuid4().hex
        ours = {"state": _BEGUN, "token": token, "at": _now()}
        try:
            await self._lines.insert_one({"_id": _id(job, key), "lo": lo, "hi": hi, "rows": 0, "again": again, **ours})
            return token, again
        except errors.DuplicateKeyError:
            pass
        wanted = {"_id": _id(job, key)} if again else {"_id": _id(job, key), "state": _BEGUN}
        taken = await self._lines.update_one(wanted, {"$set": {**ours, "again": True} if again else ours})
        if not taken.matched_count:
            raise AlreadyWritten(f"{job.target} already has this chunk")
        await self._remove(job, table, _id(job, key))
        return token, bool((await self._lines.find_one({"_id": _id(job, key)}) or {}).get("again"))

    async def _insert(self, job: Job, table: Table, range: Range, token: str, documents: list[RawBSONDocument]) -> None:
        ids = [id_in(document) for document in documents]
        collection = self._session.database()[table.name]
        there, _ = await asyncio.gather(
            collection.find_one({"_id": {"$in": ids}}, {"_id": 1}), self._check(job, range, token)
        )
        if there is not None:
            raise _conflict(job, there["_id"])
        chunk = _id(job, ledger.key_of(range))
        await self._notes.insert_one({"chunk": chunk, "ids": ids, "digests": [digest(one) for one in documents]})
        try:
            await collection.insert_many(documents, ordered=False)
        except errors.BulkWriteError as error:
            raise _refusal(job, error.details) from None

    async def _check(self, job: Job, range: Range, token: str) -> None:
        """Stop if another has taken the chunk."""
        wanted = {"_id": _id(job, ledger.key_of(range)), "token": token, "state": _BEGUN}
        if await self._lines.find_one(wanted, {"_id": 1}) is None:
            raise AlreadyWritten(f"a chunk of {job.target} has been taken over by another worker")

    async def _merge(self, job: Job, table: Table, documents: list[RawBSONDocument]) -> None:
        collection = self._session.database()[table.name]
        try:
            if job.mode is Mode.ABSENT:
                await collection.insert_many(documents, ordered=False)
            else:
                await collection.bulk_write([replacing(job, one) for one in documents], ordered=False)
        except errors.BulkWriteError as error:
            bad = list(error.details.get("writeErrors", ()))
            if job.mode is Mode.ABSENT:
                bad = [one for one in bad if not await self._is_there(job, table, one, documents)]
            if bad or error.details.get("writeConcernErrors"):
                raise _refusal(job, {**error.details, "writeErrors": bad}) from None

    async def _is_there(self, job: Job, table: Table, error: Document, documents: list[RawBSONDocument]) -> bool:
        """Whether a document was not inserted because one with its key is there."""
        key = list(key_of(job))
        if error.get("code") != _DUPLICATE:
            return False
        by_id = (
            ["_id"] if "index: _id_ " in error.get("errmsg", "") else []
        )  # Old servers report it only in the text of the error.
        if (list(error.get("keyPattern", ())) or by_id) == key:
            return True
        # The `_id` is compared before the key: look whether it is the same document.
        document = documents[error["index"]]
        same = {name: {"$eq": document[name]} for name in ["_id", *key]}
        return await self._session.database()[table.name].find_one(same, {"_id": 1}) is not None

    async def _end(self, job: Job, range: Range, token: str, rows: int) -> None:
        chunk = _id(job, ledger.key_of(range))
        done = {"$set": {"state": _DONE, "rows": rows, "at": _now()}}
        ended = await self._lines.update_one({"_id": chunk, "token": token}, done)
        if not ended.matched_count:
            raise AlreadyWritten(f"a chunk of {job.target} has been taken over by another worker")
        await self._notes.delete_many({"chunk": chunk})

    async def _take_back(self, job: Job, table: Table, range: Range, token: str) -> None:
        try:
            await self._check(job, range, token)
            await self._remove(job, table, _id(job, ledger.key_of(range)))
        except errors.ConnectionFailure:
            raise  # The caller must see that the server is gone.
        except (errors.PyMongoError, AlreadyWritten):
            return  # The next attempt does it.

    async def _remove(self, job: Job, table: Table, chunk: dict[str, str]) -> None:
        """Remove the documents that the notes of a chunk tell."""
        collection = self._session.database().get_collection(table.name, codec_options=values.RAW)
        async for note in self._notes.find({"chunk": chunk}):
            digests = set(note["digests"])
            left = [
                id_in(one) async for one in collection.find({"_id": {"$in": note["ids"]}}) if digest(one) in digests
            ]
            await collection.delete_many({"_id": {"$in": left}})

    async def undo(self, job: Job, table: Table, range: Range) -> None:
        """Remove what a broken write left, by its notes."""
        with translate_errors(self._url, job.target):
            chunk = _id(job, ledger.key_of(range))
            if await self._lines.find_one({"_id": chunk, "state": _BEGUN}) is not None:
                await self._remove(job, table, chunk)

    async def _documents(
        self, job: Job, range: Range, language: Language, pieces: Pieces
    ) -> AsyncIterator[list[RawBSONDocument]]:
        """What comes, as documents, as many at once as are worth a note."""
        shape = None if language is Language.COPY else shaper(job, ledger.key_of(range), self._session.options.micros)
        held: list[RawBSONDocument] = []
        size = at = 0
        async for piece in pieces:
            if shape is None:
                held += bson.decode_all(piece.data, values.RAW)
            else:
                held += await asyncio.to_thread(shaped, piece.data, shape, at)
                at += len(piece.data)
            size += piece.size
            while len(held) >= AT_ONCE or (held and size >= AT_ONCE_BYTES):
                some, held, size = held[:AT_ONCE], held[AT_ONCE:], 0
                yield some
        if held:
            yield held

    async def finish(self, job: Job) -> None:
        """Indexes, then the name, then the line that says so."""
        with translate_errors(self._url, job.target):
            if not await self._is_in_place(job):
                await self._put_in_place(job)
            await self._say(job, {"state": _DONE})
            await self._notes.delete_many({"chunk.dump": str(job.dump), "chunk.target": job.target})

    async def _is_in_place(self, job: Job) -> bool:
        """Whether all is done but the line that says so."""
        line = await self._lines.find_one({"_id": _id(job, ledger.FINISHED)})
        if line is None or line["state"] == _DONE:
            return line is not None
        if line["uuid"] is None:  # Not every server with MongoDB's protocol reports it.
            return await self._session.info(job.apart_name) is None
        return bool(line["uuid"] == await self._uuid(job.target))

    async def _say(self, job: Job, words: Document) -> None:
        line = {"lo": "", "hi": "", "rows": 0, "at": _now(), **words}
        await self._lines.update_one({"_id": _id(job, ledger.FINISHED)}, {"$set": line}, upsert=True)

    async def _uuid(self, name: str) -> str | None:
        found = ((await self._session.info(name)) or {}).get("info", {}).get("uuid")
        return None if found is None else bytes(found.bytes if isinstance(found, UUID) else found).hex()

    async def _put_in_place(self, job: Job) -> None:
        name = job.apart_name if job.is_apart else job.target
        indexes = indexes_of(job) if job.created or job.is_apart else []
        is_there = job.is_apart and await self._session.info(job.target) is not None
        if is_there and job.mode is not Mode.REPLACE:
            if await self._session.database()[job.target].find_one({}, {"_id": 1}) is not None:
                raise Refused(f"{job.target} is no longer empty", code="has_rows", hint="--mode replace")
        elif is_there:  # Those who read the collection rely on its indexes.
            old = await (await self._session.database()[job.target].list_indexes()).to_list()
            names = {index["name"] for index in indexes}
            keys = [list(index["key"].items()) for index in indexes]
            kept = (index for index in map(spec_of, old) if index["name"] not in names)
            indexes += [index for index in kept if list(index["key"].items()) not in keys]
        for index in indexes:
            if index["name"] != "_id_":
                await self._session.database().command("createIndexes", name, indexes=[index])
        if job.is_apart:
            await self._say(job, {"state": ledger.SWAPPING, "uuid": await self._uuid(name)})
            await self._session.database()[name].rename(job.target, dropTarget=True)

    async def drop(self, job: Job) -> None:
        """Remove what was built apart, with its lines. In place, what broken chunks left: whole ones stay."""
        with translate_errors(self._url, job.target):
            if job.is_apart:
                await self._session.database().drop_collection(job.apart_name)
                await self._lines.delete_many(_all(job))
            else:
                table = Table(job.target, job.source.columns)
                async for line in self._lines.find({**_all(job), "state": _BEGUN}):
                    await self._remove(job, table, line["_id"])
            await self._notes.delete_many({"chunk.dump": str(job.dump), "chunk.target": job.target})

    async def clean(self, dump: UUID, targets: Sequence[str]) -> None:
        """Remove the dump's lines, and the ledger after the last of all lines."""
        with translate_errors(self._url, ledger.TABLE):
            await self._lines.delete_many({"_id.dump": str(dump)})
            if await self._lines.find_one({}, {"_id": 1}) is None:
                await self._lines.drop()
                await self._notes.drop()

    async def close(self) -> None:
        """End the session."""
        await self._session.close()


# What a job means here.


def _id(job: Job, key: str) -> dict[str, str]:
    return {"dump": str(job.dump), "target": job.target, ledger.KEY: key}


def _all(job: Job) -> dict[str, str]:
    return {"_id.dump": str(job.dump), "_id.target": job.target}


def _now() -> datetime:
    return datetime.now(UTC)


def _conflict(job: Job, id: object) -> StorageError:
    return StorageError(
        f"{job.target} has a document with the _id {values.shown(id)}, which this chunk did not write",
        hint="--mode upsert overwrites it, --mode replace starts over",
    )


def _refusal(job: Job, details: Mapping[str, Any]) -> StorageError:
    found = [*details.get("writeErrors", ()), *details.get("writeConcernErrors", ())]
    text = one_line(found[0].get("errmsg") if found else "an unknown error", 300)
    twice = "two documents have the same key: " if found and found[0].get("code") == _DUPLICATE else ""
    return StorageError(f"{job.target}: {twice}{text}")
