"""The files of the site, made from the pages."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from handbook import code, links, shelves
from handbook.links import Tree
from handbook.markdown import Document, Heading, Problem, read, render

HERE = Path(__file__).parent
ICON = PurePosixPath("src/headgate/web/console/static/icon.svg")  # The console's.
HOME = PurePosixPath("index.html")
LOST = PurePosixPath("404.html")
LANGUAGES = {".py": "python", ".json": "json", ".yaml": "yaml", ".toml": "toml", ".sql": "sql", ".sh": "bash"}
FEWEST_ON_PAGE = 3  # A shorter list of a page's headings helps nobody.


class Broken(Exception):
    """Pages have problems; nothing was made."""

    def __init__(self, problems: list[Problem]) -> None:
        super().__init__("\n".join(str(problem) for problem in problems))
        self.problems = problems


@dataclass(frozen=True, slots=True)
class Entry:
    """A page as lists and the navigation show it."""

    title: str
    address: PurePosixPath
    kind: str
    shelf: str
    summary: str
    source: PurePosixPath


def build(root: Path, base: str = "") -> dict[PurePosixPath, bytes]:
    """Every file of the site by its path, from the documents of a tree.

    `base` is the path under which the site is served. Only the page for addresses that do not exist needs it, because a
    server shows that page at any of them.
    """
    return Site(_read(root), base).files()


def _read(root: Path) -> Tree:
    """All pages in the order of reading, with links that lead somewhere."""
    ordered = shelves.in_order(shelves.sources(root))
    tree = Tree(root, {source: read(source, (root / source).read_text("utf-8")) for source in ordered})
    links.resolve_all(tree)
    problems = [problem for document in tree.documents.values() for problem in document.problems]
    if problems:
        raise Broken(problems)
    return tree


class Site:
    """Pages in their frame, and what they need."""

    def __init__(self, tree: Tree, base: str) -> None:
        self._tree = tree
        self._base = base
        self._entries = [_entry(document) for document in tree.documents.values()]
        self._templates = Environment(
            loader=FileSystemLoader(HERE / "templates"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )

    def files(self) -> dict[PurePosixPath, bytes]:
        """Everything."""
        made: dict[PurePosixPath, bytes] = {}
        made.update(self._pages())
        made.update(self._lists())
        made.update(self._shown())
        made[LOST] = self._framed(
            "lost.html", LOST, "No such page", "There is no page at this address.", root=self._base
        )
        made.update(self._assets())
        return made

    def _pages(self) -> Iterator[tuple[PurePosixPath, bytes]]:
        documents = list(self._tree.documents.values())
        for number, (entry, document) in enumerate(zip(self._entries, documents, strict=True)):
            yield (
                entry.address,
                self._framed(
                    "page.html",
                    entry.address,
                    entry.title,
                    entry.summary,
                    here=entry,
                    body=Markup(render(document)),
                    headings=_on_page(document),
                    before=self._entries[number - 1] if number else None,
                    after=self._entries[number + 1] if number + 1 < len(documents) else None,
                ),
            )

    def _lists(self) -> Iterator[tuple[PurePosixPath, bytes]]:
        """One for each folder that has no page with that address."""
        taken = {entry.address for entry in self._entries}
        for folder in sorted(self._tree.folders()):
            address = links.list_of(folder)
            inside = [entry for entry in self._entries if entry.source.is_relative_to(folder)]
            if address not in taken:
                kind = Counter(entry.kind for entry in inside).most_common(1)[0][0]
                title = kind if folder.parent == shelves.DOCS else folder.name.capitalize()
                here = Entry(title, address, kind, "", f"{title}: all pages.", folder)
                yield address, self._framed("list.html", address, title, here.summary, here=here, entries=inside)

    def _shown(self) -> Iterator[tuple[PurePosixPath, bytes]]:
        """Files and folders of the tree that pages lead to, and pictures."""
        for folder, inside in sorted(self._tree.listed.items()):
            address = links.listed_at(folder)
            entries = [Entry(str(path), links.shown_at(path), "", "", "", path) for path in inside]
            yield address, self._framed("list.html", address, f"{folder}/", f"The folder {folder}.", entries=entries)
        for path in sorted(self._tree.shown):
            text = (self._tree.root / path).read_text("utf-8", errors="replace")
            body = Markup(code.block(text, LANGUAGES.get(path.suffix, "text")))
            address = links.shown_at(path)
            yield address, self._framed("file.html", address, str(path), f"The file {path}.", body=body)
        for path in sorted(self._tree.pictures):
            yield links.picture_at(path), (self._tree.root / path).read_bytes()

    def _framed(
        self,
        template: str,
        address: PurePosixPath,
        title: str,
        summary: str,
        *,
        root: str | None = None,
        **more: object,
    ) -> bytes:
        """A page in the frame that all share. `root` is how it names the top of the site."""
        up = "../" * (len(address.parts) - 1) if root is None else root
        values = {"title": title, "summary": summary, "root": up, "navigation": self._navigation(), "here": None}
        text = self._templates.get_template(template).render({**values, **more})
        return text.encode()

    def _navigation(self) -> list[tuple[str, list[tuple[str, list[Entry]]]]]:
        """Kinds, the shelves of each, and the pages on those."""
        found: dict[str, dict[str, list[Entry]]] = {}
        for entry in self._entries:
            found.setdefault(entry.kind, {}).setdefault(entry.shelf, []).append(entry)
        return [(kind, list(found[kind].items())) for kind in shelves.kinds() if kind in found]

    def _assets(self) -> Iterator[tuple[PurePosixPath, bytes]]:
        for path in sorted((HERE / "assets").iterdir()):
            yield PurePosixPath("assets", path.name), path.read_bytes()
        yield PurePosixPath("assets", "texts.js"), self._texts().encode()
        yield PurePosixPath("assets", "icon.svg"), (self._tree.root / ICON).read_bytes()

    def _texts(self) -> str:
        """What a search looks through. A script and not JSON, because a page from a disk may not fetch."""
        pages = [[str(entry.address), entry.title, entry.kind] for entry in self._entries]
        sections = [
            [number, section.heading.anchor if section.heading.level > 1 else "", section.heading.text, section.text]
            for number, document in enumerate(self._tree.documents.values())
            for section in document.sections
        ]
        texts = json.dumps({"pages": pages, "sections": sections}, ensure_ascii=False, separators=(",", ":"))
        # Two characters end a line in older scripts, and no line in JSON.
        texts = texts.replace("\u2028", " ").replace("\u2029", " ")
        return f"globalThis.headgateTexts = {texts};\n"


def _entry(document: Document) -> Entry:
    source = document.source
    shelf = shelves.shelf_of(source)
    return Entry(document.title, shelves.address_of(source), shelf.kind, shelf.title, document.summary, source)


def _on_page(document: Document) -> list[Heading]:
    found = [heading for heading in document.headings if heading.level == 2]
    return found if len(found) >= FEWEST_ON_PAGE else []
