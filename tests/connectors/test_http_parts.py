"""The parts of the HTTP connector that decide: URLs, fields in them, statuses, pages, and what is new."""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import SecretStr, ValidationError

from headgate.connectors.api import Unreadable
from headgate.connectors.http import CONNECTOR, incremental
from headgate.connectors.http.answers import Page
from headgate.connectors.http.client import judge_depth
from headgate.connectors.http.incremental import advanced, begun, ended, key_of
from headgate.connectors.http.options import HttpSinkOptions, HttpSourceOptions, LinkPaging
from headgate.connectors.http.paging import next_of
from headgate.connectors.http.source import tell_move
from headgate.connectors.http.statuses import LONGEST_WAIT_S, raise_if_not_now, retry_after_s
from headgate.connectors.http.targets import Depth, depth_of, target_of
from headgate.connectors.http.templates import NotInUrl, Template
from headgate.connectors.http.wire import Answer, head_of
from headgate.connectors.moves import NO_POSITION
from headgate.errors import Cause, ConnectorError, NotConnected, RetryLater

URL = "https://api.example.com/v1/orders"


# URLs.


@pytest.mark.parametrize(
    ("url", "origin", "path"),
    [
        ("https://API.example.com", "https://api.example.com", "/"),
        ("http://a.example:8080/x y?q=ä#part", "http://a.example:8080", "/x%20y?q=%C3%A4"),
        ("https://user:secret@a.example:443/x", "https://a.example", "/x"),
        ("http://[::1]:81/x", "http://[::1]:81", "/x"),
        ("http://bücher.example/", "http://xn--bcher-kva.example", "/"),
    ],
)
def test_a_url_is_taken_apart_without_user_and_fragment(url: str, origin: str, path: str) -> None:
    found = target_of(url)
    assert (found.origin, found.path) == (origin, path)


@pytest.mark.parametrize("url", ["ftp://a.example/", "/x", "http://", "http://a b/", "http://a:99999/", "file:///etc"])
def test_what_is_no_url_of_http_is_refused(url: str) -> None:
    with pytest.raises(ValueError):
        target_of(url)


def test_a_line_break_in_a_location_does_not_reach_the_wire() -> None:
    assert target_of(URL).joined("/x\r\nX-Bad: 1\r\n").path == "/xX-Bad:%201"


def test_parameters_take_the_place_of_others_of_their_name() -> None:
    found = target_of(f"{URL}?page=1&q=a").with_params({"page": "2 & 3"})
    assert found.path == "/v1/orders?q=a&page=2+%26+3"
    assert found.without_params("q", "page").path == "/v1/orders"


@pytest.mark.parametrize(
    ("address", "depth"),
    [
        ("93.184.215.14", Depth.PUBLIC),
        ("10.1.2.3", Depth.PRIVATE),
        ("192.168.0.1", Depth.PRIVATE),
        ("127.0.0.1", Depth.SPECIAL),
        ("169.254.169.254", Depth.SPECIAL),
        ("::ffff:169.254.169.254", Depth.SPECIAL),
        ("fe80::1%eth0", Depth.SPECIAL),
        ("2606:2800:21f:cb07:6820:80da:af6b:8b2c", Depth.PUBLIC),
    ],
)
def test_an_answer_leads_no_deeper_into_the_network_than_the_url_does(address: str, depth: Depth) -> None:
    assert depth_of(address) is depth
    for home in Depth:
        if depth <= home:
            judge_depth(target_of(URL), depth, home)
        else:
            with pytest.raises(ConnectorError, match="inside a network") as caught:
                judge_depth(target_of(URL), depth, home)
            assert caught.value.cause is Cause.CONFIG


# Fields in URLs.


@given(st.text(min_size=1))
def test_a_value_changes_neither_host_nor_path(value: str) -> None:
    template = Template("https://api.example.com/users/{id}/orders?by={id}")
    try:
        found = template.of({"id": value})
    except NotInUrl:
        return
    parts = urlsplit(str(found))
    assert parts.netloc == "api.example.com"
    assert [unquote(segment) for segment in parts.path.split("/")] == ["", "users", value, "orders"]
    assert unquote(parts.query.removeprefix("by=")) == value
    assert found.path.isascii()


@pytest.mark.parametrize("value", ["", ".", "..", None, {"a": 1}, [1], "\ud800"])
def test_a_value_that_would_lead_elsewhere_is_refused(value: Any) -> None:
    with pytest.raises(NotInUrl):
        Template("https://api.example.com/users/{id}").of({"id": value})


