"""Runs a source or resource of dlt and says what it yields, as a tap would. A script: it runs with the Python of an
environment that has dlt in it and has no Headgate.

`python dlt_runner.py JOB`, where JOB is a file with JSON: the `resource` (package.module:name), its `arguments`, the
`resources` to read of a source, the last `state`, and `only_check`.

dlt keeps what it needs to go on in its state, which it changes while it reads a page. So a state is said between two
pages only, and only of resources that are read in rising order of their cursor (`row_order="asc"`): the state from
before a page is said when the first row of that page is there, because then all rows of the pages before it have been
said. Of all others the state is said at the end.
"""

from __future__ import annotations

import base64
import importlib
import json
import os
import sys
import time
from collections.abc import Iterator
from datetime import date, datetime, timedelta
from datetime import time as day_time
from decimal import Decimal
from typing import Any
from uuid import UUID

LEAST = 1_000  # Rows between two states,
LEAST_S = 0.5  # and the time between two looks whether one can be said.
_PLAIN = frozenset({str, int, float, bool, type(None), dict, list})


class Mouth:
    """Says messages, and the schema before rows of another shape than those before."""

    def __init__(self) -> None:
        self._out = os.fdopen(os.dup(1), "wb", buffering=1 << 16)
        os.dup2(2, 1)  # Whatever the source prints is for people.
        self._columns: dict[str, dict[str, dict[str, str]]] = {}
        self._keys: dict[str, list[str]] = {}

    def key(self, stream: str, key: list[str]) -> None:
        """The key of a stream, if it has one."""
        self._keys[stream] = key

    def row(self, stream: str, row: Any) -> None:
        """One row."""
        columns = self._columns.get(stream)
        is_new = columns is None
        if columns is None:
            columns = self._columns[stream] = {}
        values = row if isinstance(row, dict) else {"value": row}
        said = {}
        for name, value in values.items():
            if type(value) not in _PLAIN:
                shape, value = _typed(value)
                if shape is not None and columns.get(name) != shape:
                    columns[name], is_new = shape, True
            elif name in columns and value is not None:
                del columns[name]
                is_new = True
            said[str(name)] = value
        if is_new:
            schema = {"type": "object", "properties": columns}
            key = self._keys.get(stream, [])
            self._say({"type": "SCHEMA", "stream": stream, "schema": schema, "key_properties": key})
        self._say({"type": "RECORD", "stream": stream, "record": said})

    def state(self, state: str) -> None:
        """Everything before this was read."""
        self._say({"type": "STATE", "value": state})
        self.flush()

    def flush(self) -> None:
        """Nobody waits for what has been said."""
        self._out.flush()

    def _say(self, message: dict[str, Any]) -> None:
        self._out.write(json.dumps(message, default=lambda value: _typed(value)[1]).encode() + b"\n")


def _typed(value: Any) -> tuple[dict[str, str] | None, Any]:
    """What a schema says of a value that JSON does not have, and how it is written."""
    match value:
        case datetime():
            local = {"airbyte_type": "timestamp_without_timezone"} if value.tzinfo is None else {}
            return {"type": "string", "format": "date-time", **local}, value.isoformat()
        case date():
            return {"type": "string", "format": "date"}, value.isoformat()
        case day_time():
            return {"type": "string", "format": "time"}, value.isoformat()
        case timedelta():
            return None, value.total_seconds()
        case Decimal():
            return {"type": "string", "format": "decimal"}, str(value)
        case UUID():
            return {"type": "string", "format": "uuid"}, str(value)
        case bytes() | bytearray() | memoryview():
            return {"type": "string", "contentEncoding": "base64"}, base64.b64encode(bytes(value)).decode()
        case str() | int() | float():
            return None, next(kind(value) for kind in (str, int, float) if isinstance(value, kind))
        case dict():
            return None, dict(value)
        case list() | tuple() | set() | frozenset():
            return None, list(value)
        case _:
            return None, str(value)


def rows_of(item: Any) -> list[Any]:
    """The rows of a page: a list, a table of Arrow, a frame, or one row."""
    if isinstance(item, list):
        return [row for one in item for row in (rows_of(one) if isinstance(one, list) else [one])]
    if hasattr(item, "to_pylist"):
        return list(item.to_pylist())
    if hasattr(item, "to_dict") and hasattr(item, "columns"):
        return list(item.to_dict(orient="records"))
    return [] if item is None else [item]


