"""What a mapping makes of one record, as results."""

from __future__ import annotations

from typing import Any

from headgate.core.harness.results import Result
from headgate.core.mapping.document import Mapping
from headgate.core.records import Unreadable
from headgate.runtime.harness.safe import safe


def results_of(mapping: Mapping, record: Any, meta: Any) -> tuple[list[Result], list[dict[str, Any]]]:
    """The results, and for each that is written the record as the sink would get it."""
    if isinstance(record, Unreadable):
        return [Result("dead_lettered", stage="source", reason=record.reason)], []
    mapped = mapping.apply([record], None if meta is None else [meta])
    results = [Result("written", safe(one)) for one in mapped.records]
    results += [Result("filtered")] * mapped.skipped
    for _, text in mapped.failed:
        field, colon, reason = text.partition(": ")
        results.append(Result("dead_lettered", None, False, "mapping", field if colon else None, reason or text))
    return results, mapped.records
