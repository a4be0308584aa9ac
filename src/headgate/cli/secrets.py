"""`headgate secrets`: values go in and never come out."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from headgate.cli.call import Call, Yes, checked, command, insist, noun
from headgate.cli.documents import read_text
from headgate.cli.failures import FAILED
from headgate.cli.output import ago, complain, table
from headgate.text import counted

if TYPE_CHECKING:
    from headgate.web.bodies.access import Secrets

app = noun("Secrets: what documents refer to as {$secret: NAME}.")

Secret = Annotated[str, typer.Argument(metavar="NAME", help="The secret.")]
KEEP_KEYS = "keep the old key until `headgate doctor` says that none are left"
FromFile = Annotated[
    str | None, typer.Option("--from-file", metavar="FILE", help="Read the value from here; - is stdin.")
]


@command(app, "set")
def set_(call: Call, name: Secret, from_file: FromFile = None) -> None:
    """Write a secret, from stdin or a hidden prompt; what uses it restarts."""
    from headgate.web.bodies.access import SecretWritten

    path = _path(name)
    value = _value(name, from_file)
    if not value:
        raise typer.BadParameter("the value is empty")
    found = call.node.put(path, SecretWritten, {"value": value})
    call.say(found.sent, f"wrote secret {name}; {counted(found.value.restarted, 'datasource')} restarted")


@command(app, "list")
def list_(call: Call) -> None:
    """The names of all secrets, and who wrote them."""
    from headgate.web.bodies.access import Secrets

    call.relay(call.node.get("/api/secrets", Secrets), _table)


@command(app, "delete")
def delete(call: Call, name: Secret, yes: Yes = False) -> None:
    """Delete a secret; one that something uses only with --yes, after naming every user."""
    path = _path(name)
    insist(lambda yes: call.node.delete(path, yes=yes or None), "in_use", f"Delete secret {name!r}?", yes=yes)
    call.say({"name": name, "action": "delete"}, f"deleted secret {name}")


@command(app, "rotate")
def rotate(call: Call) -> None:
    """Wrap every secret, and the record of every dead letter, with the first of the master keys."""
    from headgate.web.bodies.access import Rotated

    found = call.node.post("/api/secrets/rotate", Rotated)
    done = found.value
    letters = f" and {counted(done.letters, 'dead letter')}" if done.letters else ""
    call.say(found.sent, f"{counted(done.rewrapped, 'secret')}{letters} rewrapped")
    if done.letters_left:
        letters = counted(done.letters_left, "dead letter")
        complain(f"headgate: {letters} in sinks still to be rewrapped, by the runs of their streams: {KEEP_KEYS}")
    if done.stuck:
        names = ", ".join(done.stuck)
        complain(f"headgate: no master key fits {names} (add the old key to HEADGATE_MASTER_KEY, or set them again)")
    if done.letters_stuck:
        letters = counted(done.letters_stuck, "dead letter")
        complain(f"headgate: no master key fits {letters} (add the old key to HEADGATE_MASTER_KEY)")
    if done.stuck or done.letters_stuck:
        raise typer.Exit(FAILED)


def _path(name: str) -> str:
    return f"/api/secrets/{checked(name, 'secret', 'headgate secrets list')}"


def _value(name: str, from_file: str | None) -> str:
    """Never from an argument: those end up in the shell's history and in the list of processes."""
    if from_file is None and sys.stdin.isatty():
        return str(typer.prompt(f"Value of {name}", hide_input=True, err=True))
    text = read_text(from_file or "-")
    # `echo` and editors end a file with a line feed that is no part of the value.
    return text.removesuffix("\n").removesuffix("\r")


def _table(found: Secrets) -> str:
    rows = [(one.name, ago(one.changed_at), one.author) for one in found.items]
    return table(("SECRET", "CHANGED", "BY"), rows, empty="no secrets (headgate secrets set NAME)")
