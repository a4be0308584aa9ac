"""Signed webhooks: every layout against signatures that are computed here, by hand."""

from __future__ import annotations

import hashlib
import hmac
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.connectors.webhook.signatures import Signature, Verifier

NOW_S = 1_700_000_000
KEY = "it's a secret to everybody"
BODY = b'{"id": 1, "name": "caf\xc3\xa9"}'


def sign(signed: bytes, key: str = KEY) -> str:
    return hmac.new(key.encode(), signed, hashlib.sha256).hexdigest()


def github(body: bytes = BODY, key: str = KEY, delivery: str | None = "d-1") -> dict[str, str]:
    headers = {"x-hub-signature-256": "sha256=" + sign(body, key)}
    return headers if delivery is None else {**headers, "x-github-delivery": delivery}


def stripe(body: bytes = BODY, key: str = KEY, at_s: int = NOW_S) -> dict[str, str]:
    return {"stripe-signature": f"t={at_s},v1={sign(f'{at_s}.'.encode() + body, key)}"}


def slack(body: bytes = BODY, key: str = KEY, at_s: int = NOW_S) -> dict[str, str]:
    signature = "v0=" + sign(f"v0:{at_s}:".encode() + body, key)
    return {"x-slack-request-timestamp": str(at_s), "x-slack-signature": signature}


def generic(body: bytes = BODY, key: str = KEY, at_s: int = NOW_S) -> dict[str, str]:
    return {"x-sent-at": str(at_s), "x-signature": sign(f"{at_s}.".encode() + body, key)}


LAYOUTS: dict[str, Any] = {"github": github, "stripe": stripe, "slack": slack, "generic": generic}
TIMED: dict[str, Any] = {"stripe": stripe, "slack": slack, "generic": generic}

every_layout = pytest.mark.parametrize("scheme", LAYOUTS)
every_timed_layout = pytest.mark.parametrize("scheme", TIMED)


def signature(scheme: str, *keys: str, **options: Any) -> Signature:
    options = {"timestamp_header": "X-Sent-At"} | options if scheme == "generic" else options
    secret: Any = list(keys) if len(keys) > 1 else (keys or (KEY,))[0]
    return Signature(scheme=scheme, secret=secret, **options)


def verify(signature: Signature, headers: dict[str, str], body: bytes, now_s: float) -> str | bool | None:
    """What the door makes of a whole message: False, or its replay key. It comes in two pieces."""
    check = Verifier(signature).begin(headers, now_s)
    if check is None:
        return False
    check.update(body[:5])
    check.update(body[5:])
    return check.end()


def is_genuine(answer: object) -> bool:
    return answer is not False


def test_the_example_of_githubs_documentation_is_genuine() -> None:
    headers = {"x-hub-signature-256": "sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17"}
    answer = verify(Signature(scheme="github", secret="It's a Secret to Everybody"), headers, b"Hello, World!", NOW_S)
    assert is_genuine(answer)


def test_the_example_of_slacks_documentation_is_genuine() -> None:
    body = (
        b"token=xyzz0WbapA4vBCDEFasx0q6G&team_id=T1DC2JH3J&team_domain=testteamnow&channel_id=G8PSS9T3V&channel_name="
        b"foobar&user_id=U2CERLKJA&user_name=roadrunner&command=%2Fwebhook-collect&text=&response_url=https%3A%2F%2F"
        b"hooks.slack.com%2Fcommands%2FT1DC2JH3J%2F397700885554%2F96rGlfmibIGlgcZRskXaIFfN&trigger_id=398738663015.4744"
        b"5629121.803a0bc887a14d10d2c447fce8b6703c"
    )
    headers = {
        "x-slack-request-timestamp": "1531420618",
        "x-slack-signature": "v0=a2114d57b48eac39b9ad189dd8316235a7b4a8d21a10bd27519666489c69b503",
    }
    answer = verify(Signature(scheme="slack", secret="8f742231b10e8888abcd99yyyzzz85a5"), headers, body, 1531420618)
    assert is_genuine(answer)


@every_layout
def test_a_message_signed_with_the_key_is_genuine(scheme: str) -> None:
    assert is_genuine(verify(signature(scheme), LAYOUTS[scheme](), BODY, NOW_S))


@every_layout
def test_another_body_or_another_key_is_refused(scheme: str) -> None:
    assert verify(signature(scheme), LAYOUTS[scheme](), BODY + b" ", NOW_S) is False
    assert verify(signature(scheme), LAYOUTS[scheme](key="another"), BODY, NOW_S) is False


@every_layout
def test_while_rotating_both_keys_are_valid_and_a_third_is_not(scheme: str) -> None:
    rotating = signature(scheme, "new", "old")
    assert is_genuine(verify(rotating, LAYOUTS[scheme](key="new"), BODY, NOW_S))
    assert is_genuine(verify(rotating, LAYOUTS[scheme](key="old"), BODY, NOW_S))
    assert verify(rotating, LAYOUTS[scheme](key="older"), BODY, NOW_S) is False


@every_layout
def test_without_its_headers_a_message_is_refused(scheme: str) -> None:
    complete = LAYOUTS[scheme]()
    assert verify(signature(scheme), {}, BODY, NOW_S) is False
    for absent in complete.keys() - {"x-github-delivery"}:
        assert verify(signature(scheme), {k: v for k, v in complete.items() if k != absent}, BODY, NOW_S) is False


