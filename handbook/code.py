"""Blocks of code as HTML: coloured where the language is known, and sessions at a terminal told apart."""

from __future__ import annotations

import re
from html import escape

from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import get_lexer_by_name
from pygments.util import ClassNotFound

PROMPT = "$ "
MOST_COLOURED = 60_000  # Longer texts are shown plainly: a coloured letter costs several bytes.
STATE = re.compile(r'state "(?P<name>[^"]+)" as (?P<id>\w+)')
ARROW = re.compile(r"(?P<before>\S+) --> (?P<after>\w+): (?P<why>.+)")


def block(text: str, language: str) -> str:
    """A block as the page shows it."""
    if language == "mermaid":
        return transitions(text)
    if not language and any(line.startswith(PROMPT) for line in text.splitlines()):
        return f'<pre class="session"><code>{session(text)}</code></pre>\n'
    return f"<pre><code>{coloured(text, language)}</code></pre>\n"


def session(text: str) -> str:
    """Commands and what they print. A command goes on where its line ends with a backslash."""
    lines, goes_on = [], False
    for line in text.splitlines():
        if line.startswith(PROMPT):
            lines.append(f'<span class="prompt">$ </span><span class="typed">{escape(line[len(PROMPT) :])}</span>')
            goes_on = line.endswith("\\")
        elif goes_on:
            lines.append(f'<span class="typed more">{escape(line)}</span>')
            goes_on = line.endswith("\\")
        else:
            lines.append(f'<span class="printed">{escape(line)}</span>')
    return "\n".join(lines)


def coloured(text: str, language: str) -> str:
    """The text with a class for each kind of word, or as it is if nobody knows the language."""
    if not language or len(text) > MOST_COLOURED:
        return escape(text)
    try:
        lexer = get_lexer_by_name(language, stripnl=False)
    except ClassNotFound:
        return escape(text)
    return str(highlight(text, lexer, HtmlFormatter(nowrap=True, classprefix="hl-")))


def transitions(text: str) -> str:
    """A diagram of states, as a table: it needs no program that draws, and can be searched."""
    names = {"[*]": "(begin)"} | {found["id"]: found["name"] for found in STATE.finditer(text)}
    rows = [(found["before"], found["why"], found["after"]) for found in ARROW.finditer(text)]
    rows += [("[*]", "", after) for after in re.findall(r"\[\*\] --> (\w+)$", text, re.MULTILINE)]
    rows.sort(key=lambda row: row[0] != "[*]")
    head = "<tr><th>from</th><th>when</th><th>to</th></tr>"
    cells = "".join(
        f"<tr><td>{escape(names.get(before, before))}</td><td>{escape(why)}</td>"
        f"<td>{escape(names.get(after, after))}</td></tr>\n"
        for before, why, after in rows
    )
    return f'<div class="wide" tabindex="0"><table><thead>{head}</thead><tbody>{cells}</tbody></table></div>\n'
