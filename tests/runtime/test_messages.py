"""What people read of an incident, whatever is in the names and reasons that it repeats."""

from __future__ import annotations

from email import message_from_bytes, policy
from uuid import UUID

from headgate.core.incidents import Incident, Tell
from headgate.runtime.notifications.messages import body_of, chat_text, lines, mail, title, trial_body

ID, INSTALLATION = UUID(int=1), UUID(int=2)
HOSTILE = "left\r\nBcc: evil@example.com\r\n\r\n<!channel> <http://evil.example|click> \u202e\u0000\u2028&"


def tell(number: int, *, is_over: bool = False, subject: str = "orders", why: str = "error: away") -> Tell:
    names = [subject] if number == 1 else [f"{subject}-{n}" for n in range(number)]
    return Tell("broken", "ops", is_over, tuple(Incident("broken", name, why, 1000.0, 1060.0) for name in names))


def test_one_incident_and_many_are_told_in_words() -> None:
    one = body_of(tell(1), ID, 1060.0, INSTALLATION)
    assert title(one) == "orders: error: away"
    assert title(body_of(tell(1, is_over=True), ID, 1060.0, INSTALLATION)) == "over: orders: error: away"
    many = body_of(tell(5000), ID, 1060.0, INSTALLATION)
    assert title(many) == "5,000 incidents of rule broken: orders-0, orders-1, orders-2, …"
    assert (many["count"], len(many["incidents"])) == (5000, 100)
    assert "… and 4,980 more" in lines(many)
    assert "test" in title(trial_body(ID, 0.0, INSTALLATION))


def test_no_name_adds_a_header_a_line_or_a_call_to_everybody() -> None:
    body = body_of(tell(1, subject=HOSTILE, why=HOSTILE), ID, 1060.0, INSTALLATION)
    raw = mail(body, "headgate@example.com", ["ada@example.com"])
    found = message_from_bytes(raw, policy=policy.default)
    assert set(found.keys()) == {
        "From", "To", "Subject", "Date", "Message-ID", "Auto-Submitted",
        "Content-Type", "Content-Transfer-Encoding", "MIME-Version",
    }  # fmt: skip
    assert found["To"] == "ada@example.com"
    assert "\n" not in found["Subject"]
    assert all(len(line) <= 998 for line in raw.split(b"\r\n"))
    assert b"\n" not in raw.replace(b"\r\n", b"")
    assert len(found.get_content().splitlines()) == 4  # The title, an empty line, the incident, the rule.
    assert "<" not in chat_text(body)
    assert len(chat_text(body).splitlines()) == 3
    assert found["Message-ID"] == f"<{ID}@{INSTALLATION}.headgate>"
