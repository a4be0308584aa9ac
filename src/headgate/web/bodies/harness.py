"""Bodies about tests and fixtures."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from msgspec import Meta

from headgate.web.bodies import Answer, Json, Object, Request

Number = Annotated[int, Meta(ge=1, le=1000)]


class TestAsked(Request):
    """What to test, and with what: exactly one of payload, payload_base64, fetch, inbox, dead_letter and fixture."""

    document: Object | None = None  # Instead of the draft: a document that need not be in the registry.
    version: Annotated[int, Meta(ge=1, le=2**31 - 1)] | None = None  # Instead of the draft.
    payload: str | None = None  # JSON, a JSON array, or JSON Lines; or what the source takes.
    payload_base64: str | None = None  # The same, if it is not text.
    fetch: Number | None = None  # Read as many records from the source.
    inbox: Number | None = None  # The last webhooks that came.
    dead_letter: str | None = None  # The id of one.
    fixture: str | None = None  # The name of one.
    sink: Literal["none", "rollback"] = "none"  # Whether the sink writes, and takes everything back.
    save: str | None = None  # Keep inputs and results as a fixture of this name.
    timeout_s: Annotated[float, Meta(gt=0, le=60)] | None = None


class TestResult(Answer):
    """What would become of one record."""

    outcome: str  # written, filtered or dead_lettered.
    after: Json  # As the sink would get it.
    is_delete: bool
    stage: str | None  # Of a dead letter: source, mapping or sink.
    field: str | None
    reason: str | None


class ResultChange(Answer):
    """A place at which the result is not that of the published version, or not what a fixture expects."""

    place: str  # `0.total`: of the first result, the field `total`.
    before: Json
    after: Json


class TestRecord(Answer):
    """One input, before and after. `unnest` makes several results of one."""

    before: Json
    results: list[TestResult]
    changes: list[ResultChange]
    took_us: float
    size_bytes: int


class TestCaution(Answer):
    """Something to look at."""

    code: str
    place: str
    message: str


class TestLine(Answer):
    """What the connector logged."""

    level: str
    text: str
    fields: dict[str, str]


class TestFigures(Answer):
    """What the test took."""

    took_ms: float
    cpu_ms: float
    memory_bytes: int  # At most.
    per_record_us: float  # Spent in the mapping.
    bytes_in: int
    apart: list[str]  # What of the kernel's walls the process had: pid, net and so on.


class Tested(Answer):
    """What a test found out."""

    name: str
    version: int | None
    compared_with: int | None  # The published version that `changes` are next to.
    read: int
    written: int
    filtered: int
    dead_lettered: int
    records: list[TestRecord]
    warnings: list[TestCaution]
    logs: list[TestLine]
    output: str  # What it wrote to its standard output; the beginning of it.
    trouble: str  # What kept it from its end, and how far it got; empty: nothing.
    hint: str
    figures: TestFigures
    is_cut: bool  # There was more than is shown.
    saved: str | None  # The fixture that was made of it.


class FixtureListed(Answer):
    """A fixture; nothing of its records."""

    name: str
    inputs: int
    size_bytes: int
    author: str
    changed_at: datetime


class FixturesListed(Answer):
    """All fixtures of a datasource."""

    items: list[FixtureListed]


class FixtureInput(Answer):
    """One input of a fixture, and the results that it should have."""

    given: Json  # A record, or the text of a body.
    expected: list[TestResult]


class FixtureShown(Answer):
    """A fixture, with its records."""

    name: str
    inputs: list[FixtureInput]
    masked: list[str]  # Fields that differ from run to run.
