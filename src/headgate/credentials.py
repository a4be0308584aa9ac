"""Passwords, keys and tokens that stand in a text: in a URL, in whichever way, or as `password=…`.

Each driver reads a URL in its own way, so this looks for more than any of them takes: names of parameters in any case
and percent-encoded more than once, a user that is a token, signs in a password that end the host too early,
and the tabs and line breaks that Python leaves out of a URL. What is found is refused in a document and hidden from
people; a text that only looks like a password costs its author an encoded `@`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from urllib.parse import unquote

SHOWN = "***"
MOST_TIMES = 5  # Drivers decode once.

_URL = re.compile(r"([a-z][a-z0-9+.-]*)://", re.IGNORECASE)
_HOST = re.compile(r"[^/?#]*")
_COLON = re.compile(r":|%(?:25)*3a", re.IGNORECASE)
_AT = re.compile(r"@|%(?:25)*40", re.IGNORECASE)
_PORT = re.compile(r".*:\d*\]?", re.DOTALL)
_PARAMETER = re.compile(r"[?&;#]([^=&;#?]*)=([^&;#]*)")
_WORD = re.compile(r"(?:^|[\s;,])([\w%.-]+)\s*=\s*('(?:[^'\\]|\\.)*'?|\"[^\"]*\"?|[^\s;,&]+)")
_PROSE = re.compile(r"[^\s'\"`<>]*")
_SECRET = re.compile(
    r"password|passwd|passphrase|secret|credential|apikey|accesskey|accountkey|sharedkey|signature"
    r"|token$|pwd$|privatekey$"
)
_SECRET_IN_URL = re.compile(r"^(?:pass|pw|key|sig|sas|auth|authorization)$")  # Elsewhere these are words like others.
_TOKEN_AS_USER = {"http", "https", "ws", "wss", "nats", "tls", "git"}  # A user alone may be the way in.
_PATHS_WITH_AT = {"http", "https", "ws", "wss"}  # https://example.com/@ada is a page.
_DROPPED = str.maketrans("", "", "\t\r\n")


def has_credentials(text: str, *, in_prose: bool = False) -> bool:
    """Whether this text says how to get in. In prose, and in code, a URL ends at a blank or a quote."""
    if "/" not in text and "=" not in text:
        return False  # Neither a URL nor a parameter.
    return any(any(_spans(one, in_prose)) for one in {text, text.translate(_DROPPED)})


def is_public_url(text: str) -> bool:
    """Whether this is a URL that says where, and not how to get in."""
    return "://" in text and not has_credentials(text)


def credentials_in(text: str) -> list[str]:
    """What says how to get in."""
    return [text[start:end] for start, end in _spans(text, in_prose=False)]


def hide_credentials(text: str, *, in_prose: bool = False) -> str:
    """The text for people: `***` in place of what says how to get in."""
    covered = _covered(text, sorted(_spans(text, in_prose)))
    joined = covered.translate(_DROPPED)
    left = [(start, end) for start, end in _spans(joined, in_prose) if joined[start:end] != SHOWN]
    return _covered(joined, sorted(left)) if left else covered


def _covered(text: str, spans: list[tuple[int, int]]) -> str:
    pieces, done = [], 0
    for start, end in spans:
        if start >= done:
            pieces += [text[done:start], SHOWN]
        done = max(done, end)
    return "".join([*pieces, text[done:]])


def _spans(text: str, in_prose: bool) -> Iterator[tuple[int, int]]:
    """From where to where: of every URL, and of `password=…` outside one."""
    urls = list(_URL.finditer(text))
    ends = [url.start() for url in urls[2:]] + [len(text)] * 2  # A password may look like a URL; not without end.
    for found, last in zip(urls, ends, strict=False):
        rest = text[found.end() : last]
        if in_prose:
            rest = _matched(_PROSE, rest)
        for start, end in _of_url(found[1].lower(), rest):
            if not (in_prose and rest[start:end] == SHOWN):
                yield found.end() + start, found.end() + end
    if not in_prose:
        yield from (found.span(2) for found in _WORD.finditer(text) if _SECRET.search(_plain(found[1])))


def _of_url(scheme: str, rest: str) -> Iterator[tuple[int, int]]:
    """The same in what follows `scheme://`."""
    host = _matched(_HOST, rest)
    last = rest.rfind("@")
    is_cut = last >= len(host) and (scheme not in _PATHS_WITH_AT or not _has_port(host))
    if is_cut and _COLON.search(rest, 0, last):  # A sign in the password ended the host: any part may belong to it.
        yield _from_colon(rest, last)
    elif "@" in host:
        at = host.rfind("@")
        start, end = _from_colon(host, at)
        if start < end or (_COLON.search(host, 0, at) is None and at and scheme in _TOKEN_AS_USER):
            yield (start, end) if start < end else (0, at)
    elif not _has_port(host) and (ats := list(_AT.finditer(host))):
        yield _from_colon(host, ats[-1].start())
    for found in _PARAMETER.finditer(rest):
        if found[2] and _is_secret(_plain(found[1]), found[2]):
            yield found.span(2)


def _from_colon(text: str, end: int) -> tuple[int, int]:
    """From behind the first colon to there; of a text without one, nothing."""
    colon = _COLON.search(text, 0, end)
    return (colon.end(), end) if colon else (end, end)


def _has_port(host: str) -> bool:
    """Whether this can be a host, or several: what follows the last colon is a port."""
    return _COLON.search(host) is None or _PORT.fullmatch(host) is not None


def _is_secret(name: str, value: str) -> bool:
    """Whether a URL's parameter of this name is a way in."""
    if name == "authmechanismproperties":  # MongoDB's: a list of names and values.
        return "token" in _decoded(value).lower()
    return bool(_SECRET.search(name) or _SECRET_IN_URL.search(name))


def _plain(name: str) -> str:
    """A parameter's name in lower case, without signs."""
    return re.sub(r"[\W_]", "", _decoded(name).lower())


def _decoded(text: str) -> str:
    """Without percent-encoding, which somebody may have applied more than once."""
    for _ in range(MOST_TIMES):
        if (plain := unquote(text)) == text:
            break
        text = plain
    return text


def _matched(pattern: re.Pattern[str], text: str) -> str:
    found = pattern.match(text)
    return found[0] if found else ""
