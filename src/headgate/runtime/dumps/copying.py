"""Copies one range: query it at the source, put it into a language that the target reads, map it, write it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any, TypeAlias

from headgate.connectors.api.bulk import PLAIN, Csv, Language, Piece, Pieces, Range, Reader, Writer
from headgate.connectors.values.convert import common, translated
from headgate.runtime.dumps.plan import Plan

Transform: TypeAlias = Callable[[list[dict[str, Any]]], Awaitable[list[dict[str, Any]]]]


async def copy(
    reader: Reader,
    writer: Writer,
    plan: Plan,
    range: Range,
    transform: Transform | None = None,
    metered: Callable[[Pieces], Pieces] = lambda pieces: pieces,
    *,
    again: bool = False,
) -> int:
    """One range, from the source's session to the target's: query, translate, map, normalize, write."""
    job, into = plan.job, plan.into
    assert into is not None, "a chunk is planned after its table is prepared"
    language, wanted, csv = spoken(reader, writer, plan, transform is not None)
    read = reader.query(plan.source, range, language, csv)
    try:
        pieces = metered(read)
        if wanted is not language:
            columns = job.source.columns if transform is None else plan.source.columns
            pieces, language = translated(pieces, language, wanted, columns), wanted
        if transform is not None:
            pieces = _mapped(pieces, transform)
        if language not in writer.accepts(into, job):
            language, pieces = writer.normalize(pieces, language, job.source.columns)
        return await writer.write(job, into, range, language, pieces, again=again)
    finally:
        # A query that is left half-way would otherwise be ended some time later, in the middle of something else.
        if (end := getattr(read, "aclose", None)) is not None:
            with suppress(RuntimeError):  # If its pieces are taken in another task, that task ends it.
                await end()


def spoken(reader: Reader, writer: Writer, plan: Plan, as_rows: bool) -> tuple[Language, Language, Csv]:
    """What the source speaks, what that is translated to first, and how its CSV looks."""
    job, into = plan.job, plan.into
    assert into is not None
    if as_rows:
        language = common(reader.languages, (Language.ROWS,))
        return language, Language.ROWS, PLAIN
    if job.source.details.get("strict"):
        language = common(reader.languages, (Language.CSV, Language.ARROW))
        return language, Language.ARROW, PLAIN
    language = common(reader.languages, writer.accepts(into, job))
    is_direct = language is Language.CSV and language in writer.languages
    csv = writer.csv if is_direct else PLAIN
    if csv.native and csv.native != job.source.family:
        csv = replace(csv, native="")
    return language, language, csv


async def _mapped(pieces: Pieces, transform: Transform) -> AsyncIterator[Piece]:
    async for piece in pieces:
        rows = await transform(piece.data)
        yield Piece(rows, piece.size, len(rows))
