"""The text of the Python function for one mapping.

It is a loop over the records with everything in place, because a call per field or per record would cost more than the
work itself. Which part failed is read from the line of the traceback, so records that do not fail pay nothing for
the answer.

A record that `delete` holds for is mapped to its key alone: what says that a row is gone often has nothing else in it.
The same lines, in another function, give the key of a record that failed elsewhere.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from functools import partial
from typing import Any

from headgate.core.mapping.expressions import Compiler
from headgate.core.mapping.functions import PRICED_TYPES, TYPES
from headgate.core.mapping.mapped import Mapped, failed_record
from headgate.core.mapping.mistakes import UnreadableError, WrongKindError, kind
from headgate.core.mapping.operators import item
from headgate.core.mapping.parts import Parts
from headgate.core.mapping.prices import ELEMENT, STEP, Budget
from headgate.core.mapping.python import Function, call
from headgate.core.records import Unreadable

# Takes records, what each has as `meta`, the index of the first, what became of them, what they may cost, and whether a
# record that costs more ends the slice, or has failed. Returns the index of the first record that was not mapped.
Run = Callable[[list[Any], list[Any] | None, int, Mapped, Budget, bool], int]
# Takes a record, its `meta`, and what it may cost. Returns the record's key fields.
Keys = Callable[[Any, Any, Budget], dict[str, Any]]

_ENDS = "if ends and type(error) is TooExpensiveError:"


class Program:
    """The function, line by line, and which part each line belongs to."""

    def __init__(self, compiler: Compiler, parts: Parts, function: Function | None) -> None:
        self._compiler = compiler
        self._parts = parts
        self._python = function
        self._lines: list[str] = []
        self._blame: dict[int, str] = {}
        self.steps = self._unnest_steps()
        before, path = compiler.nodes, parts.path
        self._where = compiler.compile(parts.where, f"{path}.where")
        self._delete = compiler.compile(parts.delete, f"{path}.delete")
        self._texts = {
            field: compiler.compile(text, f"{path}.set.{field}", parts.cut_by_comma(field))
            for field, text in parts.set.items()
        }
        self._nodes = compiler.nodes - before  # For each element, if there is a list to unnest.

    def write(self) -> None:
        """Write all lines."""
        add = self._add
        add(0, "def run(records, metas, begin, into, budget, ends):")
        add(1, "mapped, meta, read = into.records, None, 0")
        add(1, "append, filtered = mapped.append, into.filtered.append")
        if self.has_origins:
            add(1, "if into.origins is None: into.origins = []")
            add(1, "origins = into.origins.append")
        add(1, "for index, record in enumerate(records):")
        add(2, "try:")
        add(3, "if type(record) is not dict: record = as_record(record)")
        add(3, "if metas is not None: meta = metas[index]")
        add(3, "get = record.get")
        if self.steps:
            self._write_elements()
        else:
            self._write_record(3)
            add(2, "except Exception as error:")
            add(3, f"{_ENDS} into.read += index; return begin + index")
            add(3, "into.failed.append(failed(error, begin + index, None))")
        add(1, f"into.read += {'read' if self.steps else 'len(records)'}")
        add(1, "return begin + len(records)")
        if self._parts.key:
            self._write_keys()

    @property
    def has_origins(self) -> bool:
        """Whether one input may give several records."""
        return bool(self.steps) or self._python is not None

    def load(self) -> tuple[Run, Keys | None]:
        """The function, and the one that gives keys. Only for a mapping without problems."""
        namespace = self._compiler.namespace
        namespace |= {f"to_{name}": convert for name, convert in TYPES.items()}
        namespace |= {"enumerate": enumerate, "Exception": Exception, "MISSING": object()}
        namespace |= {"as_record": as_record, "elements": _elements, "without": _without, "merged": _merged}
        namespace |= {"failed": partial(failed_record, self._blame)}
        if self._python is not None:
            namespace["python"] = partial(call, self._python, many=not self.steps)
        exec(compile("\n".join(self._lines), "<mapping>", "exec"), namespace)
        # They must not be among their own globals: the two would keep each other alive.
        run: Run = namespace.pop("run")
        keys: Keys | None = namespace.pop("keys", None)
        return run, keys

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
        """An element that fails, fails alone; one that is too dear for the slice takes all of its record along."""
        add = self._add
        add(3, f"values = elements(record, {self.steps!r})", "unnest")
        add(3, "if not values: read += 1; filtered(begin + index); continue")
        # Each element costs a copy of its record, and what its expressions cost.
        price = STEP * (1 + self._nodes)
        add(3, f"budget.charge(len(values) * ({ELEMENT} * len(record) + {price}))", "unnest")
        if not self._parts.set:
            add(3, f"rest = without(record, {self.steps!r})")
        add(2, "except Exception as error:")
        add(3, f"{_ENDS} into.read += read; return begin + index")
        add(3, "into.failed.append(failed(error, begin + index, None)); read += 1; continue")
        add(2, "at = begin + index")
        add(2, "for number, item in enumerate(values):")
        add(3, "try:")
        self._write_record(4)
        add(3, "except Exception as error:")
        add(4, f"{_ENDS} into.undo(at); into.read += read; return at")
        add(4, "into.failed.append(failed(error, at, number))")
        add(2, "read += len(values)")

    # One record.

    @property
    def _at(self) -> str:
        """The index of the input record."""
        return "at" if self.steps else "begin + index"

    def _write_record(self, indent: int) -> None:
        if self._where != "True":
            self._add(indent, f"if not {self._where}: filtered({self._at}); continue", "where")
        if self._delete not in ("None", "False"):
            self._add(indent, f"if {self._delete}:", "delete")
            self._write_fields(indent + 1, "append(", ")", is_key=True)
            self._add(indent + 1, "into.deletes.append(len(mapped) - 1)")
            self._write_origin(indent + 1)
            self._add(indent + 1, "continue")
        if self._python is not None:
            self._write_fields(indent, "row = ", "")
            self._add(indent, "made = python(row, meta, budget)", "python")
            self._add(indent, f"into.take({self._at}, {'number' if self.steps else 'None'}, made)")
        else:
            self._write_fields(indent, "append(", ")")
            self._write_origin(indent)

    def _write_origin(self, indent: int) -> None:
        if self.has_origins:
            self._add(indent, f"origins(({self._at}, {'number' if self.steps else 'None'}))")

    def _write_fields(self, indent: int, begin: str, end: str, *, is_key: bool = False) -> None:
        """Write a record, or only its key, between `begin` and `end`. If all fields are known it is one dict display,
        in which drop, rename and types cost nothing extra."""
        parts, add = self._parts, self._add
        if not parts.set:
            self._write_row(indent, is_key=is_key)
            pairs = ", ".join(f"{name!r}: row.get({name!r})" for name in parts.key)
            add(indent, f"{begin}{f'{{{pairs}}}' if is_key else 'row'}{end}")
            return
        add(indent, f"{begin}{{")
        for field, text in self._texts.items():
            name = parts.renamed(field)
            if field not in parts.drop and (name in parts.key or not is_key):
                add(indent + 1, f"{name!r}: {self._converted(name, text)},", f"set.{field}")
        add(indent, f"}}{end}")

    def _converted(self, field: str, text: str) -> str:
        name = self._parts.types.get(field)
        return text if name is None else self._compiler.guarded(f"to_{name}", text, fixed=name not in PRICED_TYPES)

    def _write_row(self, indent: int, *, is_key: bool) -> None:
        """Some fields are known: a copy of the record, changed. Nothing to change: the record itself."""
        parts, add = self._parts, self._add
        changes = bool(parts.drop or parts.rename or parts.types)
        if self.steps:
            add(indent, f"row = merged(rest, {self.steps[-1]!r}, item)")
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
            if field in parts.key or not is_key:
                converted = self._compiler.guarded(f"to_{name}", f"row[{field!r}]", fixed=name not in PRICED_TYPES)
                add(indent, f"if row.get({field!r}) is not None: row[{field!r}] = {converted}", f"types.{field}")

    # The key alone.

    def _write_keys(self) -> None:
        add = self._add
        add(0, "def keys(record, meta, budget):")
        add(1, "if type(record) is not dict: record = as_record(record)")
        add(1, "get = record.get")
        if self.steps:
            add(1, f"[item] = elements(record, {self.steps!r})")
            add(1, f"rest = without(record, {self.steps!r})")
        self._write_fields(1, "return ", "", is_key=True)


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


def as_record(value: Any) -> dict[str, Any]:
    """A record as expressions see it."""
    if isinstance(value, Unreadable):
        raise UnreadableError(value.reason)
    return value if isinstance(value, dict) else {"value": value}


def cut(record: dict[str, Any], steps: tuple[str, ...], element: int) -> dict[str, Any]:
    """Copy a record with one element in the list at the path, and leave the original as it is."""
    first, *rest = steps
    found = record[first]
    return {**record, first: cut(found, tuple(rest), element) if rest else [found[element]]}


def _elements(record: dict[str, Any], steps: tuple[str, ...]) -> list[Any]:
    """Give the list to unnest."""
    values: Any = record
    for step in steps:
        values = item(values, step)
    if values is None:
        return []
    if not isinstance(values, list):
        raise WrongKindError(f"expects a list, not {kind(values)}")
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
