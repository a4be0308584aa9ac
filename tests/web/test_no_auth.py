"""Without tokens, only what comes from this machine itself gets in."""

from __future__ import annotations

from typing import Any

import pytest

from headgate.web.auth import Gate


@pytest.mark.parametrize(
    ("headers", "gets_in"),
    [
        ({"host": "127.0.0.1:8470"}, True),
        ({"host": "localhost"}, True),
        ({"host": "[::1]:8470"}, True),
        ({"host": "127.0.0.1:8470", "origin": "http://127.0.0.1:8470", "sec-fetch-site": "same-origin"}, True),
        ({"host": "evil.example"}, False),
        ({"host": ""}, False),
        ({"host": "127.0.0.1:8470", "origin": "https://evil.example"}, False),
        ({"host": "127.0.0.1:8470", "origin": "null"}, False),
        ({"host": "127.0.0.1:8470", "origin": "http://127.0.0.1:3000"}, False),
        ({"host": "127.0.0.1:8470", "origin": "http://localhost:8470"}, False),
        ({"host": "127.0.0.1:8470", "origin": "http://127.0.0.1:8470.evil.example"}, False),
        ({"host": "127.0.0.1:8470", "sec-fetch-site": "same-site"}, False),
        ({"host": "127.0.0.1:8470@evil.example"}, False),
        ({"host": "localhost.evil.example:8470"}, False),
        ({"host": "127.0.0.1:8470", "sec-fetch-site": "cross-site"}, False),
    ],
)
async def test_a_page_from_elsewhere_does_not_get_in(headers: dict[str, str], gets_in: bool) -> None:
    tokens: Any = None
    found = await Gate(tokens, tokens, auth=False).identify(headers, "127.0.0.1", cookie_allowed=False)
    assert (found is not None) == gets_in
