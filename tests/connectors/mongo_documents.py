"""The documents of the tests' MongoDB: the order of values, filters, updates, and a collection with its indexes."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID, uuid4

import bson
from bson.binary import Binary, UuidRepresentation
from bson.code import Code
from bson.codec_options import CodecOptions, DatetimeConversion
from bson.datetime_ms import DatetimeMS
from bson.dbref import DBRef
from bson.decimal128 import Decimal128
from bson.max_key import MaxKey
from bson.min_key import MinKey
from bson.objectid import ObjectId
from bson.raw_bson import RawBSONDocument
from bson.regex import Regex
from bson.timestamp import Timestamp

CODEC: CodecOptions[dict[str, Any]] = CodecOptions(
    datetime_conversion=DatetimeConversion.DATETIME_MS, uuid_representation=UuidRepresentation.UNSPECIFIED
)
RAW = CodecOptions(document_class=RawBSONDocument, datetime_conversion=DatetimeConversion.DATETIME_MS)
ABSENT = object()


def raw_of(document: dict[str, Any]) -> RawBSONDocument:
    """A document as its bytes."""
    return RawBSONDocument(bson.encode(document), RAW)


class Failure(Exception):
    """What a command answers when it cannot."""

    def __init__(self, code: int, message: str, **more: Any) -> None:
        super().__init__(message)
        self.answer = {"ok": 0.0, "code": code, "errmsg": message, **more}


# The order of values.


def order(value: Any) -> tuple[Any, ...]:
    """A key that sorts, and is equal, as MongoDB's values do: first by type, then by value."""
    match value:
        case MinKey():
            return (0,)
        case None:
            return (1,)
        case bool():
            return (8, value)
        case int() | float():
            return (2, 0) if value != value else (2, 1, value)
        case Decimal128():
            number = value.to_decimal()
            return (2, 0) if number.is_nan() else (2, 1, number)
        case Code():
            return (12, str(value))
        case str():
            return (3, value.encode())
        case DBRef():
            return order(dict(value.as_doc()))
        case RawBSONDocument():
            return order(bson.decode(value.raw, CODEC))
        case dict():
            return (4, tuple((order(one)[0], name.encode(), order(one)) for name, one in value.items()))
        case list():
            return (5, tuple(map(order, value)))
        case bytes():
            subtype = value.subtype if isinstance(value, Binary) else 0
            return (6, len(value), subtype, bytes(value))
        case ObjectId():
            return (7, value.binary)
        case DatetimeMS():
            return (9, int(value))
        case Timestamp():
            return (10, value.time, value.inc)
        case Regex():
            return (11, value.pattern, value.flags)
        case MaxKey():
            return (13,)
    raise TypeError(type(value))


# Filters and updates.


def found(document: dict[str, Any], path: str) -> Any:
    """The value at a dotted path."""
    at: Any = document
    for name in path.split("."):
        if not isinstance(at, dict) or name not in at:
            return ABSENT
        at = at[name]
    return at


_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "$gt": lambda one, other: one > other,
    "$gte": lambda one, other: one >= other,
    "$lt": lambda one, other: one < other,
    "$lte": lambda one, other: one <= other,
}


# What `$type` calls the types that a dump asks for: the first number of their `order`.
_RANKS = {"number": 2, "string": 3, "binData": 6, "objectId": 7, "date": 9}


def _equal(value: Any, wanted: Any) -> bool:
    key = order(None) if value is ABSENT else order(value)
    return key == order(wanted) or (isinstance(value, list) and order(wanted) in map(order, value))


def _test(value: Any, operator: str, wanted: Any) -> bool:
    match operator:
        case "$eq":
            return _equal(value, wanted)
        case "$ne":
            return not _equal(value, wanted)
        case "$in":
            return any(_equal(value, one) for one in wanted)
        case "$nin":
            return not any(_equal(value, one) for one in wanted)
        case "$exists":
            return (value is not ABSENT) == bool(wanted)
        case "$type":
            return value is not ABSENT and order(value)[0] == _RANKS[wanted]
        case "$not":
            return not all(_test(value, inner, one) for inner, one in wanted.items())
    if operator not in _COMPARE:
        raise Failure(2, f"unknown operator: {operator}")
    if value is ABSENT:
        return False
    key, other = order(value), order(wanted)
    return key[0] == other[0] and _COMPARE[operator](key, other)  # Only within the type's bracket.


