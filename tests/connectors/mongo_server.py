"""A small MongoDB for tests: a standalone server without transactions, that speaks OP_MSG over TCP.

It keeps documents as the bytes that came, orders values of all types as MongoDB does, holds unique indexes, and knows
the commands that a dump uses. Tests may tell it to be slow (`delay_s`), to break off after so many documents
(`break_after_inserts`) or so many commands of a name (`break_after`), to cut all connections (`cut`), and to let them
do something before a command (`before`).

Run as a script it prints its URL and serves until its standard input ends.
"""

from __future__ import annotations

import asyncio
import itertools
import struct
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import bson
from bson.binary import Binary
from bson.datetime_ms import DatetimeMS
from bson.raw_bson import RawBSONDocument

from tests.connectors.mongo_documents import (
    CODEC,
    RAW,
    Collection,
    Failure,
    changed,
    from_filter,
    id_first,
    matches,
    order,
    projected,
    raw_of,
    sort_key,
    staged,
)

MOST_BYTES = 16 << 20


class Broken(Exception):
    """The connection is to be closed without an answer."""


# The server.


class MongoServer:
    """One server. `url` is for a database of that name."""

    def __init__(self) -> None:
        self.databases: dict[str, dict[str, Collection]] = {}
        self.commands: list[str] = []
        self.delay_s = 0.0
        self.keeps_bounds = True  # False: like one that ignores what it does not know.
        self.break_after_inserts: int | None = None
        self.break_after: dict[str, int] = {}
        self.before: Callable[[str, Any], None] | None = None
        self.port = 0
        self._cursors: dict[int, tuple[str, list[RawBSONDocument]]] = {}
        self._numbers = itertools.count(1)
        self._writers: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None

    async def start(self, port: int = 0) -> None:
        """Listen."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def stop(self) -> None:
        """Close the port and every connection."""
        if self._server is not None:
            self._server.close()
            self.cut()
            self._server = None

    def url(self, database: str, options: str = "") -> str:
        """The URL of a database."""
        return f"mongodb://127.0.0.1:{self.port}/{database}{options}"

    def cut(self) -> None:
        """Break all connections."""
        for writer in list(self._writers):
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            while True:
                size, request, _, code = struct.unpack("<iiii", await reader.readexactly(16))
                body = await reader.readexactly(size - 16)
                if self.delay_s:
                    await asyncio.sleep(self.delay_s)
                number = next(self._numbers)
                if code == 2004:  # OP_QUERY, which only greets.
                    end = body.index(b"\0", 4) + 9
                    answer = bson.encode(self.answer("admin", bson.decode(body[end:], CODEC)))
                    message = struct.pack("<iqii", 8, 0, 0, 1) + answer
                    head = struct.pack("<iiii", 16 + len(message), number, request, 1)
                else:
                    command = _command(body)
                    answer = bson.encode(self.answer(command.get("$db", "admin"), command))
                    message = struct.pack("<ib", 0, 0) + answer
                    head = struct.pack("<iiii", 16 + len(message), number, request, 2013)
                    if struct.unpack_from("<i", body)[0] & 2:  # The client does not want to know.
                        continue
                writer.write(head + message)
                await writer.drain()
        except (asyncio.IncompleteReadError, OSError, Broken, asyncio.CancelledError):
            pass
        finally:
            self._writers.discard(writer)
            writer.transport.abort()

    def answer(self, database: str, command: dict[str, Any]) -> dict[str, Any]:
        """Do one command."""
        name = next(iter(command))
        self.commands.append(name)
        if name in self.break_after:
            self.break_after[name] -= 1
            if self.break_after[name] < 0:
                raise Broken
        if self.before is not None:
            self.before(name, command[name])
        handler = getattr(self, f"do_{name.lower()}", None)
        try:
            if handler is None:
                raise Failure(59, f"no such command: '{name}'")
            if "txnNumber" in command or "startTransaction" in command:
                raise Failure(20, "Transaction numbers are only allowed on a replica set member or mongos")
            return {**handler(database, command[name], command), "ok": 1.0}
        except Failure as failure:
            return failure.answer

    # Greeting.

    def do_hello(self, database: str, value: Any, command: dict[str, Any]) -> dict[str, Any]:
        return {
            "helloOk": True,
            "isWritablePrimary": True,
            "ismaster": True,
            "maxBsonObjectSize": MOST_BYTES,
            "maxMessageSizeBytes": 48_000_000,
            "maxWriteBatchSize": 100_000,
            "localTime": DatetimeMS(0),
            "minWireVersion": 0,
            "maxWireVersion": 21,
            "readOnly": False,
        }

    do_ismaster = do_hello

    def do_ping(self, database: str, value: Any, command: dict[str, Any]) -> dict[str, Any]:
        return {}

    do_endsessions = do_ping

    def do_buildinfo(self, database: str, value: Any, command: dict[str, Any]) -> dict[str, Any]:
        return {"version": "7.0.0", "versionArray": [7, 0, 0, 0]}

    def do_saslstart(self, database: str, value: Any, command: dict[str, Any]) -> dict[str, Any]:
        raise Failure(18, "Authentication failed.", codeName="AuthenticationFailed")

    # Collections and indexes.

    def _collection(self, database: str, name: str) -> Collection:
        return self.databases.setdefault(database, {}).setdefault(name, Collection())

    def _cursor(self, namespace: str, documents: list[Any], batch: int = 101) -> dict[str, Any]:
        raws = [one if isinstance(one, RawBSONDocument) else raw_of(one) for one in documents]
        some = _batch(raws, batch)
        number = 0
        if len(some) < len(raws):
            number = next(self._numbers)
            self._cursors[number] = (namespace, raws[len(some) :])
        return {"cursor": {"id": bson.Int64(number), "ns": namespace, "firstBatch": some}}

    def do_listdatabases(self, database: str, value: Any, command: dict[str, Any]) -> dict[str, Any]:
        return {"databases": [{"name": name, "sizeOnDisk": 0, "empty": not of} for name, of in self.databases.items()]}

    def do_listcollections(self, database: str, value: Any, command: dict[str, Any]) -> dict[str, Any]:
        rows = [
            {
                "name": name,
                "type": "collection",
                "options": collection.options,
                "info": {"uuid": Binary.from_uuid(collection.uuid)},
            }
            for name, collection in self.databases.get(database, {}).items()
        ]
        filter = command.get("filter") or {}
        return self._cursor(f"{database}.$cmd.listCollections", [row for row in rows if matches(row, filter)])

    def do_create(self, database: str, name: str, command: dict[str, Any]) -> dict[str, Any]:
        if name in self.databases.get(database, {}):
            raise Failure(48, f"Collection {database}.{name} already exists.")
        options = {key: value for key, value in command.items() if key in ("collation", "capped", "size", "validator")}
        self._collection(database, name).options = options
        return {}

    def do_drop(self, database: str, name: str, command: dict[str, Any]) -> dict[str, Any]:
        if self.databases.get(database, {}).pop(name, None) is None:
            raise Failure(26, "ns not found")
        return {}

    def do_dropdatabase(self, database: str, value: Any, command: dict[str, Any]) -> dict[str, Any]:
        self.databases.pop(database, None)
        return {"dropped": database}

    def do_renamecollection(self, database: str, name: str, command: dict[str, Any]) -> dict[str, Any]:
        (database, old), (to, new) = name.split(".", 1), command["to"].split(".", 1)
        if old not in self.databases.get(database, {}):
            raise Failure(26, f"Source collection {name} does not exist")
        if new in self.databases.get(to, {}) and not command.get("dropTarget"):
            raise Failure(48, "target namespace exists")
        self.databases.setdefault(to, {})[new] = self.databases[database].pop(old)
        return {}

    def do_collstats(self, database: str, name: str, command: dict[str, Any]) -> dict[str, Any]:
        documents = self._collection(database, name).documents.values()
        return {"ns": f"{database}.{name}", "count": len(documents), "size": sum(len(one.raw) for one in documents)}

    def do_createindexes(self, database: str, name: str, command: dict[str, Any]) -> dict[str, Any]:
        collection = self._collection(database, name)
        for index in command["indexes"]:
            collection.add_index(index, f"{database}.{name}")
        return {"numIndexesAfter": len(collection.indexes)}

    def do_listindexes(self, database: str, name: str, command: dict[str, Any]) -> dict[str, Any]:
        if name not in self.databases.get(database, {}):
            raise Failure(26, f"ns does not exist: {database}.{name}")
        return self._cursor(f"{database}.{name}", self._collection(database, name).indexes)

    def do_dropindexes(self, database: str, name: str, command: dict[str, Any]) -> dict[str, Any]:
        collection, gone = self._collection(database, name), command["index"]
        collection.indexes = [
            one for one in collection.indexes if one["name"] == "_id_" or gone not in ("*", one["name"])
        ]
        collection.unique = {
            one["name"]: collection.unique[one["name"]]
            for one in collection.indexes
            if one["name"] in collection.unique
        }
        return {}

    # Reading.

    def do_find(self, database: str, name: str, command: dict[str, Any]) -> dict[str, Any]:
        collection = self.databases.get(database, {}).get(name, Collection())
        filter, sort = command.get("filter") or {}, command.get("sort") or {}
        if not all(isinstance(command.get(end, {}), dict) for end in ("min", "max", "sort")):
            raise Failure(14, "BSON field 'find.min' is the wrong type, expected type 'object'")
        given = command if self.keeps_bounds else {}
        lo, hi = (order(given[end]["_id"]) if given.get(end) else None for end in ("min", "max"))
        if (lo or hi) and command.get("hint") != {"_id": 1}:
            raise Failure(51173, "When using min()/max() a hint of which index to use must be provided")
        if lo and hi and lo >= hi:
            raise Failure(2, "min must be less than max")
        by_id = list(sort) == ["_id"] or command.get("hint") == {"_id": 1}
        keys: Any = collection.select(filter, lo, hi, by_id)
        if sort and (not by_id or sort.get("_id") == -1):
            keys = (
                sorted(keys, key=lambda key: sort_key(collection.documents[key], sort))
                if not by_id
                else list(keys)[::-1]
            )
        skip, limit = command.get("skip", 0), abs(command.get("limit", 0))
        keys = itertools.islice(keys, skip, skip + limit if limit else None)
        documents: list[Any] = [collection.documents[key] for key in keys]
        if command.get("projection"):
            documents = [projected(bson.decode(one.raw, CODEC), command["projection"]) for one in documents]
        batch = len(documents) if command.get("singleBatch") else command.get("batchSize", 101)
        return self._cursor(f"{database}.{name}", documents, batch)

    def do_getmore(self, database: str, number: int, command: dict[str, Any]) -> dict[str, Any]:
        if number not in self._cursors:
            raise Failure(43, f"cursor id {number} not found")
        namespace, raws = self._cursors.pop(number)
        some = _batch(raws, command.get("batchSize") or len(raws))
        if len(some) < len(raws):
            self._cursors[number] = (namespace, raws[len(some) :])
        left = number if number in self._cursors else 0
        return {"cursor": {"id": bson.Int64(left), "ns": namespace, "nextBatch": some}}

    def do_killcursors(self, database: str, name: str, command: dict[str, Any]) -> dict[str, Any]:
        killed = [number for number in command["cursors"] if self._cursors.pop(number, None)]
        return {"cursorsKilled": killed}

    def do_count(self, database: str, name: str, command: dict[str, Any]) -> dict[str, Any]:
        collection = self.databases.get(database, {}).get(name, Collection())
        return {"n": sum(1 for _ in collection.select(command.get("query") or {}))}

    def do_aggregate(self, database: str, name: str, command: dict[str, Any]) -> dict[str, Any]:
        collection = self.databases.get(database, {}).get(name, Collection())
        documents = [bson.decode(raw.raw, CODEC) for raw in collection.documents.values()]
        for stage in command["pipeline"]:
            documents = staged(documents, *next(iter(stage.items())))
        return self._cursor(f"{database}.{name}", documents, command.get("cursor", {}).get("batchSize", 101))

    # Writing.

    def do_insert(self, database: str, name: str, command: dict[str, Any]) -> dict[str, Any]:
        collection = self._collection(database, name)

        def insert(raw: RawBSONDocument) -> None:
            if self.break_after_inserts is not None and not name.startswith("headgate_"):
                if self.break_after_inserts == 0:
                    self.break_after_inserts = None
                    raise Broken
                self.break_after_inserts -= 1
            collection.put(id_first(raw), f"{database}.{name}")

        done, failures = _each(command["documents"], insert, command.get("ordered", True))
        return {"n": len(done), **failures}

    def do_update(self, database: str, name: str, command: dict[str, Any]) -> dict[str, Any]:
        collection, counts, upserted = self._collection(database, name), [0, 0], []
        numbered = [(number, bson.decode(raw.raw, RAW)) for number, raw in enumerate(command["updates"])]

        def update(one: Any) -> None:
            number, statement = one
            filter = bson.decode(statement["q"].raw, CODEC)
            change = statement["u"]
            keys = list(collection.select(filter))[: None if statement.get("multi") else 1]
            for key in keys:
                before = bson.decode(collection.documents[key].raw, CODEC)
                raw = changed(before, change, False)
                counts[1] += raw.raw != collection.documents[key].raw
                collection.put(raw, f"{database}.{name}", key)
            counts[0] += len(keys)
            if not keys and statement.get("upsert"):
                raw = changed(from_filter(filter), change, True)
                collection.put(raw, f"{database}.{name}")
                upserted.append({"index": number, "_id": raw["_id"]})

        _, failures = _each(numbered, update, command.get("ordered", True))
        answer = {"n": counts[0] + len(upserted), "nModified": counts[1], **failures}
        return {**answer, "upserted": upserted} if upserted else answer

    def do_delete(self, database: str, name: str, command: dict[str, Any]) -> dict[str, Any]:
        collection = self._collection(database, name)
        count = 0
        for raw in command["deletes"]:
            statement = bson.decode(raw.raw, CODEC)
            keys = list(collection.select(statement["q"]))[: statement.get("limit") or None]
            for key in keys:
                collection.remove(key)
            count += len(keys)
        return {"n": count}


def _command(body: bytes) -> dict[str, Any]:
    """The command of an OP_MSG. Documents to write stay bytes."""
    at, end = 4, len(body) - (4 if struct.unpack_from("<I", body)[0] & 1 else 0)
    command: dict[str, Any] = {}
    lists: dict[str, list[RawBSONDocument]] = {}
    while at < end:
        kind, at = body[at], at + 1
        size = struct.unpack_from("<i", body, at)[0]
        if kind == 0:
            command = dict(bson.decode(body[at : at + size], RAW).items())
        else:
            name_end = body.index(b"\0", at + 4)
            lists[body[at + 4 : name_end].decode()] = bson.decode_all(body[name_end + 1 : at + size], RAW)
        at += size
    for name, value in command.items():
        if isinstance(value, RawBSONDocument):
            command[name] = bson.decode(value.raw, CODEC)
        elif isinstance(value, list) and name not in ("documents", "updates", "deletes"):
            command[name] = [bson.decode(one.raw, CODEC) if isinstance(one, RawBSONDocument) else one for one in value]
    return {**command, **lists}


def _batch(raws: list[RawBSONDocument], most: int) -> list[RawBSONDocument]:
    sizes = itertools.accumulate(len(one.raw) + 16 for one in raws[:most])
    return raws[: max(1, sum(1 for size in sizes if size < MOST_BYTES))]


def _each(items: list[Any], do: Callable[[Any], None], ordered: bool) -> tuple[list[Any], dict[str, Any]]:
    done, failed = [], []
    for number, item in enumerate(items):
        try:
            do(item)
            done.append(item)
        except Failure as failure:
            failed.append({"index": number, **{k: v for k, v in failure.answer.items() if k != "ok"}})
            if ordered:
                break
    return done, {"writeErrors": failed} if failed else {}


@contextmanager
def serving() -> Iterator[MongoServer]:
    """A server in a thread of its own, for tests that have no loop."""
    server, loop = MongoServer(), asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    asyncio.run_coroutine_threadsafe(server.start(), loop).result(90)
    try:
        yield server
    finally:
        asyncio.run_coroutine_threadsafe(server.stop(), loop).result(90)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()


async def _main() -> None:
    server = MongoServer()
    await server.start()
    print(server.url("test"), flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await server.stop()


if __name__ == "__main__":
    asyncio.run(_main())
