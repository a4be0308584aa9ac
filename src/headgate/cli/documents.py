"""Documents on their way in: from a file, from stdin, or from an editor."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from headgate.errors import ConfigError, HeadgateError, NotFound, Problem

STDIN = "-"

File = Annotated[str, typer.Argument(metavar="FILE", help="YAML or JSON with `datasources:`; - is stdin.")]
DocumentFile = Annotated[
    str | None,
    typer.Option(
        "--file", "-f", metavar="FILE", help="YAML or JSON: one document, or `datasources:` with it; - is stdin."
    ),
]


def read_text(file: str) -> str:
    """The text of a file, or of stdin."""
    try:
        return sys.stdin.read() if file == STDIN else Path(file).read_text("utf-8")
    except FileNotFoundError:
        raise NotFound(f"file {file} does not exist") from None
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file} is not UTF-8: {error.reason} at byte {error.start}") from None
    except OSError as error:
        raise HeadgateError(f"{file} cannot be read: {error.strerror}") from None


def parse(text: str, file: str) -> Any:
    """YAML or JSON as plain data, read as a node reads it: dates stay text, and no key may be there twice."""
    if text.lstrip().startswith("{"):
        try:
            return json.loads(text)
        except ValueError:
            pass  # It may still be YAML in flow style; if not, YAML's error has a line and a column too.
    from headgate.datasources.documents import parse_yaml

    return parse_yaml(text, file)


@dataclass(frozen=True, slots=True)
class Written:
    """The document of one datasource, and where it stands in its file."""

    document: dict[str, Any]
    text: str
    file: str
    path: str  # Empty if it is the whole file.

    def located(self, problems: list[Problem]) -> list[Problem]:
        """The problems with their lines and columns."""
        from headgate.datasources.lines import located

        return located(problems, self.text, "stdin" if self.file == STDIN else self.file, self.path)


def read_one(file: str, name: str) -> dict[str, Any]:
    """The document of this datasource: the whole file, or its entry under `datasources`."""
    return pick(read_text(file), file, name)


def find_one(text: str, file: str, name: str) -> Written:
    """The document of this datasource in a text, unchecked."""
    found, path = parse(text, file), ""
    if isinstance(found, dict) and isinstance(found.get("datasources"), dict):
        path = f"datasources.{name}"
        among = found["datasources"]
        if name not in among:
            names = ", ".join(map(str, among)) or "none"
            raise NotFound(f"datasource {name!r} does not exist in {file}", hint=f"it has: {names}")
        found = among[name]
    if not isinstance(found, dict):
        raise ConfigError([Problem(file, "must be a mapping of source, sink and so on")])
    return Written(found, text, file, path)


def pick(text: str, file: str, name: str) -> dict[str, Any]:
    """One document of a text. Its shape is checked here: some of what YAML can say is lost in JSON."""
    from headgate.datasources.documents import read_one as check

    written = find_one(text, file, name)
    try:
        check(name, written.document)
    except ConfigError as error:
        raise ConfigError(written.located(error.problems)) from None
    return written.document


def edit(text: str, name: str, suffix: str = ".yaml") -> tuple[str, Path]:
    """Let a person edit the text. Returns it, and the file that keeps it until the caller removes it."""
    editor = os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi"
    descriptor, path = tempfile.mkstemp(prefix=f"{name}-", suffix=suffix)
    with os.fdopen(descriptor, "w", encoding="utf-8") as out:
        out.write(text)
    file = Path(path)
    try:
        ended = subprocess.run([*shlex.split(editor), path]).returncode
    except (OSError, ValueError) as error:
        file.unlink()
        raise HeadgateError(
            f"the editor {editor!r} does not start: {error}", hint="set EDITOR, or use --file"
        ) from None
    if ended != 0:
        raise HeadgateError(f"the editor {editor!r} ended with code {ended}", hint=f"your text is in {file}")
    return read_text(path), file
