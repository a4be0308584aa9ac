"""Markdown as our documents use it, read and rendered. What a page may not have becomes a problem with its line."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import PurePosixPath

from markdown_it import MarkdownIt
from markdown_it.renderer import RendererHTML
from markdown_it.token import Token
from markdown_it.utils import EnvType, OptionsDict

from handbook import code

COMMENT = re.compile(r"\s*<!--.*?-->\s*", re.DOTALL)
SUMMARY_LENGTH = 160


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that is wrong with a page."""

    source: PurePosixPath
    line: int
    message: str

    def __str__(self) -> str:
        return f"{self.source}:{self.line}: {self.message}"


@dataclass(frozen=True, slots=True)
class Heading:
    """A heading, and the anchor that leads to it."""

    level: int
    text: str
    anchor: str


@dataclass(frozen=True, slots=True)
class Section:
    """What stands under a heading, as plain text: what a search finds."""

    heading: Heading
    text: str


@dataclass(slots=True)
class Document:
    """One file, read. Its links are changed in place before it is rendered."""

    source: PurePosixPath
    tokens: list[Token]
    headings: list[Heading] = field(default_factory=list)
    sections: list[Section] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)

    @property
    def title(self) -> str:
        """Its first heading."""
        return self.headings[0].text if self.headings else self.source.stem

    @property
    def anchors(self) -> set[str]:
        """What may stand after a `#` in an address of this page."""
        return {heading.anchor for heading in self.headings}

    @property
    def summary(self) -> str:
        """Its first sentences, for lists of pages and for search engines."""
        for before, token in zip(self.tokens, self.tokens[1:], strict=False):
            if before.type == "paragraph_open":
                return shorten(plain(token))
        return ""

    def inner(self) -> Iterator[tuple[Token, int]]:
        """Every token, those within a line too, with its line. Where the parser says none, it is that of what encloses
        it."""
        line = 1
        for block in self.tokens:
            line = block.map[0] + 1 if block.map else line
            yield block, line
            for token in block.children or []:
                yield token, line

    def links(self) -> Iterator[tuple[Token, str, int]]:
        """The tokens that have an address, the attribute in which they have it, and their line."""
        for token, line in self.inner():
            if token.type in ("link_open", "image"):
                yield token, "href" if token.type == "link_open" else "src", line


def shorten(text: str) -> str:
    """Whole sentences up to a length, or else whole words."""
    if len(text) <= SUMMARY_LENGTH:
        return text
    cut = text[:SUMMARY_LENGTH]
    end = cut.rfind(". ")
    return cut[: end + 1] if end > SUMMARY_LENGTH / 3 else cut.rsplit(" ", 1)[0].rstrip(",;:(") + " …"


def slug(text: str, taken: set[str]) -> str:
    """The anchor of a heading, as code hosts make it, so that links work there and here."""
    first = anchor = re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-")
    number = 0
    while anchor in taken:
        number += 1
        anchor = f"{first}-{number}"
    return anchor


def plain(token: Token) -> str:
    """The text of an inline token, without its marks."""
    texts = {"text": lambda child: child.content, "code_inline": lambda child: child.content}
    breaks = {"softbreak": " ", "hardbreak": " "}
    children = token.children or []
    return "".join(
        texts[child.type](child) if child.type in texts else breaks.get(child.type, "") for child in children
    )


def parser() -> MarkdownIt:
    """CommonMark with tables. HTML is told apart, so that it can be refused."""
    made = MarkdownIt("commonmark", {"html": True}).enable("table")
    rules: dict[str, Callable[..., str]] = {
        "fence": _fence,
        "code_block": _fence,
        "table_open": lambda *_: '<div class="wide" tabindex="0"><table>\n',
        "table_close": lambda *_: "</table></div>\n",
        "heading_close": _heading_close,
    }
    for name, rule in rules.items():
        made.add_render_rule(name, rule)
    return made


def read(source: PurePosixPath, text: str) -> Document:
    """A page, with what is wrong with it by itself."""
    document = Document(source, parser().parse(text))
    _refuse_html(document)
    _read_headings(document)
    _drop_empty_heads(document.tokens)
    if [heading.level for heading in document.headings].count(1) != 1 or document.headings[0].level != 1:
        document.problems.append(Problem(source, 1, "a page has one title, and begins with it"))
    return document


def render(document: Document) -> str:
    """The page's HTML."""
    made = parser()
    return str(made.renderer.render(document.tokens, made.options, {}))


def _refuse_html(document: Document) -> None:
    """Comments are left out; anything else would be shown differently in every place that shows the file."""
    for token, line in document.inner():
        if token.type in ("html_block", "html_inline"):
            if not COMMENT.fullmatch(token.content):
                document.problems.append(Problem(document.source, line, f"HTML: {token.content.strip()[:60]}"))
            token.content = ""


def _read_headings(document: Document) -> None:
    """Gives headings their anchors, and divides the text by them."""
    taken: set[str] = set()
    texts: list[str] = []
    for index, token in enumerate(document.tokens):
        if token.type == "heading_open":
            text = plain(document.tokens[index + 1])
            anchor = slug(text, taken)
            taken.add(anchor)
            token.attrSet("id", anchor)
            _close_section(document, texts)
            document.headings.append(Heading(int(token.tag[1]), text, anchor))
        elif token.type == "inline" and document.tokens[index - 1].type != "heading_open":
            texts.append(plain(token))
        elif token.type in ("fence", "code_block"):
            texts.append(" ".join(token.content.split()))
    _close_section(document, texts)


def _close_section(document: Document, texts: list[str]) -> None:
    if document.headings:
        document.sections.append(Section(document.headings[-1], " ".join(filter(None, texts))))
    texts.clear()


def _drop_empty_heads(tokens: list[Token]) -> None:
    """Markdown has no table without a head; a screen reader says an empty one all the same."""
    opens = [index for index, token in enumerate(tokens) if token.type == "thead_open"]
    for begin in reversed(opens):
        end = next(index for index in range(begin, len(tokens)) if tokens[index].type == "thead_close")
        if not any(token.content for token in tokens[begin:end]):
            del tokens[begin : end + 1]


def _fence(_self: RendererHTML, tokens: Sequence[Token], index: int, _options: OptionsDict, _env: EnvType) -> str:
    token = tokens[index]
    return code.block(token.content, token.info.strip())


def _heading_close(
    _self: RendererHTML, tokens: Sequence[Token], index: int, _options: OptionsDict, _env: EnvType
) -> str:
    token = tokens[index]
    if token.tag == "h1":
        return "</h1>\n"
    anchor = tokens[index - 2].attrGet("id")
    label = escape(f"Link to: {plain(tokens[index - 1])}")
    return f'<a class="anchor" href="#{anchor}" aria-label="{label}">#</a></{token.tag}>\n'
