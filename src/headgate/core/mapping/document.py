"""Mappings: what happens to a record between its source and its sink.

A mapping document has parts, applied in this order: `unnest` (one record per element of a list), `where` (keep),
`set` (the output fields; without it the record passes whole), `drop`, `rename`, `types` (convert). `key` names output
fields, `on_error` says what the runtime does with a record that failed. `compile_mapping` checks a document whole and
writes one Python function for it: a loop over the records with everything in place, because a call per field or per
record would cost more than the work itself. Which part failed is read from the line of the traceback, so records that
do not fail pay nothing for the answer. What records may cost is told in `mapping.prices`.

None follows SQL: a missing field is None; arithmetic and ordering with None give None, and so do functions whose first
argument is None, except those that say otherwise (`coalesce`, `count`, `get`, `min`, `max`). `==` and `!=` work as in
Python, and `and`, `or`, `not`, the conditional expression and `where` take None as false. In an f-string None leaves
nothing behind. Every other mistake of types fails the record, with one line that names the part and the field.
"""

from __future__ import annotations

import ast
import dataclasses
import difflib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

from headgate.core.mapping.expressions import Compiler
from headgate.core.mapping.functions import PRICED_TYPES, TYPES
from headgate.core.mapping.operators import item
from headgate.core.mapping.prices import ELEMENT, SLICE, STEP, Budget, kind
from headgate.errors import ConfigError, Problem
from headgate.text import one_line

PARTS = ("where", "set", "drop", "rename", "types", "unnest", "key", "on_error")
ON_ERROR = ("fail", "skip")
MESSAGE_LIMIT = 200
FIELD_LIMIT = 1_600  # As many as a table of PostgreSQL may have.
NODES_AT_ONCE = 20_000  # Of expressions, over all records of a slice: a few milliseconds.
RECORDS_AT_ONCE = 500


@dataclass(slots=True)
class Mapped:
    """What has become of a batch so far."""

    records: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    failed: list[tuple[int, str]] = dataclasses.field(
        default_factory=list
    )  # The index of the input record, and what is wrong.
    skipped: int = 0  # Records, or elements of an unnested list, that `where` did not keep; empty lists count as one.


# Takes records, what each has as `meta`, the index of the first, what became of them, what they may cost, and whether a
# record that costs more ends the slice, or has failed. Returns the index of the first record that was not mapped.
Run = Callable[[list[Any], list[Any] | None, int, Mapped, Budget, bool], int]


@dataclass(frozen=True, slots=True)
class Mapping:
    """A compiled mapping. It keeps nothing between calls, so threads may share it."""

    key: tuple[str, ...]
    on_error: str
    records_at_once: int  # Of a slice, at most.
    _run: Run

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


