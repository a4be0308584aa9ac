"""What a message says: as JSON for programs, and in words for people. Names and reasons in it are somebody else's text.

The JSON is made once, when an incident is told, and kept until it was sent; all other forms are made from it. Words are
one line each, so that no name can add a header or another line, and what a chat would take for markup is
escaped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from email.message import EmailMessage
from email.policy import SMTP
from typing import Any, Literal, TypeAlias
from uuid import UUID

from headgate.core.incidents import MOST_NAMED, Incident, Tell
from headgate.text import counted, one_line

Body: TypeAlias = Mapping[str, Any]
"""A message as JSON."""

MOST_LINES = 20  # Incidents that people are told by name.
MOST_WHY = 300


def body_of(tell: Tell, id: UUID, now_s: float, installation: UUID) -> Body:
    """A message about incidents."""
    return _body(id, "over" if tell.is_over else "opened", tell.rule, tell.incidents, now_s, installation)


def trial_body(id: UUID, now_s: float, installation: UUID) -> Body:
    """A message that says nothing but that it arrives."""
    return _body(id, "test", "test", (), now_s, installation)


def _body(
    id: UUID,
    kind: Literal["opened", "over", "test"],
    rule: str,
    incidents: Sequence[Incident],
    now_s: float,
    installation: UUID,
) -> Body:
    return {
        "id": str(id),
        "kind": kind,
        "installation": str(installation),
        "rule": rule,
        "at": _moment(now_s),
        "count": len(incidents),
        "incidents": [
            {
                "subject": one_line(one.subject, 200),
                "why": one_line(one.why, MOST_WHY),
                "since": _moment(one.since_s),
            }
            for one in incidents[:MOST_NAMED]
        ],
    }


def _moment(at_s: float) -> str:
    return datetime.fromtimestamp(at_s, UTC).isoformat(timespec="seconds")


# Words.


def title(body: Body) -> str:
    """In one line."""
    if body["kind"] == "test":
        return "A test: notifications of Headgate arrive here"
    over = "over: " if body["kind"] == "over" else ""
    if body["count"] == 1:
        one = body["incidents"][0]
        return one_line(f"{over}{one['subject']}: {one['why']}", MOST_WHY)
    first = ", ".join(one["subject"] for one in body["incidents"][:3])
    return one_line(f"{over}{counted(body['count'], 'incident')} of rule {body['rule']}: {first}, …", MOST_WHY)


def lines(body: Body) -> list[str]:
    """All that people are told, after the title."""
    told = body["incidents"][:MOST_LINES]
    found = [one_line(f"{one['subject']}: {one['why']} (since {one['since']})", MOST_WHY + 250) for one in told]
    if body["count"] > len(told):
        found.append(f"… and {body['count'] - len(told):,} more")
    if body["kind"] != "test":
        what = "is over" if body["kind"] == "over" else "has begun"
        found.append(f"Rule {body['rule']}: this {what}, as of {body['at']}.")
    return found


def chat_text(body: Body) -> str:
    """For a chat: whatever it would take for markup, a link or a call to everybody is text."""
    text = "\n".join([title(body), *lines(body)])
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def mail(body: Body, sender: str, recipients: Sequence[str]) -> bytes:
    """As e-mail. The id of the message is that of the incident's, so a repeat can be told from another."""
    message = EmailMessage(policy=SMTP)
    message["From"] = sender
    message["To"] = ", ".join(recipients)
    message["Subject"] = f"[headgate] {title(body)}"
    message["Date"] = datetime.fromisoformat(body["at"])
    message["Message-ID"] = f"<{body['id']}@{body['installation']}.headgate>"
    message["Auto-Submitted"] = "auto-generated"
    message.set_content("\n".join([title(body), "", *lines(body), ""]))
    return message.as_bytes()
