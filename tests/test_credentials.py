"""Passwords in texts: which are found, what is left alone, and what people see."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headgate.credentials import SHOWN, has_credentials, hide_credentials, is_public_url

PASSWORD = "hunter2"


@pytest.mark.parametrize(
    "text",
    [
        "postgresql://u:hunter2@h/db",
        "POSTGRESQL://u:hunter2@h/db",
        "postgresql://:hunter2@h/db",
        "postgresql://u%3Ahunter2@h/db",
        "postgresql://u%253ahunter2@h/db",
        "postgresql://u:hunter2%40h/db",
        "postgresql://u:hunter2@h1:5432,h2:5433/db",
        "mongodb://u:hunter2@h1,h2:27018/db?replicaSet=x",
        "postgresql://u:hunter2@[::1]:5432/db",
        "postgresql://u:p@hunter2@h/db",
        "postgresql://u:p/hunter2@h/db",
        "postgresql://u:12/hunter2@h/db",
        "postgresql://u:p?hunter2@h/db",
        "postgresql://u:p#hunter2@h/db",
        "postgresql://us/er:hunter2@h/db",
        "postgresql://u:p'hunter2@h/db",
        "postgresql://u:p hunter2@h/db",
        "postgresql://u:http://hunter2@h/db",
        "postgresql://u:hunt\ter2@h/db".replace("hunt\ter2", "hunter2\t"),
        "postgresql:/\n/u:hunter2@h/db",
        "postgresql://h/db?password=hunter2",
        "postgresql://h/db?user=u&password=hunter2",
        "postgresql://h/db?pass%77ord=hunter2",
        "postgresql://h/db?pass%2577ord=hunter2",
        "postgresql://h/db?%70%61%73%73%77%6f%72%64=hunter2",
        "postgresql://h/db?PASSWORD=hunter2",
        "postgresql://h/db?pass_word=hunter2",
        "postgresql://h/db?pass+word=hunter2",
        "postgresql://h/db?sslpassword=hunter2",
        "postgresql:///db?host=/run&password=hunter2",
        "mongodb://h/db?tlsCertificateKeyFilePassword=hunter2",
        "mongodb://h/db?authMechanismProperties=AWS_SESSION_TOKEN:hunter2",
        "jdbc:postgresql://h/db?user=u&password=hunter2",
        "jdbc:sqlserver://h:1433;databaseName=x;password=hunter2",
        "https://h/x?token=hunter2",
        "https://h/x?access_token=hunter2&y=1",
        "https://h/x#access_token=hunter2",
        "https://h/x?api-key=hunter2",
        "https://h/x?key=hunter2",
        "https://h/x?X-Amz-Signature=hunter2",
        "https://h/x?sig=hunter2",
        "https://hunter2@h/x",
        "nats://hunter2@h",
        "redis://:hunter2@h/0",
        "host=h password=hunter2",
        "host=h password = 'hunter2 x' dbname=y",
        "Server=h;Pwd=hunter2;",
        "AccountName=x;AccountKey=hunter2",
        "see https://ok/x and postgresql://u:hunter2@h/db too",
    ],
)
def test_a_password_is_found_and_hidden_wherever_it_stands(text: str) -> None:
    assert has_credentials(text)
    assert not is_public_url(text)
    assert PASSWORD not in hide_credentials(text)
    assert SHOWN in hide_credentials(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "orders",
        "/data/*.jsonl",
        "/data/token=5/*.jsonl",
        "key=5/part.jsonl",
        "auth = x",
        "postgresql://h/db",
        "postgresql://u@h/db",
        "postgresql://u:@h/db",
        "postgresql://u@h1:5432,h2:5433/db?sslmode=require",
        "postgresql:///db?host=/run/x&user=u&application_name=orders",
        "postgresql://h/db?sslkey=/etc/client.key&passfile=/etc/pgpass",
        "mongodb://u@h/db?authSource=admin&authMechanism=PLAIN",
        "https://h:8443/@ada/x",
        "https://h/x?page=2&tokens=5",
        "https://[::1]:8470/x",
        "ada@example.com",
        "a: b@c",
        "the password = of the day".replace(" = ", " is "),
    ],
)
def test_what_says_only_where_is_left_as_it_is(text: str) -> None:
    assert not has_credentials(text)
    assert hide_credentials(text) == text
    assert is_public_url(text) == ("://" in text)


def test_the_rest_of_the_text_stays() -> None:
    assert hide_credentials("postgresql://u:hunter2@h/db?x=1") == "postgresql://u:***@h/db?x=1"
    assert hide_credentials("postgresql://h/db?PASSWORD=hunter2&x=1") == "postgresql://h/db?PASSWORD=***&x=1"
    assert hide_credentials("https://hunter2@h/") == "https://***@h/"


def test_in_prose_and_in_code_a_url_ends_at_a_blank_or_a_quote() -> None:
    assert has_credentials("see postgresql://u:hunter2@h/db.", in_prose=True)
    for text in ("'https://x/?a=' + a + '&token=' + t", "password = 'x'", "write postgresql://u:***@h/db"):
        assert not has_credentials(text, in_prose=True)


@given(st.text(st.sampled_from(":/@%?&=;#'[]3aA40tpu \t\npassword"), max_size=60))
@settings(max_examples=300, deadline=None)
def test_what_was_hidden_is_hidden(text: str) -> None:
    hidden = hide_credentials(text)
    assert hide_credentials(hidden) == hidden
    assert (hidden == text) or has_credentials(text)


@pytest.mark.parametrize("piece", ["a://", "a://u:p@", "%25", "://", "@", ":", "?password=", "x=", " ", "'", "a:b@c/"])
def test_a_long_text_costs_little(piece: str) -> None:
    """Viewers may send any text. This would take minutes if the cost grew with the square of the length."""
    has_credentials(piece * (200_000 // len(piece)))
    hide_credentials("a://" + piece * (200_000 // len(piece)))