def test_two_values_cannot_make_dots_together() -> None:
    with pytest.raises(NotInUrl):
        Template("https://api.example.com/{a}{b}/x").of({"a": ".", "b": "."})


@pytest.mark.parametrize(
    "url",
    ["https://{host}/x", "http{s}://a/x", "https://a.example{x}/y", "https://a.example/{", "https://a.example:{p}/"],
)
def test_a_field_may_not_stand_before_the_path(url: str) -> None:
    with pytest.raises(ValidationError):
        HttpSinkOptions(url=url)


# Options.


@pytest.mark.parametrize(
    "options",
    [
        {"headers": {"X-A": "b\r\nX-C: d"}},
        {"headers": {"X-A": SecretStr("b\nc")}},
        {"headers": {"X A": "b"}},
        {"headers": {"Host": "elsewhere"}},
        {"headers": {"X-A": "ä"}},
        {"auth": {"type": "bearer", "token": SecretStr("a\r\nb")}},
        {"auth": {"type": "header", "name": "X-Key\r\n", "value": SecretStr("a")}},
        {"auth": {"type": "basic", "user": "a:b", "password": SecretStr("c")}},
        {"body": {"a": 1}},
        {"url": "https://user@api.example.com/"},
        {"format": "csv", "records": "data"},
        {"format": "csv", "paging": {"type": "cursor", "path": "next"}},
    ],
)
def test_options_that_could_not_work_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        HttpSourceOptions(**{"url": URL, **options})


@pytest.mark.parametrize(
    "options",
    [
        {"url": f"{URL}/{{id}}", "batch": 2},
        {"delete_url": URL},
        {"delete_url": "https://elsewhere.example/{id}"},
        {"idempotency_header": "a\r\nb"},
    ],
)
def test_options_of_a_sink_that_could_not_work_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        HttpSinkOptions(**{"url": URL, **options})


def test_a_header_with_a_line_break_is_refused_where_it_is_written_too() -> None:
    with pytest.raises(ValueError, match="X-Token") as caught:
        head_of("GET", "/", [("X-Token", "secret\r\nX-Bad: 1")])
    assert "secret" not in str(caught.value)
    with pytest.raises(ValueError):
        head_of("GET", "/ HTTP/1.1\r\nX: 1\r\n", [])


def test_what_the_options_name_is_judged() -> None:
    assert CONNECTOR.source is not None
    auth = {"type": "oauth2", "token_url": "https://id.example.com/t", "client_id": "a", "client_secret": "b"}
    options = HttpSourceOptions(url=URL, auth=auth, ca_file="/etc/ca.pem")  # type: ignore[arg-type]
    found = {str(place) for place in CONNECTOR.source.reaches(options)}
    assert found == {"api.example.com:443", "id.example.com:443", "/etc/ca.pem"}


# Statuses.

NOW_S = 1_000_000_000.0  # 2001-09-09 01:46:40


@pytest.mark.parametrize(
    ("text", "wait_s"),
    [
        ("7", 7),
        ("0", 1),
        ("Sun, 09 Sep 2001 01:47:00 GMT", 20),
        ("Sun, 09 Sep 2001 01:00:00 GMT", 1),
        ("9" * 400, LONGEST_WAIT_S),
        ("Sun, 09 Sep 2999 01:00:00 GMT", LONGEST_WAIT_S),
        ("soon", None),
        ("-5", None),
        ("", None),
        ("²", None),
    ],
)
def test_how_long_a_server_asks_to_wait(text: str, wait_s: float | None) -> None:
    assert retry_after_s({"retry-after": text}, NOW_S) == wait_s


@pytest.mark.parametrize(
    ("status", "headers", "kind", "cause"),
    [
        (401, {}, ConnectorError, Cause.AUTH),
        (403, {}, ConnectorError, Cause.AUTH),
        (403, {"retry-after": "5"}, RetryLater, Cause.RATE_LIMIT),
        (408, {}, NotConnected, Cause.NETWORK),
        (425, {}, NotConnected, Cause.NETWORK),
        (429, {}, ConnectorError, Cause.RATE_LIMIT),
        (429, {"retry-after": "5"}, RetryLater, Cause.RATE_LIMIT),
        (500, {}, NotConnected, Cause.NETWORK),
        (503, {}, NotConnected, Cause.NETWORK),
        (503, {"retry-after": "5"}, RetryLater, Cause.RATE_LIMIT),
        (599, {}, NotConnected, Cause.NETWORK),
    ],
)
def test_what_a_status_means(status: int, headers: dict[str, str], kind: type[Exception], cause: Cause) -> None:
    with pytest.raises(ConnectorError) as caught:
        raise_if_not_now(Answer(status, headers, b""), "https://a.example", NOW_S)
    assert type(caught.value) is kind
    assert caught.value.cause is cause


