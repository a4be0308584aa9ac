"""What a mapping makes of one record, as results."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from headgate.core.harness.results import Result
from headgate.core.mapping.document import Mapping
from headgate.runtime.harness.safe import safe


@dataclass(slots=True)
class Made:
    """The results of one record, and for each that is written the record as the sink would get it."""

    results: list[Result]
    rows: list[dict[str, Any]]


def results_of(mapping: Mapping, record: Any, meta: Any) -> Made:
    """All of them: what is written first, then what is filtered, then what failed."""
    mapped = mapping.apply([record], None if meta is None else [meta])
    deleted = set(mapped.deletes)
    results = [Result("written", safe(one), number in deleted) for number, one in enumerate(mapped.records)]
    results += [Result("filtered")] * len(mapped.filtered)
    results += [Result("dead_lettered", None, False, one.stage, one.field, one.reason) for one in mapped.failed]
    return Made(results, mapped.records)
