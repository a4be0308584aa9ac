"""`headgate notifications`: who is told of what."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from headgate.cli import documents
from headgate.cli.call import Call, Yes, command, confirm, noun
from headgate.cli.output import ago, table
from headgate.errors import ConfigError, Problem
from headgate.text import counted

if TYPE_CHECKING:
    from headgate.web.bodies.notifications import NotificationsAnswer

app = noun("Who is told of what: by webhook, Slack or e-mail.")

File = Annotated[str, typer.Argument(metavar="FILE", help="YAML or JSON with `targets:` and `rules:`; - is stdin.")]
Target = Annotated[str, typer.Argument(metavar="TARGET", help="The target, by its name in the document.")]
AsYaml = Annotated[bool, typer.Option("--yaml", help="Write the document, as `set` takes it.")]


@command(app, "list")
def list_(call: Call, yaml: AsYaml = False) -> None:
    """The rules and their targets, what is open, and what could not be sent yet."""
    from headgate.web.bodies.notifications import NotificationsAnswer

    found = call.node.get("/api/notifications", NotificationsAnswer)
    call.relay(found, _yaml if yaml else _tables)


@command(app, "set")
def set_(call: Call, file: File) -> None:
    """Make the targets and rules what the file says, in place of those before. The file may have them below
    `notifications:`."""
    from headgate.web.bodies.notifications import NotificationsWritten

    found = documents.parse(documents.read_text(file), file)
    if isinstance(found, dict) and set(found) == {"notifications"}:
        found = found["notifications"]
    if not isinstance(found, dict):
        raise ConfigError([Problem("", "must be an object with `targets` and `rules`")])
    done = call.node.put("/api/notifications", NotificationsWritten, found)
    rules, targets = len(found.get("rules") or ()), len(found.get("targets") or ())
    call.say(done.sent, f"notifications {done.value.version}: {counted(rules, 'rule')}, {counted(targets, 'target')}")


@command(app, "delete")
def delete(call: Call, yes: Yes = False) -> None:
    """Tell nobody anything any more."""
    from headgate.web.bodies.notifications import NotificationsWritten

    confirm("Delete all rules and targets?", yes=yes)
    done = call.node.remove("/api/notifications", NotificationsWritten)
    call.say(done.sent, "notifications deleted")


@command(app, "test")
def test(call: Call, target: Target) -> None:
    """Send a target a message that says that it is a test, from the node that is asked."""
    from headgate.web.bodies.notifications import TestSent

    done = call.node.post("/api/notifications/test", TestSent, {"target": target})
    call.say(done.sent, f"{target} has taken a test message")


def _yaml(found: NotificationsAnswer) -> str:
    from headgate.datasources.documents import plain_yaml

    return plain_yaml(found.document or {})


def _tables(found: NotificationsAnswer) -> str:
    document = found.document or {}
    rules = [(name, one.get("when", ""), _about(one), one.get("for", "1m"), ", ".join(one.get("to", ())))
             for name, one in (document.get("rules") or {}).items()]  # fmt: skip
    waiting = {one.target: one for one in found.waiting}
    targets = [(name, one.get("type", ""), _state(waiting.get(name)))
               for name, one in (document.get("targets") or {}).items()]  # fmt: skip
    parts = [
        table(("RULE", "WHEN", "OF", "FOR", "TO"), rules, empty="no rules (headgate notifications set FILE)"),
        table(("TARGET", "TYPE", "STATE"), targets, empty="no targets"),
    ]
    open_ = [(one.subject, one.rule, ago(one.since), "told" if one.told_at else "not yet", one.why)
             for one in found.incidents]  # fmt: skip
    parts.append(table(("INCIDENT", "RULE", "SINCE", "TOLD", "WHY"), open_, empty="nothing is wrong by these rules"))
    return "\n\n".join(parts)


def _about(rule: dict[str, Any]) -> str:
    """What a rule is about, in a few words."""
    if rule.get("when") == "node_lost":
        return "nodes"
    of = ", ".join(rule.get("datasources") or ["*"])
    more = ", ".join(rule.get("health") or []) or (f"> {rule['above']}" if "above" in rule else "")
    return f"{of} ({more})" if more else of


def _state(waiting: Any) -> str:
    if waiting is None:
        return "ok"
    return f"{counted(waiting.messages, 'message')} wait: {waiting.reason or 'about to be sent'}"
