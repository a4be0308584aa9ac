"""How the bytes of a connection are cut into requests: the same whichever way they are split on their way."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.web.http.limits import FRAMING_BYTES, HEAD_BYTES, Refusal
from headgate.web.http.requests import Requests

Found = list[tuple[str, str, bytes]]


def read(parts: list[bytes]) -> Found:
    """Method, path and body of all requests in bytes that arrive in these parts."""
    requests, found, head, body = Requests(), Found(), None, b""
    for part in parts:
        requests.buffer += part
        while True:
            if head is None:
                if (head := requests.head()) is None:
                    break
                body = b""
            if requests.body_left:
                if (piece := requests.piece()) is None:
                    break
                body += piece.data
            if not requests.body_left:
                found.append((head.method, head.path, body))
                head = None
    return found


@st.composite
def messages(draw: st.DrawFn) -> tuple[bytes, tuple[str, str, bytes]]:
    """A request as a sender may write it."""
    path = draw(st.sampled_from(["/hooks/a", "/", "/api/x", "http://host/hooks/a", "/hooks/%61?b=c"]))
    expected = {"http://host/hooks/a": "/hooks/a", "/hooks/%61?b=c": "/hooks/a"}.get(path, path)
    body = draw(st.binary(max_size=60))
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\n".encode()
    if not body and draw(st.booleans()):
        return head + b"\r\n", ("POST", expected, b"")
    if draw(st.booleans()):
        return head + b"Content-Length: %d\r\n\r\n" % len(body) + body, ("POST", expected, body)
    cut = draw(st.integers(1, 20))
    chunks = [body[first : first + cut] for first in range(0, len(body), cut)]
    extension = draw(st.sampled_from([b"", b";a=b", b';a="c"']))
    framed = b"".join(b"%x%s\r\n%s\r\n" % (len(chunk), extension, chunk) for chunk in chunks)
    trailer = draw(st.sampled_from([b"", b"X: y\r\n", b"Host: y\r\n"]))
    return head + b"Transfer-Encoding: chunked\r\n\r\n" + framed + b"0\r\n" + trailer + b"\r\n", (
        "POST",
        expected,
        body,
    )


@given(st.lists(messages(), min_size=1, max_size=4), st.data())
def test_requests_are_the_same_whichever_way_they_are_split(
    sent: list[tuple[bytes, tuple[str, str, bytes]]], data: st.DataObject
) -> None:
    text = b"".join(raw for raw, _ in sent)
    ends = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=20)))
    parts = [text[a:b] for a, b in zip([0, *ends], [*ends, len(text)], strict=True)]
    assert read(parts) == [expected for _, expected in sent]
    assert read([text[n : n + 1] for n in range(len(text))]) == [expected for _, expected in sent]


@given(st.binary(max_size=200), st.lists(st.binary(max_size=50), max_size=3))
def test_whatever_is_sent_is_read_or_refused(first: bytes, parts: list[bytes]) -> None:
    for begin in (b"", b"POST / HTTP/1.1\r\n", b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"):
        with contextlib.suppress(Refusal):
            read([begin + first, *parts])


def refusal(parts: list[bytes]) -> int:
    with pytest.raises(Refusal) as caught:
        read(parts)
    return caught.value.status


def test_a_head_may_have_64_kb_and_no_more_whether_it_ends_or_not() -> None:
    begin = b"GET / HTTP/1.1\r\nX: "
    fits = HEAD_BYTES - len(begin) - 4
    assert read([begin, b"x" * fits, b"\r\n\r\n"]) == [("GET", "/", b"")]
    assert refusal([begin + b"x" * (fits + 1) + b"\r\n\r\n"]) == 431
    assert refusal([begin + b"x" * (fits + 5)]) == 431


def test_the_framing_of_chunks_may_be_64_kb_larger_than_what_they_carry() -> None:
    head = b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n"
    assert len(read([head, b"1\r\nx\r\n" * 10_000, b"0\r\n\r\n"])[0][2]) == 10_000
    assert refusal([head, b"1\r\nx\r\n" * FRAMING_BYTES]) == 413
    assert refusal([head, b"1\r\nx\r\n", b"0\r\n", b"a: b\r\n" * FRAMING_BYTES]) == 413
    assert refusal([head, b"ffff\r\n" + b"x" * 0xFFFF + b"\r\n", b"1;" + b"y" * FRAMING_BYTES]) == 413
