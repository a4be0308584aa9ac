"""Rows of Arrow batches, hashed by what they mean: equal values have equal hashes, whatever type they came in."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from decimal import MAX_EMAX, MAX_PREC, MIN_EMIN, Context, Decimal

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headgate.connectors.api.bulk import MASK, Column, Digest, StorageError
from headgate.connectors.values.arrow import Numbers, arrow_type, raw
from headgate.connectors.values.kinds import Kind
from headgate.text import one_line

_WORD = 18  # Digits that a word holds.
_NULL = 0xA5A5A5A5A5A5A5A5  # In place of a value; NULLs are also counted.
# How values lie in memory.
_FLOATS = {Kind.FLOAT32: "f4", Kind.FLOAT64: "f8"}
_WHOLE = {Kind.INT16: "i2", Kind.INT32: "i4", Kind.INT64: "i8", Kind.DATE: "i4", Kind.TIME: "i8"}


def add(found: Digest, batch: pa.RecordBatch, have: Sequence[Column], want: Sequence[Column]) -> None:
    """Numbers and moments are hashed as they lie in memory, everything else of a row as one text."""
    places = {column.name: place for place, column in enumerate(have)}
    hashes = np.zeros(batch.num_rows, "u8")
    texts = []
    for column in want:
        array = batch.column(places[column.name])
        found.nulls[column.name] += array.null_count
        with _name_column_in_errors(column):
            words = _words(array, column)
            if words is None:
                text = _text(array, column)
                texts.append(pc.fill_null(text, "") if text.null_count else text)
                words = pc.binary_length(texts[-1]).to_numpy().astype("u8")  # So nobody need tell where one text ends.
        if array.null_count:
            words = np.where(array.is_null().to_numpy(zero_copy_only=False), np.uint64(_NULL), words)
        hashes = _mixed(hashes, words)
    if texts:
        joined = pc.binary_join_element_wise(*texts, "") if len(texts) > 1 else texts[0]
        hashes = _mixed(
            hashes, np.fromiter(map(hash, joined.cast("binary").to_pylist()), "i8", batch.num_rows).view("u8")
        )
    found.rows += batch.num_rows
    found.sum = (found.sum + int(hashes.sum(dtype="u8"))) & MASK
    if found.hashes is not None:
        found.hashes.update(hashes.tolist())


def _mixed(hashes: Numbers, words: Numbers) -> Numbers:
    """A hash of what was hashed so far and of one word more."""
    hashes = (hashes ^ words) * np.uint64(0x9E3779B97F4A7C15)
    hashes = (hashes ^ (hashes >> np.uint64(29))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed: Numbers = hashes ^ (hashes >> np.uint64(32))
    return mixed


@contextmanager
def _name_column_in_errors(column: Column) -> Iterator[None]:
    """Arrow's errors, with the column's name."""
    try:
        yield
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, ValueError) as error:
        raise StorageError(f"column {column.name!r} cannot be compared: {one_line(error, 200)}") from None


def _words(array: pa.Array, column: Column) -> Numbers | None:
    """Each value as one word, the same for what means the same. None: only its text is that."""
    kind, wanted = column.type.kind, arrow_type(column.type)
    if kind is Kind.BOOL:
        return raw(array.cast(pa.int8()), "u1").astype("u8")
    if kind in (Kind.TIMESTAMP, Kind.TIMESTAMPTZ):
        return raw(_moment(array), "u8")
    if kind is Kind.DECIMAL:
        return _mixed(*_digits(array))
    if kind in _FLOATS:
        values = raw(array.cast(wanted), _FLOATS[kind]).astype("f8")
        if kind is Kind.FLOAT32 and pa.types.is_float64(array.type):
            values = _short_floats(raw(array, "f8"), values)
        return np.where(np.isnan(values), np.nan, values).view("u8")
    return raw(array.cast(wanted), _WHOLE[kind]).astype("i8").view("u8") if kind in _WHOLE else None


def _short_floats(wide: Numbers, short: Numbers) -> Numbers:
    """Long floats that stand for short ones, as those: the same number, or the one of the same shortest digits. Any
    other is itself, and so no short one."""
    wide = wide.copy()
    others = np.flatnonzero(wide != short)
    digits = pa.array(short[others].astype("f4")).cast(pa.string()).cast(pa.float64()).to_numpy()
    same = others[wide[others] == digits]
    wide[same] = short[same]
    return wide


def _text(array: pa.Array, column: Column) -> pa.Array:
    """Each value as one text, whatever type it came in."""
    match column.type.kind:
        case Kind.NUMERIC:
            return _short(array.cast(pa.string()))
        case Kind.JSON:
            return pa.array([None if one is None else _ordered(one) for one in array.to_pylist()], pa.string())
        case Kind.BYTES:
            return pa.array([None if one is None else one.hex() for one in array.to_pylist()], pa.string())
    return array.cast(arrow_type(column.type)).cast(pa.string())


def _digits(array: pa.Array) -> tuple[Numbers, Numbers]:
    """How many digits of each number are after the point, and all of them as a whole number; without zeros at their
    end, so that the scale they came with does not matter."""
    if not pa.types.is_decimal128(array.type) or array.type.precision > _WORD:
        pairs = [_pair(one) for one in _short(array.cast(pa.string())).to_pylist()]
        return np.array([points for points, _ in pairs], "u8"), np.array([digits for _, digits in pairs], "u8")
    digits = raw(array, "i8,i8")["f0"]  # The low half has all of it.
    points = np.full(len(array), array.type.scale)
    for _ in range(array.type.scale):
        ends = digits % 10 == 0
        if not ends.any():
            break
        digits, points = np.where(ends, digits // 10, digits), points - ends
    return points.astype("u8"), digits.astype("u8")


def _pair(text: str | None) -> tuple[int, int]:
    whole, _, rest = (text or "0").partition(".")
    digits = whole + rest
    is_word = digits.lstrip("-").isdecimal() and len(digits) <= _WORD + 1
    return len(rest), (int(digits) if is_word else hash(digits)) & MASK


def _short(text: pa.Array) -> pa.Array:
    """Numbers without zeros at their end, whatever the scale that they came with, and without exponents."""
    if pc.any(pc.match_substring(text, "E")).as_py():  # Arrow writes very small numbers with an exponent.
        text = pa.array([None if one is None else format(Decimal(one), "f") for one in text.to_pylist()], pa.string())
    short = pc.ascii_rtrim(pc.ascii_rtrim(text, "0"), ".")
    return pc.if_else(pc.match_substring(text, "."), short, text)


def _moment(array: pa.Array) -> pa.Array:
    if pa.types.is_string(array.type):
        array = array.cast(pa.timestamp("us"))
    return array.cast(pa.timestamp("us", array.type.tz))


def _ordered(document: object) -> str:
    """A document as one text: keys in order, and numbers by all of their digits."""
    return _ENCODER.encode(_DECODER.decode(document)).decode() if isinstance(document, str) else repr(document)


def _number(text: str) -> int | Decimal:
    """1.0, 1 and 1e0 are one number."""
    number = _EXACT.normalize(Decimal(text))
    exponent = number.as_tuple().exponent
    is_whole = isinstance(exponent, int) and exponent >= 0 and number.adjusted() < _WHOLE_DIGITS
    return int(number) if is_whole else number


_WHOLE_DIGITS = 400  # More than a float has. A longer number with an exponent is left as it is written.
_EXACT = Context(prec=MAX_PREC, Emax=MAX_EMAX, Emin=MIN_EMIN)
_DECODER = msgspec.json.Decoder(float_hook=_number)
_ENCODER = msgspec.json.Encoder(order="sorted", decimal_format="number")
