"""Plain English: phrases that read as translated, or that say the opposite of what they mean, stay out."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "headgate"

WORST = {
    r"anew": "again, or: starts over",
    r"nought": "zero",
    r"whoever": "the node, the process, a program that …",
    r"so many": "this many, or the number",
    r"comes? along": "is included",
    r"(is|are) not meant": "say what is meant",
    r"believes? to be": "believes that it is",
    r"left alone with it": "is not granted it",
    r"proves right": "say how it is chosen",
    r"of (its|their|your|our) own(?! \w)": "its own …",
    r"beside": "while … runs, with, next to; besides for: in addition to",
    r"(is|was|be) set aside": "is quarantined",
    r"for ever": "forever",
    r"in vain": "say what fails",
    r"unless told": "by default",
    r"as it is at its time": "as it is at that moment",
    r"aloud": "with an error",
    r"let us in|refuses us": "refuses the connection",
    r"\b1 (rows|records|streams|tables|chunks|datasources|secrets)": "one is singular",
}
PHRASE = re.compile("|".join(rf"(?<![\w-])(?:{phrase})\b" for phrase in WORST), re.IGNORECASE)

# Old migrations are kept as they were applied.
SQL = [path for path in SOURCE.rglob("*.sql") if "migrations" not in path.parts]
DOCS = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
MODULES = [path for folder in (SOURCE, ROOT / "simulation", ROOT / "handbook") for path in folder.rglob("*.py")]
PAGES_OF_THE_CONSOLE = [path for kind in ("html", "js") for path in (SOURCE / "web").rglob(f"*.{kind}")]


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", sorted([*DOCS, *MODULES, *SQL, *PAGES_OF_THE_CONSOLE]), ids=name_of)
def test_the_worst_phrases_stay_out(path: Path) -> None:
    text = path.read_text()
    found = [f"line {text.count(chr(10), 0, hit.start()) + 1}: {hit[0]!r}" for hit in PHRASE.finditer(text)]
    assert not found, f"{name_of(path)}: {'; '.join(found)}. Rather: {WORST}"


def test_the_test_finds_them() -> None:
    assert PHRASE.search("it begins anew")
    assert PHRASE.search("Whoever has it")
    assert PHRASE.search("1 rows")
    assert not PHRASE.search("besides, 11 rows and whosoever")
