"""Every command that a page shows exists, with the options that it shows."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from handbook.markdown import parser
from headgate.cli import app

ROOT = Path(__file__).parent.parent
PAGES = sorted(page for page in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")] if page.name != "CHANGELOG.md")
# In a line: at its beginning, after a pipe, a setting or a bracket, in a folder, or in a container.
COMMAND = re.compile(r"(?:^|[|&;(] ?|\b[A-Z_]+=\S* |\bbin/| -- |\bexec \S+ )headgate ([^|&;)#]*)")
EVERYWHERE = {"--help", "--version"}
FIRST = re.compile(r"(?:--(?:url|token|ca) \S+ |--json )*")  # Options that may stand before a command.


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def shown(text: str) -> Iterator[str]:
    """What follows `headgate` wherever a page shows it as code: at a prompt, in a script, or within a sentence."""
    for token in parser().parse(text):
        if token.type == "fence" and token.info in ("", "bash"):
            is_session = "\n$ " in f"\n{token.content}"
            lines = token.content.replace("\\\n", " ").splitlines()
            for line in (line for line in lines if line.startswith("$ ") or not is_session):
                yield from COMMAND.findall(line.removeprefix("$ "))
        for child in token.children or []:
            if child.type == "code_inline" and child.content.startswith("headgate "):
                yield child.content.removeprefix("headgate ")


def wrong(command: Any, words: list[str]) -> str | None:
    """What is wrong with a command line, as far as its words show it."""
    path = ["headgate"]
    while hasattr(command, "commands") and words:
        word = words.pop(0)
        if word in command.commands:
            command, path = command.commands[word], [*path, word]
        elif re.fullmatch(r"[a-z][a-z-]*", word):
            return f"{' '.join(path)} has no command {word}"
        else:
            words.insert(0, word)
            break
    known = {option for parameter in command.params for option in [*parameter.opts, *parameter.secondary_opts]}
    for word in words:
        option = re.match(r"--[a-z][a-z-]*", word)
        if option and option[0] not in known | EVERYWHERE:
            return f"{' '.join(path)} has no option {option[0]}"
    return None


def words_of(line: str) -> list[str]:
    """Its words, without the signs that say what is optional."""
    plain = FIRST.sub("", line, count=1).replace("/--", " --").replace("\\|", " ")
    return re.sub(r"[\[\]\"'…]|\.\.\.", " ", plain).split()


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_command_that_a_page_shows_exists(page: Path) -> None:
    commands = typer.main.get_command(app)
    found = [(line, wrong(commands, words_of(line))) for line in shown(page.read_text("utf-8"))]
    assert not [(f"headgate {line}", problem) for line, problem in found if problem]


def test_the_test_finds_what_is_wrong() -> None:
    commands = typer.main.get_command(app)
    typed = "$ docker exec headgate headgate nodes lst\n$ headgate secrets set nats --value x"
    session = f"```\n{typed}\nheadgate is what it printed\n```\n"
    text = f"```yaml\na: b\n```\n{session}`headgate ds lsit`, `headgate ds list --json`"
    problems = [wrong(commands, words_of(line)) for line in shown(text)]
    assert problems == [
        "headgate nodes has no command lst",
        "headgate secrets set has no option --value",
        "headgate ds has no command lsit",
        None,
    ]
