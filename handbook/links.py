"""Where links lead: to pages of the site, to files of the tree that the site shows, or out of it."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from urllib.parse import unquote, urlsplit

from handbook.markdown import Document, Problem
from handbook.shelves import DOCS, address_of

PICTURES = {".png", ".svg", ".jpg", ".webp"}
OUTSIDE = {"http", "https", "mailto"}


@dataclass(slots=True)
class Tree:
    """All pages, and what else of the tree they lead to."""

    root: Path
    documents: dict[PurePosixPath, Document]
    shown: set[PurePosixPath] = field(default_factory=set)  # Files that get a page because a page leads to them.
    listed: dict[PurePosixPath, list[PurePosixPath]] = field(default_factory=dict)  # Folders, with their files.
    pictures: set[PurePosixPath] = field(default_factory=set)

    def folders(self) -> set[PurePosixPath]:
        """Folders of pages. Each has a list of them."""
        found = {source.parent for source in self.documents if source.is_relative_to(DOCS)} - {DOCS}
        return found | {parent for folder in found for parent in folder.parents if DOCS in parent.parents}


def relative(target: PurePosixPath, page: PurePosixPath) -> str:
    """The address of something in the site, as a page in the site names it."""
    return os.path.relpath(target, page.parent)


def list_of(folder: PurePosixPath) -> PurePosixPath:
    """Where the list of a folder's pages is."""
    return folder.relative_to(DOCS) / "index.html"


def shown_at(path: PurePosixPath) -> PurePosixPath:
    """Where a file of the tree is shown."""
    return PurePosixPath("files", f"{path}.html")


def listed_at(folder: PurePosixPath) -> PurePosixPath:
    """Where the files of a folder of the tree are listed."""
    return PurePosixPath("files", folder, "index.html")


def picture_at(path: PurePosixPath) -> PurePosixPath:
    """Where a picture is."""
    return PurePosixPath("files", path)


def resolve_all(tree: Tree) -> None:
    """Makes every link of every page one of the site. Those that lead nowhere become problems of their page."""
    for document in tree.documents.values():
        for token, name, line in document.links():
            written = str(token.attrGet(name) or "")
            if urlsplit(written).scheme in OUTSIDE and name == "href":
                token.attrSet("rel", "noopener noreferrer")
                continue
            found = _resolve(tree, document, written)
            if isinstance(found, Problem):
                document.problems.append(Problem(found.source, line, found.message))
            else:
                token.attrSet(name, found)


def _resolve(tree: Tree, document: Document, written: str) -> str | Problem:
    parts = urlsplit(written)
    if parts.scheme or parts.netloc or parts.query or parts.path.startswith("/"):
        return Problem(document.source, 0, f"{written}: a link names a file of the tree, relative to the page")
    here = document.source
    target = PurePosixPath(os.path.normpath(here.parent / unquote(parts.path))) if parts.path else here
    page = address_of(here)
    if target in tree.documents:
        if parts.fragment and parts.fragment not in tree.documents[target].anchors:
            return Problem(here, 0, f"{written}: no heading of {target} has this anchor")
        path = relative(address_of(target), page) if parts.path else ""
        return f"{path}#{parts.fragment}" if parts.fragment else path
    if parts.fragment:
        return Problem(here, 0, f"{written}: only a page has anchors")
    return _resolve_other(tree, target, page) or Problem(here, 0, f"{written} leads nowhere")


def is_by_the_way(path: PurePosixPath) -> bool:
    """Whether a file is hidden, or made by a program, and nobody wants to read it."""
    return any(part.startswith((".", "__pycache__")) for part in path.parts)


def _resolve_other(tree: Tree, target: PurePosixPath, page: PurePosixPath) -> str | None:
    """A folder, a picture, or a file that is shown as it is."""
    if target in tree.folders():
        return relative(list_of(target), page)
    path = tree.root / target
    if ".." in target.parts or not path.exists() or path == tree.root:
        return None
    if path.is_dir():
        files = [PurePosixPath(found.relative_to(tree.root).as_posix()) for found in sorted(path.rglob("*"))]
        tree.listed[target] = [file for file in files if (tree.root / file).is_file() and not is_by_the_way(file)]
        tree.shown.update(tree.listed[target])
        return relative(listed_at(target), page)
    if target.suffix in PICTURES:
        tree.pictures.add(target)
        return relative(picture_at(target), page)
    tree.shown.add(target)
    return relative(shown_at(target), page)
