"""The datasources of a storm: what each reads, what becomes of its records, and how it is published again and again.

Every record has a number within its lane (`accounting`), and every row says whose it is: datasource, lane, id. A
record's fate follows from its number, so nobody has to remember what was sent. Each revision of a datasource is another
document with the same meaning: it stamps rows with its number, another number of streams reads the parts, and every
third one can handle the bad records.

Kinds, with one letter for each in `PATTERN`:

| | source | sink |
| --- | --- | --- |
| insert | generator | PostgreSQL, insert |
| upsert | generator | PostgreSQL, upsert: 200 keys |
| parts | generator in 8 parts, read by 2 to 4 streams | PostgreSQL, insert |
| hooks | webhook | PostgreSQL, insert |
| push | two programs, a stream each | PostgreSQL, insert |
| lines | JSON Lines in many files, some lines broken | PostgreSQL, insert |
| copy | generator | a file |
| pass | JSON Lines in many files, some lines broken | a file |
| ended | generator that comes to its end, and has more with each revision | PostgreSQL, insert |
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

import msgspec

from tests.storm.accounting import Fate

KindName: TypeAlias = Literal["insert", "upsert", "parts", "hooks", "push", "lines", "copy", "pass", "ended"]

KINDS: dict[str, KindName] = {
    "i": "insert",
    "u": "upsert",
    "m": "parts",
    "h": "hooks",
    "p": "push",
    "l": "lines",
    "c": "copy",
    "f": "pass",
    "e": "ended",
}
PATTERN = "ihpulcmfeuihpliuhcmiihpulimuiuhcpliuhihiiupulimfeuihpliuhcmi"  # Nine have one of each kind.

SECRET = "sink"
PARTS = 8
KEYS = 200
ENDS_AFTER = 100  # Records; with each revision there are as many more.
PROGRAMS = 2  # For each datasource that is pushed to.
RATE = 4  # Records a second, of a generator. Each is a commit: it is commits that cost, not records.
BROKEN = b"{broken"  # So a line begins that is not JSON.
FILTERED, BAD = 11, 37  # Every so many records.

TABLES = """
CREATE TABLE arrived (
    n bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    datasource text NOT NULL,
    lane bigint NOT NULL,
    id bigint NOT NULL,
    amount bigint CHECK (amount >= 0),
    revision bigint
);
CREATE TABLE latest (
    datasource text,
    key bigint,
    id bigint NOT NULL,
    amount bigint CHECK (amount >= 0),
    revision bigint,
    PRIMARY KEY (datasource, key)
);
CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN INSERT INTO arrived (datasource, lane, id) VALUES (NEW.datasource, 0, NEW.id); RETURN NULL; END $$;
CREATE TRIGGER note AFTER INSERT OR UPDATE ON latest FOR EACH ROW EXECUTE FUNCTION note();
"""


@dataclass(frozen=True, slots=True)
class Datasource:
    """One of them."""

    kind: KindName
    number: int
    folder: Path  # Where files are read and written.

    @property
    def name(self) -> str:
        return f"{self.kind}-{self.number:02}"

    @property
    def is_exact(self) -> bool:
        """The sink is transactional."""
        return self.kind not in ("copy", "pass")

    @property
    def is_generated(self) -> bool:
        """Headgate makes the records itself; all others are sent by somebody outside."""
        return self.kind in ("insert", "upsert", "parts", "copy", "ended")

    @property
    def lanes(self) -> int:
        return {"parts": PARTS, "push": PROGRAMS}.get(self.kind, 1)

    @property
    def keys(self) -> int:
        return KEYS if self.kind == "upsert" else 0

    @property
    def kept_by_registry(self) -> frozenset[Fate]:
        """Which records nobody but the registry has for a while: webhooks, and the letters of sinks that keep none."""
        if self.kind == "hooks":
            return frozenset({Fate.ROW, Fate.EITHER})
        return frozenset() if self.is_exact else frozenset({Fate.EITHER})

    @property
    def incoming(self) -> Path:
        """The folder of the files that are read."""
        return self.folder / "in" / self.name

    @property
    def outgoing(self) -> Path:
        """The file that is written."""
        return self.folder / "out" / f"{self.name}.jsonl"

    @property
    def has_bad_records(self) -> bool:
        return self.number % 4 != 1

    def is_bad(self, id: int) -> bool:
        """Whether some versions cannot handle it."""
        return self.has_bad_records and id % BAD == BAD - 1

    def fate(self, id: int) -> Fate:
        """What must become of a record that was certainly sent."""
        if self.kind in ("insert", "parts", "copy") and id % FILTERED == FILTERED - 1:
            return Fate.NOTHING
        return Fate.EITHER if self.is_bad(id) else Fate.ROW

    # Documents.

    def document(self, revision: int) -> dict[str, Any]:
        """One that works."""
        amount = "1" if revision % 3 == 2 else self._amount()
        found: dict[str, Any] = {
            "source": self._source(revision),
            "mapping": {"set": {**self._fields(), "amount": amount, "revision": revision}},
            "sink": self._sink(),
        }
        if self.kind in ("insert", "parts", "copy"):
            found["mapping"]["where"] = f"{self._id()} % {FILTERED} != {FILTERED - 1}"
        if self.kind == "upsert":
            found["mapping"]["key"] = ["datasource", "key"]
        if self.kind == "parts":
            found["streams"] = 2 + revision % 3
        return found

    def bad_document(self, revision: int) -> dict[str, Any]:
        """One that is accepted, and must be rejected when its first batch is written; a file cannot even be opened."""
        found = self.document(revision)
        if self.is_exact:
            found["mapping"]["set"]["unknown"] = 1
            found["sink"]["schema"] = {"new_fields": "fail"}
        else:
            found["sink"]["path"] = str(self.folder / "nowhere" / "out.jsonl")
        return found

    def document_of_another_sink(self, revision: int) -> dict[str, Any]:
        """One that must be rejected too, and whose sink is not the one that there was."""
        found = self.bad_document(revision)
        if self.is_exact:
            found["sink"] |= {"table": "nowhere", "create": False}
        return found

    def invalid_document(self, revision: int) -> dict[str, Any]:
        """One that must be refused at once."""
        found = self.document(revision)
        found["mapping"]["set"]["amount"] = "amount +"
        return found

    def _source(self, revision: int) -> dict[str, Any]:
        fields = {"id": "sequence"}
        match self.kind:
            case "hooks":
                return {"type": "webhook"}
            case "push":
                return {"type": "push"}
            case "lines" | "pass":
                return {"type": "files", "path": str(self.incoming / "*.jsonl"), "follow": True}
            case "parts":
                return {"type": "generator", "rate": 2 * RATE, "parts": PARTS, "fields": fields}
            case "upsert":  # No batch has a key twice, so every record is written.
                return {"type": "generator", "rate": RATE, "batch": KEYS, "fields": fields}
            case "ended":
                count = ENDS_AFTER * (revision + 1)
                return {"type": "generator", "rate": 2 * RATE, "count": count, "fields": fields}
            case _:
                return {"type": "generator", "rate": RATE, "fields": fields}

    def _id(self) -> str:
        return f"id // {PARTS}" if self.kind == "parts" else "id"

    def _fields(self) -> dict[str, Any]:
        named = {"datasource": f"'{self.name}'"}
        match self.kind:
            case "upsert":
                return named | {"key": f"id % {KEYS}", "id": "id"}
            case "parts":
                return named | {"lane": f"id % {PARTS}", "id": self._id()}
            case "push":
                return named | {"lane": "lane", "id": "id"}
            case _:
                return named | {"lane": 0, "id": "id"}

    def _amount(self) -> str:
        """Of a bad record: what a constraint refuses, or what cannot be mapped."""
        if not self.is_generated:
            return "int(amount)"
        wrong = 'int("x")' if self.number % 2 or not self.is_exact else "-1"
        return f"{wrong} if {self._id()} % {BAD} == {BAD - 1} else 1" if self.has_bad_records else "1"

    def _sink(self) -> dict[str, Any]:
        if not self.is_exact:
            return {"type": "files", "path": str(self.outgoing), "sync": False}
        sink = {"type": "postgres", "url": {"$secret": SECRET}, "table": "arrived"}
        return sink | {"table": "latest", "mode": "upsert"} if self.kind == "upsert" else sink

    # Records.

    def payload(self, lane: int, id: int) -> bytes:
        """What somebody outside sends. Of bad lines, every other one is not JSON."""
        if self.is_bad(id) and self.kind in ("lines", "pass") and id % 2:
            return b"%s %d" % (BROKEN, id)
        return msgspec.json.encode({"lane": lane, "id": id, "amount": "x" if self.is_bad(id) else 1})

    def record_of(self, letter: Mapping[str, Any]) -> tuple[int, int] | None:
        """The lane and the record of a letter, as it is exported; None: its record is gone."""
        if self.is_generated:
            index = int(letter["place"].rpartition("record ")[2])
            return (index % PARTS, index // PARTS) if self.kind == "parts" else (0, index)
        if isinstance(letter["payload"], dict):
            return letter["payload"]["lane"], letter["payload"]["id"]
        return (0, int(letter["text"].split()[-1])) if letter["text"] else None

    def last_of(self, position: Any, lane: int) -> int:
        """The last record of a lane, by the position of the stream that reads it."""
        if position is None:
            return -1
        return int(position) if self.kind != "parts" else position.get(str(lane), -PARTS) // PARTS


def datasources(number: int, folder: Path) -> list[Datasource]:
    """The first so many of the pattern."""
    found = [Datasource(KINDS[letter], index, folder) for index, letter in enumerate(PATTERN[:number])]
    for one in found:
        if one.kind in ("lines", "pass"):
            one.incoming.mkdir(parents=True)
        one.outgoing.parent.mkdir(exist_ok=True)
    return found