@pytest.mark.parametrize("status", [200, 204, 304, 400, 404, 422])
def test_other_statuses_are_the_callers(status: int) -> None:
    raise_if_not_now(Answer(status, {}, b""), "https://a.example", NOW_S)


# Pages.


@pytest.mark.parametrize(
    ("header", "found"),
    [
        (
            '<https://a.example/x?page=2>; rel="next", <https://a.example/x?page=9>; rel="last"',
            "https://a.example/x?page=2",
        ),
        ('<https://a.example/1>; rel="prev first", </2?a=1,2;b>; title="a, b"; REL=next', "/2?a=1,2;b"),
        ('</3>; title="; rel=next"; rel="last"', None),
        ("", None),
        ("<", None),
        ("<" * 10_000, None),
    ],
)
def test_the_next_page_of_a_link_header(header: str, found: str | None) -> None:
    assert next_of(LinkPaging(type="link"), None, Answer(200, {"link": header}, b""), Page([1])) == found


# What is new.


def at(*values: Any) -> list[Any]:
    return [{"at": value} for value in values]


def test_times_are_compared_as_times_and_numbers_as_numbers() -> None:
    assert key_of("2024-01-01T00:00:00Z") < key_of("2024-01-01T00:00:00.5Z") < key_of("2024-01-01T01:00:00+00:30")
    assert key_of("9") < key_of("10") < key_of(11.5)
    assert key_of("b") > key_of("abc")


def test_a_server_that_gives_the_last_ones_again_repeats_nothing() -> None:
    mark, records = advanced(begun(None, ()), "at", at(1, 2, 2))
    assert records == at(1, 2, 2)
    after = ended(mark)
    assert after.since == 2
    mark, records = advanced(after, "at", [*at(2, 2), {"at": 2, "other": True}, *at(2, 3)])
    assert records == [{"at": 2, "other": True}, *at(2, 3)]  # A third one that is the same is another record.
    assert ended(mark).since == 3
    assert advanced(ended(mark), "at", at(3))[1] == []


def test_a_poll_without_news_forgets_nothing() -> None:
    after = ended(advanced(begun(None, ()), "at", at(1, 2))[0])
    for _ in range(3):
        mark, records = advanced(after, "at", at(2))
        assert records == []
        after = ended(mark)
        assert after == ended(after)


def test_many_records_of_one_value_are_remembered_up_to_a_number() -> None:
    records = [{"at": 1, "id": id} for id in range(incremental.MOST_SEEN + 5)]
    after = ended(advanced(begun(None, ()), "at", records)[0])
    assert len(after.seen) == incremental.MOST_SEEN
    assert advanced(after, "at", records)[1] == records[-5:]


@pytest.mark.parametrize(
    ("since", "records", "said"),
    [
        (5, at(3, 4), "went back"),
        (None, [{"id": 1}], "no record has the field"),
        (None, at(1, "x"), "none is the largest"),
        (None, at([1]), "neither a number"),
        (None, at("x" * 2000), "neither a number"),
    ],
)
def test_what_cannot_be_compared_is_an_error(since: Any, records: list[Any], said: str) -> None:
    with pytest.raises(ConnectorError, match=said) as caught:
        advanced(begun(since, ()), "at", records)
    assert caught.value.cause is Cause.CONFIG


def test_a_record_without_the_field_is_passed_on() -> None:
    records = [*at(1), {"id": 1}, Unreadable(b"x", "why"), 7]
    mark, kept = advanced(begun(None, ()), "at", records)
    assert kept == records
    assert mark.largest == 1


# Positions.


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ({"since": 3}, {"since": 3}, "nothing changes"),
        ({"since": 3}, None, "read again"),
        ({"since": 3}, {"since": 5}, "what follows 5, in place of 3"),
        (None, {"polls": 1, "by": "page", "next": 4}, "from a page in the middle on"),
        ({"since": 3}, 17, NO_POSITION),
        ({"since": 3}, {"other": 1}, NO_POSITION),
    ],
)
def test_what_another_position_means(before: Any, after: Any, said: str) -> None:
    assert said in tell_move(before, after)
