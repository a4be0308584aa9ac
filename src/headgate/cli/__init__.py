"""The command line: this module only assembles; each noun is its own module, imported when it is called."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from headgate import __version__
from headgate.cli.call import command, show_help
from headgate.cli.failures import guarded, tolerate_any_terminal
from headgate.cli.order import in_order
from headgate.cli.output import say

_HERE = "headgate.cli"
AT_ONCE = ("dump", "dumps")  # Taking the interpreter apart, object by object, is time that somebody waits for.


class Root(TyperGroup):
    """However a command ends, it ends with an exit code and at most a few lines."""

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,
        windows_expand_args: bool = True,
        **extra: Any,
    ) -> Any:
        """Run, and exit."""
        run = super().main
        args = in_order(sys.argv[1:] if args is None else args, is_noun)
        raise SystemExit(guarded(lambda: run(args, "headgate", complete_var, False, windows_expand_args, **extra)))


def _version(wanted: bool) -> None:
    if wanted:
        say(f"headgate {__version__}")
        raise typer.Exit


def root(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", is_eager=True, callback=_version, help="The version.")] = False,
) -> None:
    """Headgate: a connector runtime that needs nothing but PostgreSQL.

    --url, --token, --ca and --json may stand before a command or after it.
    """
    show_help(context)


@dataclass(frozen=True, slots=True)
class Entry:
    """A word that may follow `headgate`, and where what it means is found."""

    module: str
    name: str = "app"  # A noun's commands; else a function, which is one command.
    more: tuple[str, ...] = ()  # Modules that add their commands to the noun's.
    is_plain: bool = False  # It has none of the options that commands share.
    options: Mapping[str, bool] = field(default_factory=dict)  # How it is registered.

    def add(self, app: typer.Typer, word: str) -> None:
        """Import it, and add it to the commands."""
        for module in self.more:
            import_module(f"{_HERE}.{module}")
        found = getattr(import_module(f"{_HERE}.{self.module}"), self.name)
        if self.name == "app":
            app.add_typer(found, name=word)
        elif self.is_plain:
            app.command(word)(found)
        else:
            command(app, word, **self.options)(found)


# In the order of the help.
ENTRIES = {
    "up": Entry("up", "up", is_plain=True),
    "ds": Entry("ds", more=("drafts", "history", "tap", "testing")),
    "plan": Entry("apply", "plan"),
    "apply": Entry("apply", "apply"),
    "import": Entry("apply", "import_"),
    "export": Entry("apply", "export"),
    "schema": Entry("apply", "schema", options={"asks_node": False}),
    "explain": Entry("ds", "explain"),
    "events": Entry("history", "all_events"),
    "logs": Entry("history", "all_logs"),
    "top": Entry("top", "top"),
    "console": Entry("console", "console"),
    "fixtures": Entry("fixtures"),
    "streams": Entry("streams"),
    "dlq": Entry("dlq"),
    "groups": Entry("groups"),
    "nodes": Entry("nodes"),
    "dump": Entry("dump", "dump", options={"may_ask_node": True}),
    "dumps": Entry("dumps"),
    "installation": Entry("installation"),
    "secrets": Entry("secrets"),
    "tokens": Entry("tokens"),
    "allow": Entry("allow"),
    "notifications": Entry("notifications"),
    "connectors": Entry("connectors"),
    "sql": Entry("sql", "sql", is_plain=True),
    "doctor": Entry("doctor", "doctor"),
    "support-bundle": Entry("support", "support_bundle"),
    "init": Entry("init", "init", options={"asks_node": False}),
    "completion": Entry("completion", "completion", options={"asks_node": False}),
}


def is_noun(word: str) -> bool:
    """Whether what is to be done comes behind this word: `headgate ds list`."""
    return word in ENTRIES and ENTRIES[word].name == "app"


def assemble(words: Iterable[str]) -> typer.Typer:
    """The commands of these words. Each that is there costs the start some milliseconds, whether it is called or
    not."""
    app = typer.Typer(
        cls=Root,
        invoke_without_command=True,
        add_completion=False,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["--help", "-h"]},
    )
    app.callback()(root)
    for word in words:
        ENTRIES[word].add(app, word)
    return app


@cache
def _whole() -> typer.Typer:
    return assemble(ENTRIES)


def __getattr__(name: str) -> typer.Typer:
    """`headgate.cli.app`, all commands, is made when it is first asked for."""
    if name == "app":
        return _whole()
    raise AttributeError(name)


def main() -> None:
    """The entry point. Only the command that is called is made; anything else, such as help, needs them all."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # numpy would start threads that nothing here uses.
    tolerate_any_terminal()
    line = in_order(sys.argv[1:], is_noun)
    word = line[0] if line else ""
    if word in AT_ONCE:
        gc.disable()  # What is imported stays. `dumping.collect` has it begin.
    app = assemble([word]) if word in ENTRIES else _whole()
    try:
        app()
    except SystemExit as end:
        if word not in AT_ONCE:
            raise
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):
                stream.flush()
        os._exit(end.code if isinstance(end.code, int) else 0)
