"""`headgate completion`: the script that has a shell complete commands, options and names.

The script calls us with the line up to the cursor, and we say what may stand there. Names of datasources, streams and
nodes are asked of the node that a command would ask; if it does not answer at once there are none, and nothing is said.
"""

from __future__ import annotations

import os
import re
import shlex
import threading
from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import Annotated, Any, Literal

import typer

from headgate.cli.call import Call
from headgate.cli.client import Client
from headgate.cli.order import ALONE, WITH_VALUE, in_order

PATIENCE_S = 1.5  # A person who has pressed Tab waits for it.
_PLAIN = re.compile(r"[\w.~:@=+-]+")  # A node may be called anything; a shell must not be handed what it would obey.

_SCRIPTS = {
    "bash": """_headgate() {
    local IFS=$'\\n'
    COMPREPLY=($(headgate completion bash --line "${COMP_LINE:0:COMP_POINT}" 2>/dev/null))
}
complete -o default -F _headgate headgate
""",
    "zsh": """#compdef headgate
_headgate() {
    local -a found
    found=("${(@f)$(headgate completion zsh --line "${(j: :)${(@q)words[1,CURRENT]}}" 2>/dev/null)}")
    found=(${found:#})
    if (( $#found )); then compadd -a found; else _files; fi
}
compdef _headgate headgate
""",
    "fish": """function __headgate_words
    set -l found (headgate completion fish --line (commandline -cp | string collect) 2>/dev/null)
    if test (count $found) -gt 0
        printf '%s\\n' $found
    else
        __fish_complete_path (commandline -ct)
    end
end
complete -c headgate -f -a '(__headgate_words)'
""",
}

# What an argument is, by the word that stands for it, and where its names are.
_LISTS = {"NAME": "datasources", "DATASOURCE": "datasources", "STREAM": "streams", "NODE": "nodes"}
_OF_OTHERS = ("connectors", "secrets", "tokens", "allow")  # Nouns whose NAME is not that of a datasource.


def completion(
    call: Call,
    shell: Annotated[Literal["bash", "zsh", "fish"], typer.Argument(metavar="SHELL", help="bash, zsh or fish.")],
    line: Annotated[
        str | None, typer.Option("--line", metavar="TEXT", help="Say what may stand at the end of this line.")
    ] = None,
) -> None:
    """Print the script that has a shell complete commands, options and names of datasources."""
    if line is None:
        call.say({"shell": shell, "script": _SCRIPTS[shell]}, _SCRIPTS[shell])
        return
    words = split(line)
    found = candidates(words, Names(words))
    if shell == "bash":  # It takes a colon or an equals sign for the end of a word, and wants what is behind it.
        begun = len(re.match(r"(.*[:=])?", words[-1] if words else "")[0])  # type: ignore[index]
        found = [one[begun:] for one in found]
    if found or call.as_json:
        call.say({"words": found}, "\n".join(found))


def split(line: str) -> list[str]:
    """The words of a line, without the program's name; the last one is being written, and may be empty."""
    for closing in ("", "'", '"'):
        try:
            words = shlex.split(line + closing)
        except ValueError:
            continue
        if not closing and (not line or line[-1].isspace()):
            words.append("")
        return words[1:]
    return []


def candidates(words: list[str], names: Callable[[str], Iterable[str]]) -> list[str]:
    """What the last word may be, given those before it. `names` tells what things of a kind are called."""
    from headgate.cli import app, is_noun

    before, current = in_order([*words[:-1], "\0"], is_noun), words[-1] if words else ""
    before = before[: before.index("\0")] if "\0" in before else before
    found, path = _command(typer.main.get_command(app), before)
    if hasattr(found, "commands"):
        options = _options(found) if path else {"--help", "--version", *WITH_VALUE, *ALONE}
        possible: Iterable[str] = options if current.startswith("-") else found.commands
    elif (option := _awaited(found, before)) is not None:
        possible = _choices(option)
    elif current.startswith("-"):
        possible = _options(found)
    else:
        possible = _arguments(found, before[len(path) :], path, names)
    return sorted(one for one in set(possible) if one.startswith(current))


def _command(root: Any, words: list[str]) -> tuple[Any, list[str]]:
    """The command that these words name, or the noun that they got to; and the words that did."""
    found, path = root, []
    for word in words:
        if not hasattr(found, "commands"):
            break
        if word not in found.commands:
            continue  # An option of the noun.
        found = found.commands[word]
        path.append(word)
    return found, path


def _options(command: Any) -> set[str]:
    found = {name for one in command.params for name in (*one.opts, *one.secondary_opts) if name.startswith("--")}
    return {"--help", *found}


def _awaited(command: Any, before: list[str]) -> Any:
    """The option whose value is being written, if there is one."""
    if not before:
        return None
    return next((one for one in command.params if before[-1] in one.opts and not getattr(one, "is_flag", True)), None)


def _choices(param: Any) -> list[str]:
    return list(map(str, getattr(param.type, "choices", ())))


def _arguments(command: Any, given: list[str], path: list[str], names: Callable[[str], Iterable[str]]) -> Iterable[str]:
    """What the next argument may be."""
    takes = {name for one in command.params if not getattr(one, "is_flag", True) for name in one.opts}
    plain = [
        word for word, last in zip(given, ["", *given], strict=False) if not word.startswith("-") and last not in takes
    ]
    arguments = [one for one in command.params if one.param_type_name == "argument"]
    if not arguments:
        return ()
    one = arguments[min(len(plain), len(arguments) - 1)]
    if len(plain) >= len(arguments) and one.nargs != -1:
        return ()
    if choices := _choices(one):
        return choices
    kind = _LISTS.get(str(one.metavar or "").strip("[]. "))
    return names(kind) if kind and path[0] not in _OF_OTHERS else ()


class Names:
    """Asks the node that a command with these words would ask. Silent if it is away."""

    def __init__(self, words: list[str]) -> None:
        self._given = {option: next((b for a, b in pairwise(words) if a == option), None) for option in WITH_VALUE}

    def __call__(self, kind: str) -> list[str]:
        """The names of all things of this kind, as far as they are known in time."""
        found: list[str] = []
        asking = threading.Thread(target=lambda: found.extend(self._ask(kind)), daemon=True)
        asking.start()
        asking.join(PATIENCE_S)
        return list(found)

    def _ask(self, kind: str) -> list[str]:
        url, token, ca = (
            self._given[option] or os.environ.get(f"HEADGATE_{option[2:].upper()}") for option in WITH_VALUE
        )
        try:
            answer = Client(url, token, ca).send("GET", f"/api/{kind}", answer_s=PATIENCE_S)
            items = answer.json()["items"]
            return [str(one["name"]) for one in items if _PLAIN.fullmatch(str(one["name"]))]
        except Exception:  # Whatever it is, somebody is writing a line.
            return []
