"""What a process must not say."""

from __future__ import annotations

import base64
import json
import logging
from urllib.parse import quote

import pytest
import structlog
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate import hidden
from headgate.hidden import MOST, Hidden
from headgate.telemetry import logs

URL = "postgresql://ada:p%40ss%2Fhunter2@db.internal:5432/orders"


def hide(value: str, text: str) -> str:
    found = Hidden()
    found.remember(value)
    return found.hide(text)


@pytest.mark.parametrize(
    "said",
    [
        URL,
        f"cannot connect to {URL}: no route",
        "password p@ss/hunter2 is wrong",
        "password p%40ss%2Fhunter2 is wrong",
        "Basic " + base64.b64encode(b"ada:p@ss/hunter2").decode(),
        "dsn: user=ada password=p@ss/hunter2 host=db.internal",
        repr({"password": "p@ss/hunter2"}),
    ],
)
def test_a_password_of_a_url_is_hidden_in_whichever_form_it_is_said(said: str) -> None:
    found = hide(URL, said)
    assert "hunter2" not in found
    assert base64.b64encode(b"ada:p@ss/hunter2").decode() not in found
    assert "***" in found


def test_the_rest_of_a_url_that_was_given_is_no_secret() -> None:
    found = Hidden()
    found.remember_url(URL)
    found.remember_url("csv:orders")
    assert found.hide("db.internal:5432 refuses p@ss/hunter2; csv:orders") == "db.internal:5432 refuses ***; csv:orders"


def test_a_short_password_is_hidden_as_a_word_and_takes_no_other_word_apart() -> None:
    assert hide("post", "postgresql: post is no password") == "postgresql: *** is no password"
    assert hide("abc", "abc") == "abc"


def test_lines_of_a_key_are_hidden_one_by_one() -> None:
    key = "-----BEGIN KEY-----\nMIIEvQIBADANBgkqhkiG9w0BAQ\nEFAASCBKcwggSjAgEAAoIBAQ\n-----END KEY-----\n"
    found = hide(key, "the key " + " ".join(key.split("\n")) + " is wrong")
    assert "MIIE" not in found
    assert "EFAA" not in found


@given(st.text(min_size=12, max_size=30), st.text(max_size=9), st.text(max_size=9))
@settings(max_examples=50, deadline=None)
def test_a_value_is_found_as_it_is_encoded_and_escaped(value: str, before: str, behind: str) -> None:
    value = value.strip() + "-hunter2-"
    for form in (value, quote(value, safe="", errors="replace"), repr(value)[1:-1], json.dumps(value)[1:-1]):
        assert form not in hide(value, f"{before} {form} {behind}")


def test_what_was_not_remembered_is_said_as_it_is() -> None:
    assert Hidden().hide(URL) == URL
    assert hide(URL, "all is well") == "all is well"
    assert hide("", "x" * 9) == "x" * 9


def test_the_oldest_value_is_forgotten_when_there_are_too_many() -> None:
    found = Hidden()
    for n in range(MOST + 1):
        found.remember(f"value-number-{n}-of-many")
    assert found.hide("value-number-0-of-many") == "value-number-0-of-many"
    assert found.hide("value-number-1-of-many") == "***"
    assert found.hide(f"value-number-{MOST}-of-many") == "***"


def test_a_process_has_one_memory() -> None:
    hidden.remember("a-value-of-this-test")
    assert hidden.hide("it is a-value-of-this-test") == "it is ***"


@pytest.mark.parametrize("style", ["json", "console"])
def test_what_libraries_log_shows_no_value_either(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], style: str
) -> None:
    """As asyncio does with an error that nobody awaits."""
    hidden.remember(URL)
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    logs.configure(style)
    try:
        try:
            raise OSError(f"no route to {URL}")
        except OSError as error:
            logging.getLogger("asyncio").error("never retrieved: %s", URL, exc_info=error)
            structlog.get_logger().exception("failed", url=URL, error=error)
    finally:
        structlog.reset_defaults()
    said = capsys.readouterr().err
    assert said.count("Traceback") == 2
    assert "hunter2" not in said