def argument_of(value: Any) -> Any:
    """What a document says of an argument, as the value that is meant."""
    import dlt

    if isinstance(value, dict) and set(value) == {"$incremental"}:
        return dlt.sources.incremental(**argument_of(value["$incremental"]))
    if isinstance(value, dict) and set(value) == {"$timestamp"}:
        return datetime.fromisoformat(value["$timestamp"])
    if isinstance(value, dict):
        return {name: argument_of(one) for name, one in value.items()}
    return [argument_of(one) for one in value] if isinstance(value, list) else value


def made(job: dict[str, Any]) -> Any:
    """The source. A resource becomes a source that has only that one."""
    from dlt.common.schema import Schema
    from dlt.extract import DltResource, DltSource

    module, _, name = job["resource"].partition(":")
    found = getattr(importlib.import_module(module), name)
    if isinstance(found, DltResource):
        found = found(**argument_of(job["arguments"])) if job["arguments"] else found
    elif callable(found):
        if str(getattr(found, "__module__", "")).partition(".")[0] not in (module.partition(".")[0], "dlt"):
            sys.exit(f"invalid config: {job['resource']} is only imported there, and made elsewhere")
        found = found(**argument_of(job["arguments"]))
    if isinstance(found, DltResource):
        found = DltSource(Schema("headgate"), "", [found])
    if not isinstance(found, DltSource):
        sys.exit(f"invalid config: {job['resource']} is neither a source nor a resource of dlt")
    wanted = job["resources"]
    absent = sorted(set(wanted or ()) - set(found.resources))
    if absent:
        known = ", ".join(sorted(found.resources))
        sys.exit(f"invalid config: {job['resource']} has no resource {absent[0]!r}; it has {known}")
    return found.with_resources(*wanted) if wanted else found


def items_of(source: Any, state: dict[str, Any]) -> Any:
    """What its resources yield, one after another, page by page, with the pipe that each page came through."""
    from dlt.common.configuration.container import Container
    from dlt.common.pipeline import StateInjectableContext
    from dlt.extract.pipe_iterator import ManagedPipeIterator
    from dlt.extract.source import SourceInjectableContext, SourceSchemaInjectableContext

    contexts = [
        source._get_config_section_context(),
        StateInjectableContext(state=state),
        SourceInjectableContext(source),
        SourceSchemaInjectableContext(source.schema),
    ]
    container = Container()
    managers = [container.injectable_context(one) for one in contexts]
    for manager in managers:
        manager.__enter__()
    try:
        items = ManagedPipeIterator.from_pipes(source.resources.selected_pipes, next_item_mode="fifo")
    finally:
        for manager in reversed(managers):
            manager.__exit__(None, None, None)
    items.set_context(contexts)
    return items


def is_in_order(source: Any) -> bool:
    """Whether all that is read comes in rising order of a cursor, so that it can go on from the middle."""
    for resource in source.selected_resources.values():
        found = resource.incremental
        cursor = getattr(found, "incremental", found)
        if cursor is None or getattr(cursor, "row_order", None) != "asc" or resource.is_transformer:
            return False
    return True


def keys_of(source: Any) -> Iterator[tuple[str, list[str]]]:
    """The key of each resource that says one."""
    for name, resource in source.selected_resources.items():
        try:
            columns = resource.compute_table_schema().get("columns", {})
        except Exception:  # It depends on the rows, which are not there yet.
            continue
        yield name, [column for column, hints in columns.items() if hints.get("primary_key")]


def main(path: str) -> None:
    """Read everything that is new."""
    os.environ.setdefault("RUNTIME__DLTHUB_TELEMETRY", "false")
    mouth = Mouth()
    with open(path, "rb") as file:
        job = json.load(file)
    from dlt.common import json as dlt_json

    source = made(job)
    if job["only_check"]:
        return
    state: dict[str, Any] = dlt_json.typed_loads(job["state"]) if job["state"] else {}
    for name, key in keys_of(source):
        mouth.key(name, key)
    rows, looked_s, in_order = 0, time.monotonic(), None
    items = iter(items_of(source, state))
    while True:
        before = None
        if in_order is not False and rows >= LEAST and time.monotonic() - looked_s >= LEAST_S:
            before, looked_s = dlt_json.typed_dumps(state), time.monotonic()
        elif rows:
            mouth.flush()
        item = next(items, None)
        if item is None:
            break
        in_order = is_in_order(source) if in_order is None else in_order
        if before is not None and in_order and dlt_json.typed_dumps(state) != before:
            mouth.state(before)
            rows = 0
        for row in rows_of(item.item):
            mouth.row(item.pipe.name, row)
            rows += 1
    mouth.state(dlt_json.typed_dumps(state))


if __name__ == "__main__":
    main(sys.argv[1])
