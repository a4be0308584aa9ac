"""The command line: this module only assembles; each noun is its own module."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from headgate import __version__
from headgate.cli import (
    allow,
    apply,
    connectors,
    console,
    dlq,
    doctor,
    drafts,
    ds,
    dump,
    dumps,
    fixtures,
    groups,
    history,
    installation,
    nodes,
    secrets,
    streams,
    tap,
    testing,
    tokens,
    top,
)
from headgate.cli.call import command, show_help
from headgate.cli.failures import guarded, tolerate_any_terminal
from headgate.cli.output import say
from headgate.cli.sql import sql
from headgate.cli.up import up

__all__ = ["app", "drafts", "history", "main", "tap", "testing"]  # These modules add their commands to `ds`.


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
        raise SystemExit(guarded(lambda: run(args, "headgate", complete_var, False, windows_expand_args, **extra)))


app = typer.Typer(
    cls=Root,
    invoke_without_command=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["--help", "-h"]},
)


def _version(wanted: bool) -> None:
    if wanted:
        say(f"headgate {__version__}")
        raise typer.Exit


@app.callback()
def root(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", is_eager=True, callback=_version, help="The version.")] = False,
) -> None:
    """Headgate: a connector runtime that needs nothing but PostgreSQL."""
    show_help(context)


app.command("up")(up)
app.add_typer(ds.app, name="ds")
command(app, "plan")(apply.plan)
command(app, "apply")(apply.apply)
command(app, "import")(apply.import_)
command(app, "export")(apply.export)
command(app, "schema", asks_node=False)(apply.schema)
command(app, "explain")(ds.explain)
command(app, "events")(history.all_events)
command(app, "top")(top.top)
command(app, "console")(console.console)
app.add_typer(fixtures.app, name="fixtures")
app.add_typer(streams.app, name="streams")
app.add_typer(dlq.app, name="dlq")
app.add_typer(groups.app, name="groups")
app.add_typer(nodes.app, name="nodes")
command(app, "dump", may_ask_node=True)(dump.dump)
app.add_typer(dumps.app, name="dumps")
app.add_typer(installation.app, name="installation")
app.add_typer(secrets.app, name="secrets")
app.add_typer(tokens.app, name="tokens")
app.add_typer(allow.app, name="allow")
app.add_typer(connectors.app, name="connectors")
app.command("sql")(sql)
command(app, "doctor")(doctor.doctor)


def main() -> None:
    """The entry point."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # numpy would start threads that nothing here uses.
    tolerate_any_terminal()
    app()
