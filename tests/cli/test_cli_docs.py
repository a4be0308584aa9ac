"""The reference of the command line is complete, and names nothing that does not exist."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from headgate.cli import app

PAGE = Path(__file__).parents[2] / "docs/reference/cli.md"
SOURCE = Path(__file__).parents[2] / "src/headgate"
SHARED = {"--url", "--token", "--ca", "--json"}
WITHOUT_NODE = (
    *("headgate up", "headgate sql", "headgate schema", "headgate init", "headgate completion"),
    *("headgate tokens recover", "headgate installation", "headgate connectors new"),
)


def commands(found: Any, path: str = "headgate") -> Iterator[tuple[str, Any]]:
    """Every command that can be run, with what leads to it."""
    for name, one in found.commands.items():
        if hasattr(one, "commands"):
            yield from commands(one, f"{path} {name}")
        else:
            yield f"{path} {name}", one


def options(command: Any) -> set[str]:
    found = {option for param in command.params for option in (*param.opts, *param.secondary_opts)}
    return {option for option in found if option.startswith("--")} - {"--help"}


COMMANDS = dict(commands(get_command(app)))
ROWS = {
    match[2]: match[1] for match in re.finditer(r"^\| `((headgate(?: [a-z][a-z-]*)+)[^`]*)` \|", PAGE.read_text(), re.M)
}


def test_every_command_is_documented_and_every_documented_command_exists() -> None:
    assert set(ROWS) == set(COMMANDS)


@pytest.mark.parametrize("path", COMMANDS)
def test_every_option_of_a_command_is_in_its_row(path: str) -> None:
    documented = set(re.findall(r"--[a-z-]+", ROWS[path]))
    assert documented - SHARED == options(COMMANDS[path]) - SHARED


BY_ON = "headgate dump"  # Asks a node only if it is told to by `--on`.


@pytest.mark.parametrize(
    "path", sorted(path for path in COMMANDS if not path.startswith(WITHOUT_NODE) and path != BY_ON)
)
def test_every_command_has_the_shared_options(path: str) -> None:
    assert options(COMMANDS[path]) >= SHARED


@pytest.mark.parametrize("path", sorted(path for path in COMMANDS if path.startswith(WITHOUT_NODE[1:])))
def test_a_command_that_asks_no_node_is_not_told_which(path: str) -> None:
    assert options(COMMANDS[path]) & SHARED == {"--json"}


def test_a_dump_asks_a_node_only_if_it_is_told_to() -> None:
    assert options(COMMANDS[BY_ON]) & {*SHARED, "--on"} == {"--on", "--token", "--ca", "--json"}


@pytest.mark.parametrize("path", COMMANDS)
def test_every_command_and_every_option_says_what_it_is_for(path: str) -> None:
    command = COMMANDS[path]
    assert command.help
    assert all(getattr(param, "help", None) for param in command.params if param.name != "help")


OF_OTHERS = {"--allow-batch"}  # Of the command `nats`.


def hints() -> Iterator[tuple[str, str]]:
    """Every hint in the sources, with where it is; what is filled in at run time is left out."""
    for path in sorted(SOURCE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.keyword) and node.arg == "hint":
                texts = [one.value for one in ast.walk(node.value) if isinstance(one, ast.Constant)]
                yield f"{path.relative_to(SOURCE)}:{node.value.lineno}", " ".join(map(str, texts))


def test_every_option_that_a_hint_names_is_one_of_some_command() -> None:
    known = set().union(*map(options, COMMANDS.values()), OF_OTHERS)
    named = [(where, option) for where, hint in hints() for option in re.findall(r"--[a-z][a-z-]*", hint)]
    assert len(named) > 20
    assert [(where, option) for where, option in named if option not in known] == []