@every_timed_layout
def test_an_old_or_an_early_timestamp_is_refused_however_well_it_is_signed(scheme: str) -> None:
    for off_s in (-300, 300):
        assert is_genuine(verify(signature(scheme), TIMED[scheme](at_s=NOW_S + off_s), BODY, NOW_S))
    for off_s in (-301, 301):
        assert verify(signature(scheme), TIMED[scheme](at_s=NOW_S + off_s), BODY, NOW_S) is False
    assert is_genuine(verify(signature(scheme, window_s=1000), TIMED[scheme](at_s=NOW_S - 900), BODY, NOW_S))


@every_timed_layout
def test_a_timestamp_that_was_changed_is_refused(scheme: str) -> None:
    headers = {name: value.replace(str(NOW_S), str(NOW_S + 1)) for name, value in TIMED[scheme]().items()}
    assert verify(signature(scheme), headers, BODY, NOW_S) is False


@pytest.mark.parametrize("stamp", ["", "abc", "-1", "1e9", "٣", "²", " 1700000000", "9" * 400, "1700000000.5"])
def test_a_timestamp_that_is_no_number_of_seconds_is_refused(stamp: str) -> None:
    signed = sign(stamp.encode() + b"." + BODY)
    assert verify(signature("stripe"), {"stripe-signature": f"t={stamp},v1={signed}"}, BODY, NOW_S) is False
    assert verify(signature("generic"), {"x-sent-at": stamp, "x-signature": signed}, BODY, NOW_S) is False


def test_a_plain_generic_signature_may_have_the_prefix_and_a_header_of_its_own() -> None:
    plain = Signature(secret=KEY, header="X-My-Signature")
    assert verify(plain, {"x-my-signature": sign(BODY)}, BODY, NOW_S) is None
    assert verify(plain, {"x-my-signature": "sha256=" + sign(BODY)}, BODY, NOW_S) is None
    assert verify(plain, {"x-signature": sign(BODY)}, BODY, NOW_S) is False


def test_one_of_several_stripe_signatures_is_enough() -> None:
    good = sign(f"{NOW_S}.".encode() + BODY)
    header = f"t={NOW_S}, v0=zzz, v1={'0' * 64}, v1={good}"
    assert is_genuine(verify(signature("stripe"), {"stripe-signature": header}, BODY, NOW_S))


# Replays.


@every_layout
def test_the_same_message_has_the_same_replay_key_and_another_one_has_another(scheme: str) -> None:
    first = verify(signature(scheme), LAYOUTS[scheme](), BODY, NOW_S)
    again = verify(signature(scheme), LAYOUTS[scheme](), BODY, NOW_S + 1)
    other = {"delivery": "d-2"} if scheme == "github" else {"at_s": NOW_S + 1}
    assert first
    assert again == first
    assert verify(signature(scheme), LAYOUTS[scheme](**other), BODY, NOW_S) not in (first, None, False)


@every_layout
def test_a_message_keeps_its_replay_key_while_keys_are_rotated(scheme: str) -> None:
    rotating = signature(scheme, "new", "old")
    old = verify(rotating, LAYOUTS[scheme](key="old"), BODY, NOW_S)
    assert verify(rotating, LAYOUTS[scheme](key="new"), BODY, NOW_S) == old


def test_a_worthless_signature_beside_the_good_one_does_not_make_another_message() -> None:
    """Whoever repeats a message cannot sign, but can write more into the header."""
    honest = verify(signature("stripe"), stripe(), BODY, NOW_S)
    padded = {"stripe-signature": stripe()["stripe-signature"] + ",v1=00"}
    assert verify(signature("stripe"), padded, BODY, NOW_S) == honest
    honest = verify(signature("generic"), generic(), BODY, NOW_S)
    padded = generic() | {"x-signature": generic()["x-signature"] + ", 00"}
    assert verify(signature("generic"), padded, BODY, NOW_S) == honest


def test_a_replay_key_is_short_whatever_the_sender_writes() -> None:
    key = verify(signature("github"), github(delivery="é" * 8000), BODY, NOW_S)
    assert isinstance(key, str)
    assert len(key) <= 64


def test_equal_bodies_without_number_or_timestamp_are_two_messages() -> None:
    assert verify(signature("github"), github(delivery=None), BODY, NOW_S) is None
    assert verify(Signature(secret=KEY), {"x-signature": sign(BODY)}, BODY, NOW_S) is None


# Garbage.

latin = st.text(st.characters(max_codepoint=255), max_size=80)


@given(scheme=st.sampled_from(sorted(LAYOUTS)), data=st.data())
def test_garbage_in_the_headers_is_refused_and_never_an_error(scheme: str, data: Any) -> None:
    headers = {header: data.draw(latin) for header in LAYOUTS[scheme]()}
    assert verify(signature(scheme), headers, BODY, NOW_S) is False


@given(scheme=st.sampled_from(sorted(LAYOUTS)), place=st.integers(0, 63), character=latin.filter(len))
def test_a_signature_with_any_character_replaced_is_refused(scheme: str, place: int, character: str) -> None:
    headers = LAYOUTS[scheme]()
    header = next(name for name in headers if "signature" in name)
    place -= 64
    changed = headers[header][:place] + character[0] + (headers[header][place + 1 :] if place != -1 else "")
    if changed != headers[header]:
        assert verify(signature(scheme), headers | {header: changed}, BODY, NOW_S) is False


def test_a_signature_shows_no_key_when_printed() -> None:
    assert KEY not in repr(signature("github", KEY, "old")) + str(signature("github"))
