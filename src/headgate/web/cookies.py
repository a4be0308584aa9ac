"""The cookie that holds a session's text.

Browsers do not tell ports apart, so its name has the installation in it: two nodes of different installations on one
machine do not sign each other's readers out. Over TLS it has the prefix `__Host-`, so that nobody else can set it.
"""

from __future__ import annotations

from collections.abc import Mapping
from uuid import UUID

from litestar.datastructures import Cookie

from headgate.store.sessions import LONGEST_S

PREFIX = "__Host-"


class Cookies:
    """The cookies of one node."""

    def __init__(self, installation: UUID, *, is_tls: bool) -> None:
        self._name = f"headgate_{installation.hex[:12]}"
        self._is_tls = is_tls

    def read(self, headers: Mapping[str, str]) -> str:
        """The text in a request, or nothing. A name that comes twice was set by somebody else too."""
        found: dict[str, list[str]] = {}
        for pair in headers.get("cookie", "").split(";"):
            name, _, value = pair.strip().partition("=")
            found.setdefault(name, []).append(value)
        names = [PREFIX + self._name] if self._is_tls else [PREFIX + self._name, self._name]
        texts = next((found[name] for name in names if name in found), [])
        return texts[0] if len(texts) == 1 else ""

    def write(self, text: str, headers: Mapping[str, str]) -> list[Cookie]:
        """Have the browser keep this text."""
        return [self._cookie(text, int(LONGEST_S), is_secure=self._is_secure(headers))]

    def clear(self) -> list[Cookie]:
        """Have the browser keep nothing."""
        return [self._cookie("", 0, is_secure=True), self._cookie("", 0, is_secure=False)]

    def _is_secure(self, headers: Mapping[str, str]) -> bool:
        """A proxy may speak TLS in our place; the browser says so with what a form sends."""
        return self._is_tls or headers.get("origin", "").startswith("https://")

    def _cookie(self, text: str, keep_s: int, *, is_secure: bool) -> Cookie:
        return Cookie(
            key=(PREFIX if is_secure else "") + self._name,
            value=text,
            max_age=keep_s,
            path="/",
            httponly=True,
            samesite="strict",
            secure=is_secure,
        )
