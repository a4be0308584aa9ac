"""What all commands have in common: `--json`, `--url`, `--token`, `--ca`, and a node to ask.

A command is a function whose first parameter is a `Call`; `command` registers it and adds the shared options, so none
can be without them. Modules that only a few commands need are imported inside those, to keep the start fast.
"""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from headgate.cli.client import Client, Reply, refuse_unknown_settings
from headgate.cli.output import complain, say, to_json, visible
from headgate.errors import NotFound, Refused
from headgate.ids import is_name

if TYPE_CHECKING:
    from headgate.cli.early import EarlyServer

Url = Annotated[
    str | None,
    typer.Option("--url", envvar="HEADGATE_URL", metavar="URL", help="The node to ask."),
]
On = Annotated[str | None, typer.Option("--on", metavar="URL", help="The node that does it, in place of this process.")]
Token = Annotated[
    str | None,
    typer.Option("--token", envvar="HEADGATE_TOKEN", metavar="TOKEN", help="Who asks."),
]
Ca = Annotated[
    str | None,
    typer.Option("--ca", envvar="HEADGATE_CA", metavar="FILE", help="The certificate authority of the node, in PEM."),
]
Json = Annotated[bool, typer.Option("--json", help="Write JSON for machines.")]

Name = Annotated[str, typer.Argument(metavar="NAME", help="The datasource.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]

Run = TypeVar("Run", bound=Callable[..., None])
T = TypeVar("T")


class Call:
    """One invocation: the node it asks, and how it answers."""

    def __init__(
        self, url: str | None = None, token: str | None = None, as_json: bool = False, ca: str | None = None
    ) -> None:
        self.as_json = as_json
        self.early: EarlyServer | None = None  # The embedded server, if the command has begun to join it.
        self._url = url
        self._token = token
        self._ca = ca

    @property
    def is_at_node(self) -> bool:
        """Whether somebody has said which node to ask."""
        return bool(self._url)

    @property
    def is_by_environment(self) -> bool:
        """Whether `HEADGATE_URL` has said so."""
        return self._url == os.environ.get("HEADGATE_URL")

    @cached_property
    def node(self) -> Client:
        """The node to ask."""
        refuse_unknown_settings()
        return Client(self._url, self._token, self._ca)

    def show(self, data: T, render: Callable[[T], str]) -> None:
        """Answer with data: as JSON, or as text made from it."""
        say(to_json(data) if self.as_json else render(data))

    def relay(self, reply: Reply[T], render: Callable[[T], str]) -> None:
        """Answer with what a node said: the JSON that it sent, or text made from it."""
        say(to_json(reply.sent) if self.as_json else render(reply.value))

    def say(self, data: Any, text: str) -> None:
        """Answer with a sentence; machines get the data."""
        say(to_json(data) if self.as_json else visible(text))

    def line(self, data: Any, text: str) -> None:
        """Answer with one of many lines; machines get one JSON value on each."""
        say(to_json(data, indent=None) if self.as_json else visible(text))


def noun(help: str) -> typer.Typer:
    """Commands about one thing. Without a command, its help."""
    app = typer.Typer(help=help, invoke_without_command=True, rich_markup_mode=None)
    app.callback()(show_help)
    return app


def show_help(context: typer.Context) -> None:
    """Say which commands there are, if none was given."""
    if context.invoked_subcommand is None:
        say(context.get_help())
        raise typer.Exit(2)


def command(app: typer.Typer, name: str, *, asks_node: bool = True, may_ask_node: bool = False) -> Callable[[Run], Run]:
    """Register a command under this name, with the shared options. One that asks no node needs not be told which; one
    that may ask one does so only if it is told by `--on`."""

    def register(run: Run) -> Run:
        signature = inspect.signature(run, eval_str=True)
        options = _on if may_ask_node else _shared if asks_node else _straight
        shared = inspect.signature(options, eval_str=True).parameters
        own = list(signature.parameters.values())[1:]
        keywords = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in (*own, *shared.values())]

        def invoke(
            *,
            as_json: bool,
            url: str | None = None,
            on: str | None = None,
            token: str | None = None,
            ca: str | None = None,
            **given: Any,
        ) -> None:
            run(Call(url or on, token, as_json, ca), **given)

        invoke.__signature__ = signature.replace(parameters=keywords)  # type: ignore[attr-defined]
        invoke.__annotations__ = {parameter.name: parameter.annotation for parameter in keywords}
        invoke.__doc__ = run.__doc__
        app.command(name)(invoke)
        return run

    return register


def _shared(url: Url = None, token: Token = None, ca: Ca = None, as_json: Json = False) -> None:
    """The options of every command."""


def _on(on: On = None, token: Token = None, ca: Ca = None, as_json: Json = False) -> None:
    """The options of a command that this process does, or a node."""


def _straight(as_json: Json = False) -> None:
    """The options of a command that works straight on the database."""


def datasource(name: str, *rest: str) -> str:
    """The path of a datasource. What cannot be a name cannot lead to another path either."""
    return "/".join(["/api/datasources", checked(name, "datasource", "headgate ds list"), *rest])


def checked(name: str, noun: str, hint: str) -> str:
    """The name, if there can be something of that name."""
    if not is_name(name):
        raise NotFound(f"no {noun} {name!r}", hint=hint)
    return name


def insist(ask: Callable[[bool], T], code: str, question: str, *, yes: bool) -> T:
    """Ask a node for something; if it wants a yes, with this code, ask the person whom it may ask."""
    try:
        return ask(yes)
    except Refused as refusal:
        if yes or refusal.code != code or not sys.stdin.isatty():
            raise
        complain(f"headgate: {refusal.message}")
        for problem in refusal.problems:
            complain(f"  {problem}")
        confirm(question, yes=False)
        return ask(True)


def confirm(question: str, *, yes: bool) -> None:
    """Ask before what cannot be undone. Without a terminal nobody can answer, so --yes must have been said."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise Refused(f"{question} Nobody is here to answer", code="unconfirmed", hint="say --yes")
    if not typer.confirm(question, err=True):
        raise Refused("nothing was done", code="unconfirmed")
