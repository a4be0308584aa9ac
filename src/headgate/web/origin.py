"""Whether a browser was led here by a page of ours, or by another site.

Browsers say so themselves: `Sec-Fetch-Site`, but only to HTTPS and to loopback; `Origin` with every POST. What is said
by neither may come from any page.
"""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import urlsplit

FOREIGN = ("cross-site", "same-site")
HEADER = "x-headgate-console"  # A page of another site would have to ask first, and nobody answers.


def is_own(headers: Mapping[str, str]) -> bool:
    """Whether a page of ours has sent this. Header names are in lower case."""
    if site := headers.get("sec-fetch-site", ""):
        return site == "same-origin"
    return _is_here(headers.get("origin", ""), headers)


def is_act(headers: Mapping[str, str]) -> bool:
    """Whether a script of a page of ours has sent this, so that a session may change something by it: the browser says
    that it is ours, and the header is one that neither a form nor a page of another site can add."""
    return HEADER in headers and is_own(headers)


def is_foreign(headers: Mapping[str, str]) -> bool:
    """Whether another site has led the browser here, as far as it says."""
    if site := headers.get("sec-fetch-site", ""):
        return site in FOREIGN
    named = [headers[name] for name in ("origin", "referer") if headers.get(name)]
    return not all(_is_here(one, headers) for one in named)


def is_direct(headers: Mapping[str, str]) -> bool:
    """Whether the browser says that somebody has typed or opened the address, or that a page of ours has led there."""
    is_early = "prefetch" in headers.get("sec-purpose", "") or headers.get("purpose", "") == "prefetch"
    return headers.get("sec-fetch-site", "") in ("none", "same-origin") and not is_early


def _is_here(url: str, headers: Mapping[str, str]) -> bool:
    try:
        found = urlsplit(url)
    except ValueError:
        return False
    return found.scheme in ("http", "https") and bool(found.netloc) and found.netloc == headers.get("host", "")
