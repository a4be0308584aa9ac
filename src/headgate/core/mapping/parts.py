"""The parts of a mapping document, each checked for its shape."""

from __future__ import annotations

import difflib
import itertools
import re
from collections.abc import Iterable
from typing import Any

from headgate.core.mapping.functions import TYPES
from headgate.core.mapping.mistakes import kind
from headgate.errors import Problem

PARTS = ("unnest", "where", "delete", "set", "drop", "rename", "types", "python", "key")
FIELD_LIMIT = 1_600  # As many as a table of PostgreSQL may have.
MOVED = {"on_error": "`on_error` now stands next to `mapping`, at the top of the document"}
QUOTE = "within { } a comma ends a value: quote the expression"
FUNCTION = re.compile(r"^[a-zA-Z_]\w*(\.[a-zA-Z_]\w*)*:[a-zA-Z_]\w*$", re.ASCII)


class Parts:
    """The parts of a document; a wrong part is noted and read as absent."""

    def __init__(self, document: Any, path: str, problems: list[Problem]) -> None:
        self.path = path
        self._problems = problems
        if not isinstance(document, dict):
            self.note("", f"a mapping is a dict, not {kind(document)}")
            document = {}
        for part in document:
            if part in MOVED:
                answer = document[part] if isinstance(document[part], str) else "dead_letter"
                self.note(part, MOVED[part], f"{part}: {answer[:20]}, as deep as mapping and sink")
            elif part not in PARTS:
                is_rest = document[part] is None and any(sign in str(part) for sign in ")]")
                self.note(str(part), "unknown part", QUOTE if is_rest else nearest(part, PARTS))
        self.where = document.get("where", True)
        self.delete = document.get("delete")
        self.set = self._dict("set", document.get("set"), "expressions")
        self.drop = self._names("drop", document.get("drop"))
        self.rename = self._dict("rename", document.get("rename"), "new names")
        self.types = self._dict("types", document.get("types"), "types")
        self.unnest = document.get("unnest")
        self.python = self._function(document.get("python"))
        key = document.get("key")
        self.key = tuple(self._names("key", [key] if isinstance(key, str) else key))
        self._check_values()
        if self.set:
            self._check_fields(self.set)

    def note(self, part: str, message: str, hint: str = "") -> None:
        """Add a problem of this part."""
        self._problems.append(Problem(f"{self.path}.{part}" if part else self.path, message, hint))

    def renamed(self, field: str) -> str:
        """The name that a field has in the output."""
        return str(self.rename.get(field, field))

    def cut_by_comma(self, field: str) -> str:
        """What to do about an expression of `set` that YAML has cut in two: within { }, a comma ends it, and the rest
        is a field without a value."""
        text = self.set[field]
        if not isinstance(text, str) or not any(text.count(one) > text.count(other) for one, other in ("()", "[]")):
            return ""
        after = list(self.set.items())[list(self.set).index(field) + 1 :]
        rest = [name for name, _ in itertools.takewhile(lambda pair: pair[1] is None, after)]
        if not any(")" in name or "]" in name for name in rest):
            return ""
        return f"{QUOTE}: {field}: '{', '.join([text, *rest])}'"[:200]

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

    def _function(self, value: Any) -> str | None:
        if value is None:
            return None
        if not isinstance(value, str) or len(value) > 200 or not FUNCTION.fullmatch(value):
            self.note("python", "must be a module and a function", "as in shop.cleaning:clean")
            return None
        return value

    def _check_values(self) -> None:
        for field, name in self.types.items():
            if name not in list(TYPES):
                self.note(f"types.{field}", f"unknown type {str(name)[:40]}", nearest(name, TYPES))
        for field, new in self.rename.items():
            if not isinstance(new, str) or not new:
                self.note(f"rename.{field}", "the new name must be text")
            elif [*map(str, self.rename.values())].count(new) > 1:
                self.note(f"rename.{field}", f"two fields are renamed to {new}")
            if field in self.drop:
                self.note(f"rename.{field}", "the field is dropped")
        if self.unnest is not None and not isinstance(self.unnest, str):
            self.note("unnest", "must be a path to a list", "as in order.lines")
        if self.delete is not None and not self.key:
            self.note("delete", "needs a key: it says which record is to be deleted", "key: id")

    def _check_fields(self, fields: Iterable[str]) -> None:
        """With `set` all output fields are known, so names of others are mistakes. Only a Python function may add some,
        and a deletion does not get that far."""
        for part, names in (("drop", self.drop), ("rename", list(self.rename))):
            for name in names:
                if name not in fields:
                    self.note(f"{part}.{name}", "is not a field of set", nearest(name, fields))
        kept = [field for field in fields if field not in self.drop]
        output = {self.renamed(field) for field in kept}
        if len(output) < len(kept):
            self.note("rename", "a new name is the name of another field")
        for name in self.types:
            if name not in output:
                self.note(f"types.{name}", "is not an output field", nearest(name, output))
        for name in self.key:
            if name not in output and (self.python is None or self.delete is not None):
                self.note("key", f"{name} is not an output field", nearest(name, output))


def nearest(name: object, names: Iterable[str]) -> str:
    """Guess what was meant."""
    near = difflib.get_close_matches(str(name), list(names), n=3)
    return f"did you mean {', '.join(near)}?" if near else f"one of {', '.join(list(names)[:10])}"
