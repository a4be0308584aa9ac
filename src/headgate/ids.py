"""Names and ids: what may be called how."""

from __future__ import annotations

import re
import uuid

NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,99}")


def new_id() -> uuid.UUID:
    """A fresh id. Random, so that nodes need not agree on anything to draw one."""
    return uuid.uuid4()


def stream_id(datasource: uuid.UUID, part: int | str) -> uuid.UUID:
    """The id of a stream. Always the same, so that its sink knows it again if the registry has lost it."""
    return uuid.uuid5(datasource, f"label:{part}" if isinstance(part, str) else f"index:{part}")


def is_name(text: object) -> bool:
    """Whether this may be the name of a datasource or a secret."""
    return isinstance(text, str) and NAME.fullmatch(text) is not None


def as_id(text: str) -> uuid.UUID | None:
    """The id that this text is, if it is one."""
    try:
        return uuid.UUID(text) if len(text) == 36 else None
    except ValueError:
        return None


LABEL = re.compile(r"[\w.~:@=+-]{1,200}")


def is_label(text: str) -> bool:
    """Whether a program may call its stream so: what fits into a URL and needs no quotes."""
    return LABEL.fullmatch(text) is not None


def stream_name(datasource: str, part: int | str) -> str:
    """A stream's name, as people write it: `orders:0`, or `clicks:host-7` if a program pushes it."""
    return f"{datasource}:{part}"


def lock_key(*parts: object) -> int:
    """A stable 64-bit key for a PostgreSQL advisory lock."""
    digest = uuid.uuid5(uuid.NAMESPACE_OID, "/".join(map(str, parts))).int >> 64
    return digest - (1 << 64) if digest >= (1 << 63) else digest