def compile_mapping(document: dict[str, Any] | None, path: str = "mapping") -> Mapping:
    """Raise ConfigError with every problem of the document."""
    problems: list[Problem] = []
    parts = _Parts({} if document is None else document, path, problems)
    compiler = Compiler(problems, ("record", "meta", "item") if parts.unnest is not None else ("record", "meta"))
    program = _Program(compiler, parts)
    program.write()
    if problems:
        raise ConfigError(problems)
    at_once = max(1, min(RECORDS_AT_ONCE, NODES_AT_ONCE // max(1, compiler.nodes)))
    return Mapping(parts.key, parts.on_error, at_once, program.load())


class _Parts:
    """The parts of a document, each checked for its shape; a wrong part is noted and read as absent."""

    def __init__(self, document: Any, path: str, problems: list[Problem]) -> None:
        self.path = path
        self._problems = problems
        if not isinstance(document, dict):
            self.note("", f"a mapping is a dict, not {kind(document)}")
            document = {}
        for part in document:
            if part not in PARTS:
                self.note(str(part), "unknown part", _nearest(part, PARTS))
        self.where = document.get("where", True)
        self.set = self._dict("set", document.get("set"), "expressions")
        self.drop = self._names("drop", document.get("drop"))
        self.rename = self._dict("rename", document.get("rename"), "new names")
        self.types = self._dict("types", document.get("types"), "types")
        self.unnest = document.get("unnest")
        key = document.get("key")
        self.key = tuple(self._names("key", [key] if isinstance(key, str) else key))
        self.on_error = document.get("on_error", "fail")
        self._check_values()
        if self.set:
            self._check_fields(self.set)

    def note(self, part: str, message: str, hint: str = "") -> None:
        self._problems.append(Problem(f"{self.path}.{part}" if part else self.path, message, hint))

    def renamed(self, field: str) -> str:
        return str(self.rename.get(field, field))

    def _dict(self, part: str, value: Any, of: str) -> dict[str, Any]:
        if value is None:
            return {}
        if not isinstance(value, dict) or not value:
            self.note(part, f"must be a dict of fields to {of}, with at least one field")
            return {}
        if len(value) > FIELD_LIMIT:
            self.note(part, f"names more than {FIELD_LIMIT} fields")
            return {}
        wrong = [field for field in value if not isinstance(field, str) or not field]
        for field in wrong:
            self.note(f"{part}.{field}", "a field's name must be text", "quote it")
        return {field: each for field, each in value.items() if field not in wrong}

    def _names(self, part: str, value: Any) -> list[str]:
        if value is None:
            return []
        if not isinstance(value, list) or not all(isinstance(name, str) and name for name in value):
            self.note(part, "must be a list of fields' names")
            return []
        if len(value) > FIELD_LIMIT:
            self.note(part, f"names more than {FIELD_LIMIT} fields")
            return []
        if len(set(value)) < len(value):
            self.note(part, "names a field twice")
        return value

    def _check_values(self) -> None:
        for field, name in self.types.items():
            if name not in list(TYPES):
                self.note(f"types.{field}", f"unknown type {str(name)[:40]}", _nearest(name, TYPES))
        for field, new in self.rename.items():
            if not isinstance(new, str) or not new:
                self.note(f"rename.{field}", "the new name must be text")
            elif [*map(str, self.rename.values())].count(new) > 1:
                self.note(f"rename.{field}", f"two fields are renamed to {new}")
            if field in self.drop:
                self.note(f"rename.{field}", "the field is dropped")
        if self.on_error not in ON_ERROR:
            self.note("on_error", f"unknown answer {str(self.on_error)[:40]}", f"one of {', '.join(ON_ERROR)}")
        if self.unnest is not None and not isinstance(self.unnest, str):
            self.note("unnest", "must be a path to a list", "as in order.lines")

    def _check_fields(self, fields: Iterable[str]) -> None:
        """With `set` all output fields are known, so names of others are mistakes."""
        for part, names in (("drop", self.drop), ("rename", list(self.rename))):
            for name in names:
                if name not in fields:
                    self.note(f"{part}.{name}", "is not a field of set", _nearest(name, fields))
        kept = [field for field in fields if field not in self.drop]
        output = {self.renamed(field) for field in kept}
        if len(output) < len(kept):
            self.note("rename", "a new name is the name of another field")
        for name in self.types:
            if name not in output:
                self.note(f"types.{name}", "is not an output field", _nearest(name, output))
        for name in self.key:
            if name not in output:
                self.note("key", f"{name} is not an output field", _nearest(name, output))


def _describe(blame: dict[int, str], error: Exception) -> str:
    """Say in one line what went wrong, and in which part, by the line of the function that it left."""
    trace = error.__traceback__
    part = blame.get(trace.tb_lineno, "") if trace is not None else ""
    message = one_line(error, MESSAGE_LIMIT)
    return f"{part}: {message}" if part else message


class _Program:
    """The text of the function for one mapping, line by line, and which part each line belongs to."""

    def __init__(self, compiler: Compiler, parts: _Parts) -> None:
        self._compiler = compiler
        self._parts = parts
        self._lines: list[str] = []
        self._blame: dict[int, str] = {}
        self._steps = self._unnest_steps()

    def write(self) -> None:
        add = self._add
        add(0, "def run(records, metas, begin, into, budget, ends):")
        add(1, "mapped, skipped, meta = into.records, 0, None")
        add(1, "append, failed = mapped.append, into.failed.append")
        add(1, "for index, record in enumerate(records):")
        if self._steps:
            add(2, "before = len(mapped), skipped")
        add(2, "try:")
        add(3, "if type(record) is not dict: record = as_record(record)")
        add(3, "if metas is not None: meta = metas[index]")
        add(3, "get = record.get")
        if self._steps:
            self._write_elements()
        else:
            self._write_record(3)
        add(2, "except Exception as error:")
        if self._steps:
            add(3, "del mapped[before[0]:]; skipped = before[1]")
        add(3, "if ends and type(error) is TooExpensiveError: into.skipped += skipped; return begin + index")
        add(3, "failed((begin + index, describe(error)))")
        add(1, "into.skipped += skipped")
        add(1, "return begin + len(records)")

    def load(self) -> Run:
        namespace = self._compiler.namespace
        namespace |= {f"to_{name}": convert for name, convert in TYPES.items()}
        namespace |= {"enumerate": enumerate, "Exception": Exception, "MISSING": object()}
        namespace |= {"as_record": _as_record, "elements": _elements, "without": _without, "merged": _merged}
        namespace |= {"describe": partial(_describe, self._blame)}
        exec(compile("\n".join(self._lines), "<mapping>", "exec"), namespace)
        run: Run = namespace.pop("run")  # It must not be among its own globals: the two would keep each other alive.
        return run

    def _add(self, indent: int, line: str, blame: str = "") -> None:
        self._lines.append("    " * indent + line)
        self._blame[len(self._lines)] = blame

    # One record per element.

    def _unnest_steps(self) -> tuple[str, ...]:
        if not isinstance(self._parts.unnest, str):
            return ()
        path = f"{self._parts.path}.unnest"
        tree = self._compiler.parse(self._parts.unnest, path)
        steps = _path(tree) if tree is not None else ("",)
        if not steps:
            self._compiler.refuse(None, "must be a path to a list", "as in order.lines")
        return steps

    def _write_elements(self) -> None:
        self._add(3, f"values = elements(record, {self._steps!r})", "unnest")
        self._add(3, "if not values: skipped += 1; continue")
        place = len(self._lines)
        self._add(3, "", "unnest")
        self._add(3, f"rest = without(record, {self._steps!r})")
        self._add(3, "for item in values:")
        before = self._compiler.nodes
        self._write_record(4)
        # Each element costs a copy of its record, and what its expressions cost, whose number is known only now.
        price = STEP * (1 + self._compiler.nodes - before)
        self._lines[place] = f"            budget.charge(len(values) * ({ELEMENT} * len(record) + {price}))"

    # One record.

    def _write_record(self, indent: int) -> None:
        where = self._compiler.compile(self._parts.where, f"{self._parts.path}.where")
        if where != "True":
            self._add(indent, f"if not {where}: skipped += 1; continue", "where")
        if self._parts.set:
            self._write_fields(indent)
        else:
            self._write_whole(indent)

    def _write_fields(self, indent: int) -> None:
        """All fields are known: one dict display, in which drop, rename and types cost nothing extra."""
        self._add(indent, "append({")
        for field, expression in self._parts.set.items():
            text = self._compiler.compile(expression, f"{self._parts.path}.set.{field}")
            if field not in self._parts.drop:
                name = self._parts.renamed(field)
                self._add(indent + 1, f"{name!r}: {self._converted(name, text)},", f"set.{field}")
        self._add(indent, "})")

    def _converted(self, field: str, text: str) -> str:
        name = self._parts.types.get(field)
        return text if name is None else self._compiler.guarded(f"to_{name}", text, fixed=name not in PRICED_TYPES)

    def _write_whole(self, indent: int) -> None:
        """Some fields are known: a copy of the record, changed. Nothing to change: the record itself."""
        parts, add = self._parts, self._add
        changes = bool(parts.drop or parts.rename or parts.types)
        if self._steps:
            add(indent, f"row = merged(rest, {self._steps[-1]!r}, item)")
        else:
            add(indent, "row = budget.copied(record)" if changes else "row = record")
        for field in parts.drop:
            add(indent, f"row.pop({field!r}, None)")
        # All are taken out before any is put back, so that two fields may change places.
        for number, field in enumerate(parts.rename):
            add(indent, f"r{number} = row.pop({field!r}, MISSING)")
        for number, new in enumerate(parts.rename.values()):
            add(indent, f"if r{number} is not MISSING: row[{new!r}] = r{number}")
        for field, name in parts.types.items():
            converted = self._compiler.guarded(f"to_{name}", f"row[{field!r}]", fixed=name not in PRICED_TYPES)
            add(indent, f"if row.get({field!r}) is not None: row[{field!r}] = {converted}", f"types.{field}")
        add(indent, "append(row)")


def _path(tree: ast.expr) -> tuple[str, ...]:
    """Give the steps of a chain such as `a.b["c d"]`, or nothing when the tree is no such chain."""
    steps: list[str] = []
    while not isinstance(tree, ast.Name):
        if isinstance(tree, ast.Attribute):
            steps.append(tree.attr)
        elif isinstance(tree, ast.Subscript) and isinstance(tree.slice, ast.Constant):
            if not isinstance(tree.slice.value, str):
                return ()
            steps.append(tree.slice.value)
        else:
            return ()
        tree = tree.value
    return tuple(reversed(steps if tree.id == "record" else [*steps, tree.id]))


def _as_record(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {"value": value}


def _elements(record: dict[str, Any], steps: tuple[str, ...]) -> list[Any]:
    """Give the list to unnest."""
    values: Any = record
    for step in steps:
        values = item(values, step)
    if values is None:
        return []
    if not isinstance(values, list):
        raise TypeError(f"expects a list, not {kind(values)}")
    return values


def _without(record: dict[str, Any], steps: tuple[str, ...]) -> dict[str, Any]:
    """Copy a record without what is at the path, and leave the original as it is."""
    first, *rest = steps
    if not rest:
        return {field: value for field, value in record.items() if field != first}
    return {**record, first: _without(record[first], tuple(rest))}


def _merged(rest: dict[str, Any], name: str, element: Any) -> dict[str, Any]:
    """Join an element with the rest of its record; one that is no dict takes the place of its list."""
    return {**rest, **element} if isinstance(element, dict) else {**rest, name: element}


def _nearest(name: object, names: Iterable[str]) -> str:
    near = difflib.get_close_matches(str(name), list(names), n=3)
    return f"did you mean {', '.join(near)}?" if near else f"one of {', '.join(list(names)[:10])}"