def matches(document: dict[str, Any], filter: dict[str, Any]) -> bool:
    """Whether a document passes the filter."""
    for name, wanted in filter.items():
        if name == "$and":
            passes = all(matches(document, one) for one in wanted)
        elif name == "$or":
            passes = any(matches(document, one) for one in wanted)
        elif isinstance(wanted, dict) and wanted and next(iter(wanted)).startswith("$"):
            passes = all(_test(found(document, name), operator, one) for operator, one in wanted.items())
        else:
            passes = _equal(found(document, name), wanted)
        if not passes:
            return False
    return True


def projected(document: dict[str, Any], projection: dict[str, Any]) -> dict[str, Any]:
    """The fields that are asked for, or all but those that are not."""
    wanted = {name for name, is_in in projection.items() if is_in}
    if wanted - {"_id"} or (wanted and len(projection) == 1):
        keep = wanted | ({"_id"} if projection.get("_id", 1) else set())
        return {name: value for name, value in document.items() if name in keep}
    return {name: value for name, value in document.items() if name not in projection}


def updated(document: dict[str, Any], update: dict[str, Any], is_new: bool) -> dict[str, Any]:
    """The document after an update: another one, or some fields."""
    if not update or not next(iter(update)).startswith("$"):
        if "_id" in update and "_id" in document and order(update["_id"]) != order(document["_id"]):
            raise Failure(66, "the (immutable) field '_id' was found to have been altered")
        return {**({"_id": document["_id"]} if "_id" in document else {}), **update}
    result = dict(document)
    for operator, fields in update.items():
        if operator not in ("$set", "$setOnInsert"):
            raise Failure(9, f"Unknown modifier: {operator}")
        if operator == "$set" or is_new:
            for name in sorted(fields):  # As servers do from 5.0 on.
                result[name] = fields[name]
    return result


def from_filter(filter: dict[str, Any]) -> dict[str, Any]:
    """The fields of a new document that a filter names by equality."""
    named: dict[str, Any] = {}
    for name, wanted in filter.items():
        is_operator = isinstance(wanted, dict) and bool(wanted) and next(iter(wanted)).startswith("$")
        if not name.startswith("$") and (not is_operator or "$eq" in wanted):
            named[name] = wanted["$eq"] if is_operator else wanted
    return named


# Collections.


