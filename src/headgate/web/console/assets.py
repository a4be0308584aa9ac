"""Styles, scripts and the icon. They are read once, so that a path is only ever a name to look up."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from litestar import Request, Response, get

from headgate.errors import NotFound

TYPES = {
    "css": "text/css",
    "js": "text/javascript",
    "svg": "image/svg+xml",
}


@dataclass(frozen=True, slots=True)
class Asset:
    """A file that comes with the package."""

    content: bytes
    media_type: str
    etag: str


@cache
def assets() -> dict[str, Asset]:
    """By name."""
    found = {}
    for file in resources.files(__package__).joinpath("static").iterdir():
        suffix = file.name.rpartition(".")[2]
        if suffix in TYPES:
            content = file.read_bytes()
            found[file.name] = Asset(content, TYPES[suffix], f'"{hashlib.sha256(content).hexdigest()[:20]}"')
    return found


@get("/static/{name:path}", include_in_schema=False, sync_to_thread=False)
def asset(request: Request[Any, Any, Any], name: str) -> Response[bytes]:
    """Open to anyone: the sign-in page needs it. Browsers ask each time: modules must fit together."""
    found = assets().get(name.removeprefix("/"))
    if found is None:
        raise NotFound(f"file {name} does not exist")
    headers = {"ETag": found.etag, "Cache-Control": "no-cache"}
    if found.etag in request.headers.get("if-none-match", ""):
        return Response(b"", status_code=304, headers=headers, media_type=found.media_type)
    return Response(found.content, headers=headers, media_type=found.media_type)
