"""`headgate connectors new`: a package with a connector to begin with.

What it makes lies next to this file, in `templates/connector`. Names are put in where the templates have them; nothing
else of them is changed, so a template reads like the file that it becomes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from headgate import __version__
from headgate.connectors import plugins
from headgate.errors import ConfigError, Refused

NAME = re.compile(r"[a-z][a-z0-9]*(?:-[a-z0-9]+)*")
LONGEST = 30
TEMPLATES = {
    "pyproject.toml": "pyproject.toml",
    "README.md": "README.md",
    "connector.py": "headgate_NAME.py",
    "tests.py": "test_headgate_NAME.py",
}


@dataclass(frozen=True, slots=True)
class Made:
    """What was made."""

    folder: Path
    files: list[str]


def make(name: str, folder: str | None = None) -> Made:
    """Make the package. Raises ConfigError for a name that cannot be one, and Refused where something is already."""
    if len(name) > LONGEST or NAME.fullmatch(name) is None:
        hint = f"lower case letters, digits and single dashes, at most {LONGEST}: my-system"
        raise ConfigError(f"{name[:100]!r} cannot be the name of a connector", hint=hint)
    if name in plugins.names():
        raise Refused(f"a connector {name!r} is installed already", hint="choose another name")
    at = Path(folder or f"headgate-{name}")
    try:
        at.mkdir(parents=True)
    except FileExistsError:
        raise Refused(f"{at} exists already", hint="name another folder with --folder") from None
    except OSError as error:
        raise ConfigError(f"{at} cannot be made: {error.strerror}") from None
    module = name.replace("-", "_")
    words = {
        "@NAME@": name,
        "@MODULE@": f"headgate_{module}",
        "@VERSION@": __version__,
    }
    files = []
    for template, file in TEMPLATES.items():
        text = (resources.files("headgate.cli") / "templates" / "connector" / f"{template}.txt").read_text("utf-8")
        for word, value in words.items():
            text = text.replace(word, value)
        files.append(file.replace("NAME", module))
        (at / files[-1]).write_text(text, "utf-8")
    return Made(at, sorted(files))
