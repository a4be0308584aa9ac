"""Types and defaults as the catalog of another MySQL or MariaDB has them, before they are run here."""

from __future__ import annotations

import re

from headgate.connectors.api.bulk import Column, StorageError

_TEXT = r"'(?:[^'\\]|''|\\.)*'"
_TYPE = re.compile(
    rf"[a-z][a-z0-9_]*(?: precision)?(?: ?\( ?(?:\d+(?: ?, ?\d+)?|{_TEXT}(?: ?, ?{_TEXT})*) ?\))?"
    r"(?: unsigned)?(?: zerofill)?",
    re.IGNORECASE | re.DOTALL | re.ASCII,
)
_NOW = r"(?:current_timestamp|now|localtime|localtimestamp)(?:\(\d?\))?"
_MADE = r"(?:uuid|curdate|curtime|current_date|current_time|utc_timestamp|utc_date|json_array|json_object)\(\d?\)"
_VALUE = rf"(?:_[a-z0-9]+)?{_TEXT}|[bx]{_TEXT}|-?\d+(?:\.\d*)?(?:e[-+]?\d+)?|0x[0-9a-f]+|null|true|false|{_NOW}|{_MADE}"
_DEFAULT = re.compile(rf"(?:{_VALUE}|\((?:{_VALUE})\))(?: on update {_NOW})?", re.IGNORECASE | re.DOTALL | re.ASCII)


def own_type(column: Column) -> str:
    """The type of a column of the same kind of database: a name, its sizes or its labels, and nothing else."""
    if not _TYPE.fullmatch(column.native):
        raise StorageError(f"column {column.name!r} has the type {column.native[:100]!r}, which cannot be parsed")
    return column.native


def is_plain_default(default: str) -> bool:
    """Whether a default is a value, the time, or a new id. Any other expression may call what it likes."""
    return _DEFAULT.fullmatch(default) is not None
