"""Asks a node over HTTP, and turns its answers into values or into the errors that the rest of Headgate raises.

Where the node is: `--url`, else `HEADGATE_URL`, else what the nodes of this `HEADGATE_HOME` wrote to `node.json`, else
the default port on this machine. Who asks: `--token`, else `HEADGATE_TOKEN`, else the file `token` in that folder.

A token goes to the installation that it is of. A port may have come to belong to another node, or to another program:
unless both the URL and the token were given, the node is first asked, without the token, for its installation, and
what it says must be what the home remembers. No redirect is followed.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Generic, TypeVar
from urllib.parse import urlsplit

from headgate.cli import home as homes
from headgate.cli.trust import pinned, trusting
from headgate.errors import (
    Busy,
    ConfigError,
    Forbidden,
    HeadgateError,
    NotFound,
    Problem,
    Refused,
    StoreError,
    Unauthorized,
)
from headgate.text import one_line

if TYPE_CHECKING:
    import ssl

    import httpx

T = TypeVar("T")

DEFAULT_URL = "http://127.0.0.1:8470"
CONNECT_S = 5.0
KNOCK_S = 5.0  # It asks for nothing that a node would have to look up.
ANSWER_S = 60.0  # Applying a file of a thousand datasources is one request.
SILENCE_S = 20.0  # A node sends a comment every few seconds; one that is silent for longer is gone, and asked again.

OF_COMMANDS = ("HEADGATE_URL", "HEADGATE_TOKEN", "HEADGATE_CA", "HEADGATE_HOME")

_KINDS: dict[int, type[HeadgateError]] = {
    401: Unauthorized,
    403: Forbidden,
    404: NotFound,
    409: Refused,
    429: Busy,
    503: StoreError,
}
_MESSAGES = {401: "the token is missing or wrong", 403: "this token's role does not allow that"}
_HINTS = {401: "give a token with --token or HEADGATE_TOKEN", 403: "use a token with another role"}


class Unreachable(HeadgateError):
    """No node answers at this URL."""

    code = "unreachable"


class Interrupted(HeadgateError):
    """A stream ended; it may be asked for again."""

    code = "interrupted"


@dataclass(frozen=True, slots=True)
class Reply(Generic[T]):
    """What a node answered: as it was sent, for machines, and as a value, for us."""

    sent: Any
    value: T


def read(sent: Any, kind: type[T], where: str) -> Reply[T]:
    """What was sent, read as a value of this kind."""
    import msgspec

    try:
        return Reply(sent, msgspec.convert(sent, kind))
    except msgspec.ValidationError as error:
        raise HeadgateError(
            f"{where} does not answer as a Headgate node of this release: {error}",
            hint="check --url, and that the node is of the same release",
        ) from None


def refuse_unknown_settings() -> None:
    """A misspelled setting is an error here too. The settings are imported only if there is something to judge."""
    named = [name for name in os.environ if name.upper().startswith("HEADGATE_") and name not in OF_COMMANDS]
    if named or Path("headgate.toml").exists():
        from headgate.config import unknown_names

        if problems := unknown_names():
            raise ConfigError(problems)


class Client:
    """A node, as commands see it."""

    def __init__(self, url: str | None, token: str | None, ca: str | None = None) -> None:
        self._ca = ca
        self._home = homes.home()
        self._given = url.rstrip("/") if url else None
        self._token = token or homes.read_token(self._home)
        self._was_all_given = self._given is not None and (token or None) == self._token

    @cached_property
    def url(self) -> str:
        """Where the node is. Of several in this home, the first that answers for its installation."""
        if self._given:
            return self._given
        places = [place.url for place in homes.places(self._home)]
        if len(places) > 1:
            expected = homes.installation(self._home)
            return next((url for url in places if self._is_of(url, expected)), places[0])
        return places[0] if places else DEFAULT_URL

    @property
    def home(self) -> Path:
        """Whose nodes and whose token are meant where none is named."""
        return self._home

    @property
    def is_named(self) -> bool:
        """Whether somebody has said which node to ask."""
        return self._given is not None

    def get(self, path: str, kind: type[T], **params: Any) -> Reply[T]:
        """Read."""
        return self._read(self.send("GET", path, params=params), kind)

    def get_text(self, path: str, **params: Any) -> str:
        """Read what is not JSON."""
        return str(self._checked(self.send("GET", path, params=params)).text)

    def download(self, path: str, out: BinaryIO, **params: Any) -> int:
        """Write what is not JSON, piece by piece. Returns how many bytes there were."""
        import httpx

        given, written = {key: value for key, value in params.items() if value is not None}, 0
        try:
            with self._http.stream(
                "GET", path, params=given, headers=self._credentials, timeout=_timeout(ANSWER_S)
            ) as response:
                if not response.is_success:
                    response.read()
                    self._checked(response)
                for piece in response.iter_bytes():
                    written += out.write(piece)
        except httpx.ConnectError as error:
            raise self._unreachable(error) from error
        except httpx.TransportError as error:
            raise Interrupted(f"{self.url} broke off: {one_line(error)}") from error
        out.flush()
        return written

    def post(self, path: str, kind: type[T], body: Any = None, **params: Any) -> Reply[T]:
        """Do."""
        return self._read(self.send("POST", path, body, params), kind)

    def put(self, path: str, kind: type[T], body: Any, **params: Any) -> Reply[T]:
        """Write."""
        return self._read(self.send("PUT", path, body, params), kind)

    def delete(self, path: str, **params: Any) -> None:
        """Remove."""
        self._checked(self.send("DELETE", path, params=params))

    def remove(self, path: str, kind: type[T], **params: Any) -> Reply[T]:
        """Remove what leaves something to say."""
        return self._read(self.send("DELETE", path, params=params), kind)

    def send(self, method: str, path: str, body: Any = None, params: Any = None, answer_s: float = ANSWER_S) -> Any:
        """One request; its response, whatever the status."""
        import httpx

        given = {key: value for key, value in (params or {}).items() if value is not None}
        try:
            json.dumps(body, allow_nan=False)
        except (TypeError, ValueError, RecursionError) as error:
            raise ConfigError(f"this cannot be sent as JSON: {error}") from None
        try:
            return self._http.request(
                method, path, json=body, params=given, headers=self._credentials, timeout=_timeout(answer_s)
            )
        except (httpx.TransportError, httpx.InvalidURL, ValueError) as error:
            raise self._unreachable(error) from error

    def stream(self, path: str, kind: type[T], **params: Any) -> Iterator[Reply[T]]:
        """Server-sent events, each as its data. Raises Interrupted when the connection ends."""
        import httpx

        accept = {"Accept": "text/event-stream", **self._credentials}
        try:
            with self._http.stream("GET", path, params=params, headers=accept, timeout=_timeout(SILENCE_S)) as response:
                if not response.is_success:
                    response.read()
                    self._checked(response)
                for sent in _events(response.iter_lines()):
                    yield read(sent, kind, self.url)
        except httpx.ConnectError as error:
            raise self._unreachable(error) from error
        except httpx.TransportError as error:
            raise Interrupted(f"{self.url} ended the stream: {error}") from error
        raise Interrupted(f"{self.url} ended the stream")

    # Whose node it is.

    @cached_property
    def _credentials(self) -> dict[str, str]:
        """The token, once it is known that it may go there."""
        expected = homes.installation(self._home)
        if not self._was_all_given and expected is not None:
            if self.installation() != expected:
                raise Refused(
                    f"{self.url} is a node of another installation than {self._home}",
                    hint="say which node with --url, and give its token with --token",
                )
        elif not self._was_all_given and self._token is not None:
            raise Refused(
                f"nobody knows of which installation the token is, and {self.url} may be of another",
                hint="say both --url and --token, or start the node of this HEADGATE_HOME again",
            )
        return {"Authorization": f"Bearer {self._token}"} if self._token else {}

    def installation(self, answer_s: float = KNOCK_S) -> str:
        """The installation that the node says it is of. It is not told who asks."""
        import httpx

        try:
            found = _installation(self._http, answer_s)
        except (httpx.TransportError, httpx.InvalidURL, ValueError) as error:
            raise self._unreachable(error) from error
        if found is None:
            raise HeadgateError(
                f"{self.url} is not a Headgate node of this release", hint="check --url; it was sent no token"
            )
        return found

    def _is_of(self, url: str, expected: str | None) -> bool:
        import httpx

        try:
            with self._open(url) as http:
                found = _installation(http)
        except (httpx.TransportError, HeadgateError, ValueError):
            return False
        return found is not None and expected in (None, found)

    @cached_property
    def _http(self) -> httpx.Client:
        return self._open(self.url)

    def _open(self, url: str) -> httpx.Client:
        import httpx

        # A proxy of the environment leads elsewhere, and cannot see this machine's loopback.
        parts = urlsplit(url)
        is_local = parts.hostname in ("127.0.0.1", "::1", "localhost")
        try:
            return httpx.Client(base_url=url, trust_env=not is_local, verify=self._trust(url))
        except (httpx.InvalidURL, ValueError) as error:
            raise ConfigError(f"{url} cannot be used: {error}", hint="check --url") from None

    def _trust(self, url: str) -> ssl.SSLContext | bool:
        """Whose certificates are accepted: the very one that a node of this home shows, whatever names are in it; else
        those of the CA that was named; else of those that everybody trusts."""
        if urlsplit(url).scheme != "https":
            return False  # Reading certificates takes longer than the request; plain HTTP has no use for them.
        files = [place.certificate for place in homes.places(self._home) if place.url == url]
        if files and files[0]:
            return pinned(files[0])
        return trusting(self._ca) if self._ca else True

    def _unreachable(self, error: Exception) -> Unreachable:
        reason = one_line(error)
        hint = "start a node with `headgate up`, or say where it is with --url or HEADGATE_URL"
        if "CERTIFICATE_VERIFY_FAILED" in reason:
            hint = "name the certificate authority of the node with --ca or HEADGATE_CA"
        return Unreachable(f"no node answers at {self.url}: {reason}", hint=hint)

    def _read(self, response: Any, kind: type[T]) -> Reply[T]:
        self._checked(response)
        try:
            sent = response.json()
        except ValueError:
            raise HeadgateError(f"{self.url} is not a Headgate node", hint="check --url") from None
        return read(sent, kind, self.url)

    def _checked(self, response: Any) -> Any:
        if not response.is_success:
            raise _failure(response)
        return response


def _installation(http: httpx.Client, answer_s: float = KNOCK_S) -> str | None:
    """The installation that a node says it is of; None if this is no node. One that starts does not know yet."""
    response = http.get("/api/installation", timeout=_timeout(answer_s))
    if response.status_code == 503:
        raise _failure(response)
    try:
        found = response.json() if response.status_code == 200 else None
    except ValueError:
        return None
    match found:
        case {"installation": str(id)}:
            return id
    return None


def _timeout(read_s: float) -> Any:
    import httpx

    return httpx.Timeout(read_s, connect=CONNECT_S)


def _failure(response: Any) -> HeadgateError:
    """The error that an RFC 9457 problem describes."""
    try:
        said = response.json()
    except ValueError:
        said = None
    said = said if isinstance(said, dict) else {}
    status = response.status_code
    message = said.get("detail") or _MESSAGES.get(status) or f"{response.url} answers with status {status}"
    hint = said.get("hint") or _HINTS.get(status, "")
    found = [
        Problem(str(one.get("path") or ""), str(one.get("message") or ""), str(one.get("hint") or ""))
        for one in said.get("problems") or []
    ]
    if status == 409 and found:
        return Refused(str(message), hint=hint, code=str(said.get("code") or ""), problems=found)
    if status in (400, 422):
        return ConfigError(found) if found else ConfigError(str(message), hint=hint)
    return _KINDS.get(status, HeadgateError)(str(message), hint=hint, code=str(said.get("code") or ""))


def _events(lines: Iterator[str]) -> Iterator[dict[str, Any]]:
    """The data of each event. Comments, which only keep the connection alive, and other fields are skipped."""
    data: list[str] = []
    for line in lines:
        if line.startswith("data:"):
            data.append(line.removeprefix("data:").removeprefix(" "))
        elif not line and data:
            text, data = "\n".join(data), []
            try:
                found = json.loads(text)
            except ValueError:
                continue
            if isinstance(found, dict):
                yield found
