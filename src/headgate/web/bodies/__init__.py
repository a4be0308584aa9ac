"""The bodies of requests and answers, as types: the API answers with them, the CLI reads them, OpenAPI shows them.

They are plain values without behaviour and import nothing heavy, so that a command can use them and start fast.
"""

from __future__ import annotations

from typing import Any, TypeAlias, dataclass_transform

import msgspec

Json: TypeAlias = Any
"""Any JSON value: a position, an option, a field of a log line."""

Object: TypeAlias = dict[str, Any]
"""Any JSON object: a document or a section of one."""


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(msgspec.field,))
class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """What a node answers. A reader ignores fields that a newer node has added."""


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(msgspec.field,))
class Request(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a caller sends. A field that nobody knows is refused."""
