"""Mappings: what happens to a record between its source and its sink.

A mapping document has parts, applied in this order: `unnest` (one record per element of a list), `where` (keep),
`delete` (what says that a row is gone), `set` (the output fields; without it the record passes whole), `drop`,
`rename`, `types` (convert), `python` (the author's own function). `key` names output fields. `compile_mapping`
checks a document whole (`mapping.parts`) and writes one Python function for it (`mapping.program`). What became of the
records is told in `mapping.mapped`, what they may cost in `mapping.prices`, why they fail in `mapping.mistakes`.

None follows SQL: a missing field is None; arithmetic and ordering with None give None, and so do functions whose first
argument is None, except those that say otherwise (`coalesce`, `count`, `get`, `min`, `max`). `==` and `!=` work as in
Python, and `and`, `or`, `not`, the conditional expression and `where` take None as false. In an f-string None leaves
nothing behind. Every other mistake of types fails the record, with one line that names the part and the field.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from headgate.core.mapping.expressions import Compiler
from headgate.core.mapping.mapped import FailedRecord, Mapped
from headgate.core.mapping.parts import PARTS, Parts
from headgate.core.mapping.prices import SLICE, Budget
from headgate.core.mapping.program import Keys, Program, Run, as_record, cut
from headgate.core.mapping.python import Function
from headgate.core.records import Unreadable
from headgate.errors import ConfigError, Problem

__all__ = ["PARTS", "FailedRecord", "Mapped", "Mapping", "compile_mapping"]

NODES_AT_ONCE = 20_000  # Of expressions, over all records of a slice: a few milliseconds.
RECORDS_AT_ONCE = 500
MOST_KEYS = 100  # Of streams, that are remembered.


@dataclass(frozen=True, slots=True)
class Mapping:
    """A compiled mapping. It keeps nothing between calls, so threads may share it."""

    key: tuple[str, ...]
    records_at_once: int  # Of a slice, at most.
    calls_python: bool  # It must not be run on the event loop: nobody knows what the function does there.
    can_delete: bool
    _steps: tuple[str, ...]
    _run: Run
    _keys: Keys | None
    _keyed: Callable[[tuple[str, ...]], Keys | None]  # The same by other fields.

    @property
    def unnests(self) -> bool:
        """Whether one input may stand for several records."""
        return bool(self._steps)

    def apply(self, records: list[Any], meta: list[Any] | None = None) -> Mapped:
        """Map a batch; `meta`, when given, holds one value for each record. Never raises for a record."""
        mapped = Mapped()
        done = 0
        while done < len(records):
            before, done = done, self.slice(records, meta, done, mapped)
            if done == before:
                done = self.apart(records, meta, done, mapped)
        return mapped

    def slice(self, records: list[Any], meta: list[Any] | None, begin: int, into: Mapped) -> int:
        """Map records from `begin` on, for a few milliseconds. Returns where that ended: at `begin` if one record takes
        longer, and is to be mapped apart."""
        end = begin + self.records_at_once
        if begin == 0 and end >= len(records):
            return self._run(records, meta, 0, into, Budget(SLICE), True)
        return self._run(records[begin:end], meta and meta[begin:end], begin, into, Budget(SLICE), True)

    def apart(self, records: list[Any], meta: list[Any] | None, index: int, into: Mapped) -> int:
        """Map one record with all that it may cost; more is an error of the record. Returns the index of the next."""
        one = slice(index, index + 1)
        return self._run(records[one], meta and meta[one], index, into, Budget(), False)

    def alone(self, record: Any, element: int | None) -> Any:
        """The input record with only this element in its unnested list: mapped again, it gives that one record."""
        if element is None or not self._steps or isinstance(record, Unreadable):
            return record
        return cut(as_record(record), self._steps, element)

    def key_of(self, record: Any, meta: Any = None, key: tuple[str, ...] = ()) -> tuple[Any, ...] | None:
        """The values of the key fields of a record that failed elsewhere; None if they cannot be told. Of a record with
        an unnested list it must be one that `alone` gave. A Python function might change them, so then they are not
        told either. `key`: other output fields, where the mapping itself names none."""
        wanted = self.key or key
        if not wanted or self.calls_python:
            return None
        keys = self._keys if self.key else self._keyed(wanted)
        if keys is None:
            return None
        try:
            found = keys(record, meta, Budget(SLICE))
        except Exception:  # Whatever is wrong with the record, its key is not known.
            return None
        values = tuple(found.get(name) for name in wanted)
        return None if any(value is None for value in values) else values


def _no_modules(function: str) -> Function:
    raise ConfigError("Python functions cannot be used here")


def compile_mapping(
    document: dict[str, Any] | None, path: str = "mapping", load: Callable[[str], Function] = _no_modules
) -> Mapping:
    """Raise ConfigError with every problem of the document. `load` imports what `python` names, or raises one."""
    problems: list[Problem] = []
    parts = Parts({} if document is None else document, path, problems)
    compiler = Compiler(problems, ("record", "meta", "item") if parts.unnest is not None else ("record", "meta"))
    program = Program(compiler, parts, _loaded(parts, load))
    if problems:
        raise ConfigError(problems)
    program.write()
    run, keys = program.load()
    at_once = max(1, min(RECORDS_AT_ONCE, NODES_AT_ONCE // max(1, compiler.nodes)))
    calls_python, can_delete = parts.python is not None, parts.delete is not None
    return Mapping(parts.key, at_once, calls_python, can_delete, program.steps, run, keys, _keyed(document or {}))


def _keyed(document: dict[str, Any]) -> Callable[[tuple[str, ...]], Keys | None]:
    """Gives the keys of records by fields that the mapping does not name itself. None: it has no such fields."""

    @lru_cache(MOST_KEYS)
    def keyed(key: tuple[str, ...]) -> Keys | None:
        try:
            return compile_mapping({**document, "key": list(key)})._keys
        except ConfigError:
            return None

    return keyed


def _loaded(parts: Parts, load: Callable[[str], Function]) -> Function | None:
    if parts.python is None:
        return None
    try:
        return load(parts.python)
    except ConfigError as error:
        for problem in error.problems:
            parts.note("python", problem.message, problem.hint)
        return None
