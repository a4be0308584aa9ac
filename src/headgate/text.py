"""How durations, sizes, numbers of things and errors are written for people, and read back. Each is here once."""

from __future__ import annotations

import re

from headgate.errors import HeadgateError

_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_COARSE_S = ((86400, "d"), (3600, "h"), (60, "min"))
_UNITS_B = ("B", "kB", "MB", "GB", "TB")
_ZERO = re.compile(rb"(?<!\\)(?:\\\\)*\\u0000")


# Durations.


def duration(span_s: float) -> str:
    """`12 ms`, `3.4 s`, `42 s`, `5 min`, `2 h`, `9 d`. Clocks differ, so a negative duration is none."""
    if span_s < 0.9995:
        return f"{max(span_s, 0.0) * 1000:.0f} ms"
    return f"{span_s:.1f} s" if span_s < 9.95 else roughly(span_s)


def roughly(span_s: float) -> str:
    """`0 s`, `3 s`, `90 s`, `5 min`: whole seconds or more, where fractions would only distract."""
    for unit_s, unit in _COARSE_S:
        if span_s >= 2 * unit_s:
            return f"{span_s / unit_s:.0f} {unit}"
    return f"{max(span_s, 0.0):.0f} s"


def ago(span_s: float) -> str:
    """`just now`, `42 s ago`, `3 min ago`."""
    return "just now" if span_s < 1.5 else f"{roughly(span_s)} ago"


def tries_again(left_s: float, *, awaits_return: bool = False) -> str:
    """`tries again in 12 s`, `tries again now`; or before, when what it waits for is back."""
    if left_s < 0.5:
        return "tries again now"
    return f"tries again in {roughly(left_s)}{', or when that is back' if awaits_return else ''}"


def parse_duration(text: str) -> float:
    """`10m` in seconds."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smhd])", text)
    if match is None:
        raise ValueError("must be a duration such as 30s, 10m, 2h or 1d")
    return float(match[1]) * _UNITS_S[match[2]]


# Sizes and numbers.


def size(size_bytes: float) -> str:
    """`12 B`, `12.3 MB`. Units are powers of 1,000."""
    number = size_bytes
    for unit in _UNITS_B[:-1]:
        if number < 999.5:
            return f"{number:.0f} {unit}" if unit == "B" else f"{number:.1f} {unit}"
        number /= 1000
    return f"{number:,.1f} {_UNITS_B[-1]}"


def counted(number: float, noun: str, plural: str = "") -> str:
    """`1 row`, `2,000 rows`."""
    return f"{number:,.0f} {noun if number == 1 else plural or noun + 's'}"


# Texts and errors.


def has_zero_byte(json: bytes) -> bool:
    """Whether a text in this JSON has one. PostgreSQL keeps it, and then fails every query that looks into it."""
    return _ZERO.search(json) is not None


def one_line(said: object, most: int | None = None) -> str:
    """A text or an error on a single line, indented as it was; an error without a text is called by its type."""
    lines = [line for line in str(said).splitlines() if line.strip()]
    text = " ".join([line.rstrip() for line in lines[:1]] + [line.strip() for line in lines[1:]])
    if isinstance(said, BaseException):
        text = text.strip() or type(said).__name__
    return text[:most]


def error_line(error: BaseException) -> str:
    """An error on a single line: our own with what to do about it, any other with its type."""
    if isinstance(error, HeadgateError):
        is_said = not error.hint or error.hint in error.message  # A ConfigError's message has the hint in it.
        return error.message if is_said else f"{error.message} ({error.hint})"
    text = one_line(error)
    kind = type(error).__name__
    return text if text == kind else f"{kind}: {text}"