@dataclass
class Collection:
    """Documents by the order key of their `_id`, in the order in which they came."""

    options: dict[str, Any] = field(default_factory=dict)
    documents: dict[Any, RawBSONDocument] = field(default_factory=dict)
    indexes: list[dict[str, Any]] = field(default_factory=lambda: [{"v": 2, "key": {"_id": 1}, "name": "_id_"}])
    unique: dict[str, dict[Any, Any]] = field(default_factory=dict)  # Per index: its key to that of the `_id`.
    uuid: UUID = field(default_factory=uuid4)
    _sorted: list[Any] | None = None

    def ids(self) -> list[Any]:
        """The order keys of all `_id`s, sorted."""
        if self._sorted is None:
            self._sorted = sorted(self.documents)
        return self._sorted

    def put(self, raw: RawBSONDocument, namespace: str, instead_of: Any = None) -> None:
        """Insert, or put in the place of another."""
        id = order(raw["_id"])
        if id in self.documents and id != instead_of:
            raise _duplicate(namespace, "_id_", {"_id": 1}, raw["_id"])
        entries = []
        if self.unique:
            document = bson.decode(raw.raw, CODEC)
            for index in self.indexes:
                if index["name"] in self.unique:
                    entry = _entry(document, index)
                    if self.unique[index["name"]].get(entry, id) != id:
                        raise _duplicate(namespace, index["name"], index["key"], entry)
                    entries.append((index["name"], entry))
        if instead_of is not None:
            self.remove(instead_of)
        for name, entry in entries:
            self.unique[name][entry] = id
        self.documents[id] = raw
        self._sorted = None

    def remove(self, id: Any) -> None:
        """Delete one."""
        document = bson.decode(self.documents.pop(id).raw, CODEC)
        for index in self.indexes:
            if index["name"] in self.unique:
                self.unique[index["name"]].pop(_entry(document, index), None)
        self._sorted = None

    def add_index(self, index: dict[str, Any], namespace: str) -> None:
        """Make an index. Only unique ones do anything."""
        if any(one["name"] == index["name"] for one in self.indexes):
            return
        if index.get("unique"):
            entries: dict[Any, Any] = {}
            for id, raw in self.documents.items():
                entry = _entry(bson.decode(raw.raw, CODEC), index)
                if entries.setdefault(entry, id) != id:
                    raise _duplicate(namespace, index["name"], index["key"], entry)
            self.unique[index["name"]] = entries
        self.indexes.append({"v": 2, **index})

    def select(self, filter: dict[str, Any], lo: Any = None, hi: Any = None, in_order: bool = False) -> Iterator[Any]:
        """The order keys of the documents that pass, by `_id` if that is asked for."""
        wanted = filter.get("_id", ABSENT)
        if isinstance(wanted, dict) and wanted.keys() <= {"$eq", "$in"} and wanted and not in_order:
            keys: Any = [order(one) for one in wanted.get("$in", [wanted.get("$eq")])]
            keys = [key for key in dict.fromkeys(keys) if key in self.documents]
        elif in_order or lo is not None or hi is not None:
            ids = self.ids()
            begin = 0 if lo is None else bisect.bisect_left(ids, lo)
            end = len(ids) if hi is None else bisect.bisect_left(ids, hi)
            keys = itertools.islice(ids, begin, end)
        else:
            keys = list(self.documents)
        if filter.keys() == {"_id"} and isinstance(wanted, dict) and wanted.keys() == {"$ne"}:
            no = order(wanted["$ne"])
            return (key for key in keys if key != no)
        if not filter:
            return iter(keys)
        return (key for key in keys if matches(bson.decode(self.documents[key].raw, CODEC), filter))


def _entry(document: dict[str, Any], index: dict[str, Any]) -> tuple[Any, ...]:
    values = (found(document, name) for name in index["key"])
    return tuple(order(None if value is ABSENT else value) for value in values)


def _duplicate(namespace: str, name: str, key: dict[str, Any], value: Any) -> Failure:
    message = f"E11000 duplicate key error collection: {namespace} index: {name} dup key: {value!r}"
    return Failure(11000, message, keyPattern=key)


def sort_key(raw: RawBSONDocument, sort: dict[str, int]) -> Any:
    assert all(way == 1 for way in sort.values()), "only the _id sorts downwards"
    document = bson.decode(raw.raw, CODEC)
    values = (found(document, name) for name in sort)
    return [order(None if value is ABSENT else value) for value in values]


def staged(documents: list[dict[str, Any]], stage: str, value: Any) -> list[dict[str, Any]]:
    match stage:
        case "$match":
            return [one for one in documents if matches(one, value)]
        case "$sort":
            return sorted(documents, key=lambda one: sort_key(raw_of(one), value))
        case "$limit":
            return documents[:value]
        case "$sample":
            return documents[: value["size"]]
        case "$skip":
            return documents[value:]
        case "$project":
            return [projected(one, value) for one in documents]
        case "$group":  # Only what counts them all.
            name = next(name for name in value if name != "_id")
            return [{"_id": value["_id"], name: len(documents)}] if documents else []
    raise Failure(40324, f"Unrecognized pipeline stage name: '{stage}'")


def changed(before: dict[str, Any], change: RawBSONDocument, is_new: bool) -> RawBSONDocument:
    """What an update makes of a document. A replacement that has the `_id` stays the bytes that came."""
    fields = list(change)
    if fields and not fields[0].startswith("$") and "_id" in fields:
        updated(before, {"_id": change["_id"]}, is_new)
        return id_first(change)
    after = updated(before, bson.decode(change.raw, CODEC), is_new)
    return id_first(raw_of({**({} if "_id" in after else {"_id": ObjectId()}), **after}))


def id_first(raw: RawBSONDocument) -> RawBSONDocument:
    fields = list(raw)
    if fields[0] == "_id":
        return raw
    document = bson.decode(raw.raw, CODEC)
    return raw_of({"_id": document.pop("_id", None) or ObjectId(), **document})
