"""Bodies of messages: as JSON, as text, as they are; what is none of these is named, and nothing is lost."""

from __future__ import annotations

import base64
import os

import pytest

from headgate.connectors import payloads
from headgate.connectors.payloads import Format, decoded, encoded, too_large
from headgate.core.records import Unreadable
from headgate.errors import BadRecords


@pytest.mark.parametrize("body", ["a é €  𝄞 𝄞".encode(), b"\xff\xfe a \xe2\x82", b"\xf0\x9d\x84", b""])
async def test_text_is_decoded_in_goes_as_if_in_one(monkeypatch: pytest.MonkeyPatch, body: bytes) -> None:
    monkeypatch.setattr(payloads, "BYTES_AT_ONCE", 2)
    assert await decoded([body], "text") == [{"body": body.decode("utf-8", "replace")}]


async def test_a_body_that_is_not_json_is_unreadable_alone_and_kept_as_it_was() -> None:
    bodies = [b'{"a":1}', b"<html>", b"", b"[" * 100_000, b"\xff", b'"\\ud800"', b"7"]
    first, *bad, last = await decoded(bodies, "json")
    assert (first, last) == ({"a": 1}, 7)
    assert [one.body for one in bad if isinstance(one, Unreadable)] == bodies[1:-1]
    assert {one.reason for one in bad} == {"the body is not JSON"}


async def test_of_a_body_that_is_too_large_the_beginning_is_kept_and_its_size_said() -> None:
    body = b"x" * 100_000
    assert await decoded([b"7", body], "json", 99_999) == [7, too_large(body, 100_000, 99_999)]
    assert too_large(body, 100_000, 99_999).reason == "the message has 100,000 bytes, and at most 99,999 are taken"
    assert len(too_large(body, 100_000, 99_999).body) == payloads.KEPT_BYTES


async def test_what_was_decoded_is_encoded_as_it_was() -> None:
    body = os.urandom(300)
    assert encoded(await decoded([body], "bytes"), "bytes") == [body]
    assert encoded(await decoded(["é".encode()], "text"), "text") == ["é".encode()]
    assert encoded(await decoded([b'{"a":[1,null]}'], "json"), "json") == [b'{"a":[1,null]}']


def test_records_that_have_no_body_are_named_and_their_values_are_not() -> None:
    good = {"body": base64.b64encode(b"x").decode()}
    with pytest.raises(BadRecords) as found:
        encoded([good, {"body": "%secret%"}, {"body": 7}, {}], "bytes")
    assert [(bad.index, bad.field) for bad in found.value.bad] == [(1, "body"), (2, "body"), (3, "body")]
    assert "secret" not in str(found.value)
    formats: tuple[Format, ...] = ("text", "json")
    for format in formats:
        with pytest.raises(BadRecords, match="not valid Unicode"):
            encoded([{"body": "\ud800"}], format)
