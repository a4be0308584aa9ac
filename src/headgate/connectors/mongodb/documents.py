"""The documents that a job writes into MongoDB, and what finds them again."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import bson
from bson.int64 import Int64
from bson.objectid import ObjectId
from bson.raw_bson import RawBSONDocument
from pymongo import ReplaceOne, UpdateOne

from headgate.connectors.api.bulk import Job, Mode, StorageError
from headgate.connectors.mongodb import values
from headgate.connectors.mongodb.values import FAMILY, Document


def key_of(job: Job) -> tuple[str, ...]:
    """By what rows are found. A name that MongoDB would take for an operator is refused."""
    key = job.key or job.source.key
    if any(name.startswith("$") for name in key):
        raise StorageError(f"{job.target}: a key with a $ at the beginning of its name cannot be looked up")
    return key


def id_in(document: RawBSONDocument) -> Any:
    """The `_id` of a document, which comes first, without reading the rest of it."""
    raw = bytes(document.raw)
    head = raw[4:9]
    if head == b"\x07_id\0":
        return ObjectId(raw[9:21])
    if head == b"\x10_id\0":
        return int.from_bytes(raw[9:13], "little", signed=True)
    if head == b"\x12_id\0":
        return Int64(int.from_bytes(raw[9:17], "little", signed=True))
    if head == b"\x02_id\0":
        return raw[13 : 12 + int.from_bytes(raw[9:13], "little")].decode()
    return document["_id"]


def digest(document: RawBSONDocument) -> bytes:
    return hashlib.blake2b(document.raw, digest_size=12).digest()


def shaper(job: Job, key_of_chunk: str, micros: values.Micros) -> Callable[[Document, int], Document]:
    """What makes a document of a row and its number."""
    make = values.writers(job.source.columns, micros)
    key = ("_id",) if "_id" in make else key_of(job)

    def shape(row: Document, number: int) -> Document:
        document: Document = {"_id": None}
        for name, value in row.items():
            if value is None or type(value) is make[name][0]:
                document[name] = value
                continue
            try:
                document[name] = make[name][1](value)
            except ValueError as error:
                raise StorageError(f"column {name!r} of {job.target} cannot hold a value: {error}") from None
        if not key:
            document["_id"] = f"{job.dump}:{key_of_chunk}:{number}"
            return document
        for name in key:
            if document.get(name) is None:
                raise StorageError(f"column {name!r} of {job.target} is NULL, and it is the key")
        document["_id"] = document[key[0]] if len(key) == 1 else {name: document[name] for name in key}
        return document

    return shape


def shaped(rows: list[Document], shape: Callable[[Document, int], Document], at: int) -> list[RawBSONDocument]:
    """The documents of some rows, of which the first has this number."""
    try:
        return [
            RawBSONDocument(bson.encode(shape(row, number), codec_options=values.CODEC), values.RAW)
            for number, row in enumerate(rows, at)
        ]
    except KeyError as error:
        raise StorageError(f"a row has {error.args[0]!r}, which is not a column") from None


def replacing(job: Job, document: RawBSONDocument) -> Any:
    """What puts a document in the place of the one with its key."""
    key = key_of(job) if job.mode is Mode.UPSERT else ("_id",)
    if key == ("_id",):
        return ReplaceOne({"_id": {"$eq": id_in(document)}}, document, upsert=True)
    found = {name: {"$eq": document[name]} for name in key}  # A new document has these fields from here.
    rest = {name: value for name, value in document.items() if name not in key and name != "_id"}
    if any("." in name or name.startswith("$") for name in (*key, *rest)):
        raise StorageError(f"{job.target}: a field with a dot or a $ in its name can be written by _id only")
    return UpdateOne(found, {**({"$set": rest} if rest else {}), "$setOnInsert": {"_id": document["_id"]}}, upsert=True)


def indexes_of(job: Job) -> list[Document]:
    """The indexes that the source has, if it is a MongoDB, or one for its key."""
    if job.source.family == FAMILY:
        return [spec_of(values.from_extended(text)) for text in job.source.details.get("indexes", ())]
    key = key_of(job)
    if not key or key == ("_id",):
        return []
    return [{"key": dict.fromkeys(key, 1), "name": "_".join(f"{name}_1" for name in key), "unique": True}]


def spec_of(index: Document) -> Document:
    return {name: value for name, value in index.items() if name not in ("ns", "background", "v")}
