"""What people read: tables that fit 80 columns, times as "3 min ago", changes as a diff.

Everything here makes text from data and is independent of where the data came from. Text that others wrote (logs,
errors, payloads) may hold control characters; they are shown, not obeyed.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import sys
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import typer

from headgate import text

if TYPE_CHECKING:
    from headgate.web.bodies.datasources import Difference

CHUNK = 16_384  # An unbuffered stdout hides that the rest of one large write was lost; the next write tells.
BROKEN_PIPE = 141  # 128 + SIGPIPE, as the shell reports it for other programs.
GAP = 2
LAST = 24  # The last column yields down to this, and only then do the others.
DASH = "–"
CLEAR = "\x1b[H\x1b[2J"  # The terminal's screen.

_STYLES = {
    "ok": "green",
    "error": "red",
    "degraded": "yellow",
    "no_node": "red",
    "starting": "cyan",
    "stopped": "dim",
    "unpublished": "dim",
    "ended": "dim",
    "rejected": "red",
    "completed": "green",
    "running": "cyan",
    "paused": "yellow",
    "incomplete": "red",
    "interrupted": "yellow",
    "failed": "red",
    "cancelled": "dim",
}


# Writing.


def say(text: str) -> None:
    """Write a line, or several, to stdout. A reader that went away ends the command quietly."""
    try:
        whole = text if text.endswith("\n") else f"{text}\n"
        for start in range(0, len(whole), CHUNK):
            sys.stdout.write(whole[start : start + CHUNK])
        sys.stdout.flush()
    except BrokenPipeError:
        # The interpreter flushes once more at its end; by then there must be somewhere to write to.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(BROKEN_PIPE) from None


def complain(text: str) -> None:
    """Write one line to stderr."""
    sys.stderr.write(f"{one_line(text)}\n")
    sys.stderr.flush()


def to_json(data: Any, *, indent: int | None = 2) -> str:
    """For machines."""
    return json.dumps(data, ensure_ascii=False, indent=indent, default=_plain)


def _plain(value: object) -> object:
    import msgspec

    return msgspec.to_builtins(value, str_keys=True) if isinstance(value, msgspec.Struct) else str(value)


# Words and numbers.


def visible(text: str) -> str:
    """The text with control characters spelled out, but for line feeds and tabs."""
    return "".join(c if c.isprintable() or c in "\n\t" else f"\\x{ord(c):02x}" for c in text)


def one_line(said: object) -> str:
    """A text as a single line that a terminal can show."""
    return visible(text.one_line(said))


def short(value: Any) -> str:
    """A value as people write it."""
    if value is None:
        return DASH
    return value if isinstance(value, str) else to_json(value, indent=None)


def ago(when: datetime | str | None, now: datetime | None = None) -> str:
    """`3 min ago`, of a time or its ISO text."""
    if not when:
        return DASH
    try:
        then = when if isinstance(when, datetime) else datetime.fromisoformat(when)
    except ValueError:
        return str(when)
    if then.tzinfo is None:
        then = then.replace(tzinfo=UTC)
    return text.ago(((now or datetime.now(UTC)) - then).total_seconds())


# Shapes.


def table(
    heads: Sequence[str], rows: Iterable[Sequence[Any]], *, empty: str, right: Sequence[str] = (), wrap: bool = False
) -> str:
    """Columns without lines. Where the terminal is narrow the last column gives way: it is cut, or wrapped."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    cells = [[visible(short(cell)).replace("\n", " ") for cell in row] for row in rows]
    if not cells:
        return empty
    is_terminal = sys.stdout.isatty()
    known = is_terminal or "COLUMNS" in os.environ
    room = shutil.get_terminal_size().columns if known else sys.maxsize  # A pipe gets whole lines.
    widths = _widths([list(heads), *cells], room)
    found = Table(box=None, padding=(0, GAP, 0, 0), pad_edge=False, header_style="bold")
    for index, (head, width) in enumerate(zip(heads, widths, strict=True)):
        is_cut = index == len(heads) - 1 and not wrap
        justify: Any = "right" if head in right else "left"
        overflow: Any = "ellipsis" if is_cut else "fold"
        found.add_column(head, justify=justify, overflow=overflow, no_wrap=is_cut, width=width)
    for row in cells:
        found.add_row(*(Text(cell, style=_STYLES.get(cell, "")) for cell in row))
    out = io.StringIO()
    whole = sum(widths) + GAP * len(widths)
    Console(file=out, width=min(room, whole), force_terminal=is_terminal, highlight=False).print(found)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines())


def _widths(cells: list[list[str]], room: int) -> list[int]:
    """As wide as the content; if there is no room for that, first the last column yields, then whichever is widest."""
    from rich.cells import cell_len

    widths = [max(map(cell_len, column)) for column in zip(*cells, strict=True)]
    excess = sum(widths) + GAP * (len(widths) - 1) - room
    while excess > 0 and max(widths) > 1:
        index = len(widths) - 1 if widths[-1] > LAST else widths.index(max(widths))
        widths[index] -= 1
        excess -= 1
    return widths


def pairs(items: Iterable[tuple[str, Any]]) -> str:
    """`key  value` lines, aligned; a value of None is left out."""
    kept = [(key, visible(short(value))) for key, value in items if value is not None]
    width = max((len(key) for key, _ in kept), default=0)
    return "\n".join(f"{key:<{width}}  {value}" for key, value in kept)


def changes(found: Iterable[Difference], indent: str = "") -> list[str]:
    """A line per place that differs."""
    lines = []
    for change in found:
        if change.before is None:
            line = f"+ {change.path}: {short(change.after)}"
        elif change.after is None:
            line = f"- {change.path}: {short(change.before)}"
        else:
            line = f"~ {change.path}: {short(change.before)} → {short(change.after)}"
        lines.append(indent + one_line(line))
    return lines


def to_yaml(data: Any) -> str:
    """A document as people edit it."""
    import yaml

    return yaml.safe_dump(data, sort_keys=False, allow_unicode=True, width=100)
