"""Which pages there are, and where each stands in the navigation.

A shelf names its pages in the order of reading. A name may be of a page that is not written yet, and a pattern takes
what no other shelf names, so a new page has a place from the start.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

DOCS = PurePosixPath("docs")
PROJECT = ("README", "ARCHITECTURE", "CONTRIBUTING", "CHANGELOG")  # At the top of the tree.


@dataclass(frozen=True, slots=True)
class Shelf:
    """Pages that stand together."""

    kind: str  # What sort of pages: the first level of the navigation.
    title: str  # What they are about, if the kind has several shelves.
    names: tuple[str, ...]  # Paths in the tree, without ending; the last may be patterns.


SHELVES = (
    Shelf("Start", "", ("docs/index", "docs/quickstart", "docs/howto/install", "docs/howto/first-datasource")),
    Shelf(
        "How to",
        "Datasources",
        (
            "docs/howto/console",
            "docs/howto/operate-in-the-console",
            "docs/howto/yaml-registry",
            "docs/howto/secrets",
            "docs/howto/test-a-draft",
            "docs/howto/upgrade-a-datasource",
            "docs/howto/pause-and-delete",
            "docs/howto/read-in-parallel",
            "docs/howto/schema-drift",
            "docs/howto/backfill",
        ),
    ),
    Shelf(
        "How to",
        "Records",
        ("docs/howto/tap", "docs/howto/dead-letters", "docs/howto/edit-a-position", "docs/howto/push-records"),
    ),
    Shelf(
        "How to",
        "Systems",
        (
            "docs/howto/webhooks",
            "docs/howto/http",
            "docs/howto/kafka",
            "docs/howto/rabbitmq",
            "docs/howto/nats",
            "docs/howto/redis",
            "docs/howto/mqtt",
            "docs/howto/bridges",
            "docs/howto/write-a-connector",
        ),
    ),
    Shelf(
        "How to",
        "Nodes and people",
        (
            "docs/howto/own-database",
            "docs/howto/tokens",
            "docs/howto/use-all-cores",
            "docs/howto/move-and-drain",
            "docs/howto/elect-a-leader",
        ),
    ),
    Shelf("How to", "Copies", ("docs/howto/dump",)),
    Shelf("How to", "More", ("docs/howto/*",)),
    Shelf("Coming from", "", ("docs/coming-from/*",)),
    Shelf(
        "Concepts",
        "",
        (
            "docs/concepts/streams",
            "docs/concepts/positions",
            "docs/concepts/lifecycle",
            "docs/concepts/groups",
            "docs/concepts/dumps",
            "docs/concepts/*",
        ),
    ),
    Shelf(
        "Operating",
        "",
        (
            "docs/operating/production",
            "docs/operating/monitoring",
            "docs/operating/faults",
            "docs/operating/backup",
            "docs/operating/high-availability",
            "docs/operating/*",
        ),
    ),
    Shelf(
        "Reference",
        "",
        (
            "docs/reference/document",
            "docs/reference/mapping",
            "docs/reference/cli",
            "docs/reference/http",
            "docs/reference/settings",
            "docs/reference/*",
            "docs/glossary",
            "docs/figures",
        ),
    ),
    Shelf("Reference", "Connectors", ("docs/reference/connectors/*",)),
    Shelf("Decisions", "", ("docs/decisions/*",)),
    Shelf("Project", "", (*PROJECT, "docs/*")),
)


def kinds() -> list[str]:
    """The kinds of pages, in the order of the navigation."""
    return list(dict.fromkeys(shelf.kind for shelf in SHELVES))


def sources(root: Path) -> list[PurePosixPath]:
    """The Markdown files that become pages, by their path in the tree."""
    found = [root / f"{name}.md" for name in PROJECT]
    found += sorted((root / DOCS).rglob("*.md"))
    return [PurePosixPath(path.relative_to(root).as_posix()) for path in found if path.exists()]


def place_of(source: PurePosixPath) -> tuple[int, int]:
    """The number of a page's shelf, and its place there. A name counts before a pattern."""
    name = str(source.with_suffix(""))
    for is_pattern in (False, True):
        for number, index, pattern in _names():
            # A star does not reach into folders below.
            same_folder = name.count("/") == pattern.count("/")
            if ("*" in pattern) == is_pattern and same_folder and fnmatch.fnmatchcase(name, pattern):
                return number, index
    raise ValueError(f"no shelf has a place for {source}")


def _names() -> Iterator[tuple[int, int, str]]:
    for number, shelf in enumerate(SHELVES):
        for index, pattern in enumerate(shelf.names):
            yield number, index, pattern


def in_order(found: list[PurePosixPath]) -> list[PurePosixPath]:
    """The pages in the order of reading."""
    return sorted(found, key=lambda source: (*place_of(source), str(source)))


def shelf_of(source: PurePosixPath) -> Shelf:
    """The shelf on which a page stands."""
    return SHELVES[place_of(source)[0]]


def address_of(source: PurePosixPath) -> PurePosixPath:
    """Where a page is in the site: `docs/howto/kafka.md` is `howto/kafka.html`."""
    inside = source.relative_to(DOCS) if source.is_relative_to(DOCS) else PurePosixPath("project", source.name.lower())
    return inside.with_suffix(".html")
