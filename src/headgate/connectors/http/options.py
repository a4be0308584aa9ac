"""Options of the HTTP source and sink."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Literal, TypeAlias

from pydantic import AfterValidator, Field, SecretStr, field_validator, model_validator

from headgate.connectors.api import Options, identity
from headgate.connectors.http.targets import target_of
from headgate.connectors.http.templates import fields_of, with_sample_values

MOST_BODY_BYTES = 64 * 1024 * 1024
_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_OURS = frozenset({"host", "content-length", "transfer-encoding", "connection", "te", "upgrade", "accept-encoding"})


def _url(text: str) -> str:
    target_of(text)
    if "@" in text.partition("://")[2].partition("/")[0]:
        raise ValueError("has a user in it: say `auth: {type: basic, …}`")
    if "#" in text:
        raise ValueError("has a fragment, which is not sent")
    return text


def _url_template(text: str) -> str:
    _url(with_sample_values(text))
    return text


def _origin(template: str) -> str:
    return target_of(with_sample_values(template)).origin


def _header_name(text: str) -> str:
    if not _NAME.fullmatch(text):
        raise ValueError("is not the name of a header")
    if text.lower() in _OURS:
        raise ValueError("is a header that Headgate writes itself")
    return text


def _is_header_value(text: str) -> bool:
    return text.isascii() and (text.isprintable() or text.replace("\t", " ").isprintable())


def _header_value(value: str | SecretStr) -> str | SecretStr:
    text = value.get_secret_value() if isinstance(value, SecretStr) else value
    if not _is_header_value(text):
        raise ValueError("has a line break or another sign that no header may have")
    return value


def _secret_value(value: SecretStr) -> SecretStr:
    _header_value(value)
    return value


Url: TypeAlias = Annotated[str, AfterValidator(_url)]
UrlTemplate: TypeAlias = Annotated[str, AfterValidator(_url_template)]
HeaderName: TypeAlias = Annotated[str, AfterValidator(_header_name)]
HeaderValue: TypeAlias = Annotated[str | SecretStr, AfterValidator(_header_value)]
SecretValue: TypeAlias = Annotated[SecretStr, AfterValidator(_secret_value)]


# Who asks.


class HeaderAuth(Options):
    """A key in a header."""

    type: Literal["header"]
    name: HeaderName = Field(description="The header, such as X-Api-Key.")
    value: SecretValue = Field(description="The key.")


class QueryAuth(Options):
    """A key in the query. It is taken out of URLs that the server names, and put in again."""

    type: Literal["query"]
    name: str = Field(min_length=1, description="The parameter, such as api_key.")
    value: SecretStr = Field(description="The key.")


class BasicAuth(Options):
    """A user and a password."""

    type: Literal["basic"]
    user: str = Field(description="The user.")
    password: SecretStr = Field(description="The password.")

    @field_validator("user")
    @classmethod
    def _no_colon(cls, user: str) -> str:
        if ":" in user:
            raise ValueError("has a colon, which would begin the password")
        return user


class BearerAuth(Options):
    """A token."""

    type: Literal["bearer"]
    token: SecretValue = Field(description="The token.")


class OAuth2Auth(Options):
    """OAuth2 client credentials: a token is fetched, kept until it expires, and fetched again once after a 401."""

    type: Literal["oauth2"]
    token_url: Url = Field(description="Where tokens are fetched.")
    client_id: str = Field(description="The client.")
    client_secret: SecretStr = Field(description="Its secret.")
    scope: str | None = Field(None, description="What the token is to be for.")
    params: dict[str, str] = Field({}, description="More fields of the request for a token, such as audience.")
    send: Literal["basic", "body"] = Field("basic", description="Where the client's id and secret stand.")


Auth: TypeAlias = Annotated[HeaderAuth | QueryAuth | BasicAuth | BearerAuth | OAuth2Auth, Field(discriminator="type")]


# Pages.


class LinkPaging(Options):
    """The header Link names the next page (rel="next")."""

    type: Literal["link"]


class CursorPaging(Options):
    """The answer has a cursor, or the URL of the next page."""

    type: Literal["cursor"]
    path: str = Field(min_length=1, description="Where in the answer: meta.next_cursor.")
    param: str | None = Field(None, description="The parameter that it goes into; if absent, it is the next URL.")
    more: str | None = Field(None, description="Where the answer says whether more follows: meta.has_more.")


class PagePaging(Options):
    """Pages have numbers. An empty one is the last."""

    type: Literal["page"]
    param: str = Field("page", min_length=1, description="The parameter.")
    first: int = Field(1, ge=0, description="The number of the first page.")
    more: str | None = Field(None, description="Where the answer says whether more follows: meta.has_more.")


class OffsetPaging(Options):
    """A page begins after this many records. An empty one is the last."""

    type: Literal["offset"]
    param: str = Field("offset", min_length=1, description="The parameter.")
    more: str | None = Field(None, description="Where the answer says whether more follows: meta.has_more.")


Paging: TypeAlias = Annotated[LinkPaging | CursorPaging | PagePaging | OffsetPaging, Field(discriminator="type")]


class Incremental(Options):
    """What is new since the last poll: the largest value of a field goes into a parameter of the next one."""

    field: str = Field(min_length=1, description="Where in a record: updated_at, or meta.version.")
    param: str = Field(min_length=1, description="The parameter that asks for what follows.")
    start: int | float | str | None = Field(None, description="Its value in the first poll; not sent if absent.")


class HttpOptions(Options):
    """What source and sink have in common."""

    headers: dict[HeaderName, HeaderValue] = Field({}, description="Headers of every request. Values may be secrets.")
    auth: Auth | None = Field(None, description="Who asks: header, query, basic, bearer or oauth2.")
    timeout_s: float = Field(30.0, gt=0, le=3600, description="Within this time an answer must be there, wholly.")
    ca_file: str | None = Field(None, description="The authority that signs the server's certificate, as PEM.")


class HttpSourceOptions(HttpOptions):
    """What to ask for, how often, and where the records are."""

    url: Url = identity(description="What to poll: http:// or https://.")
    method: Literal["GET", "POST"] = Field("GET", description="POST sends `body`.")
    params: dict[str, str | int | float | bool] = Field({}, description="Parameters of the query.")
    body: dict[str, object] | list[object] | None = Field(None, description="What a POST sends, as JSON.")
    interval_s: float | None = Field(
        60.0, gt=0, allow_inf_nan=False, description="From one poll to the next; null: one poll, then the source ends."
    )
    format: Literal["json", "jsonl", "csv"] = Field("json", description="What an answer is, whatever it calls itself.")
    records: str = Field("", description="json: where the records are: data.items. Empty: the answer itself.")
    delimiter: str = Field(",", min_length=1, max_length=1, description="csv: what stands between two fields.")
    paging: Paging | None = Field(None, description="How a poll goes on: link, cursor, page or offset.")
    incremental: Incremental | None = identity(None, description="How a poll asks for what is new.")
    max_body_bytes: int = Field(
        10 * 1024 * 1024, gt=0, le=MOST_BODY_BYTES, description="The most bytes of an answer, also unpacked."
    )

    @model_validator(mode="after")
    def _together(self) -> HttpSourceOptions:
        if self.body is not None and self.method == "GET":
            raise ValueError("a GET has no body: say `method: POST`")
        if self.format != "json":
            needs_json = self.records or (self.paging is not None and self.paging.type == "cursor")
            if needs_json or getattr(self.paging, "more", None) is not None:
                raise ValueError(f"{self.format} has no paths: `records`, `paging.path` and `more` are for json")
        return self


class HttpSinkOptions(HttpOptions):
    """Where records go, and how."""

    url: UrlTemplate = identity(description="Where to; {field} is that of the record, encoded.")
    method: Literal["POST", "PUT", "PATCH"] = Field("POST", description="How a record is written.")
    delete_url: UrlTemplate | None = Field(None, description="Where a DELETE goes; without it nothing is deleted.")
    batch: int = Field(1, ge=1, le=10_000, description="The most records in one request. 1: each is sent by itself.")
    batch_bytes: int = Field(
        1 << 20, ge=1, le=MOST_BODY_BYTES, description="The most bytes of one, unless a record has more."
    )
    format: Literal["json", "jsonl"] = Field("json", description="Several records are a JSON array, or JSON Lines.")
    in_flight: int = Field(1, ge=1, le=100, description="Requests at a time. With more than one, order is not kept.")
    idempotency_header: HeaderName | None = Field(
        "Idempotency-Key", description="The header with a key by which a repeated request is known; null: none."
    )

    @model_validator(mode="after")
    def _together(self) -> HttpSinkOptions:
        if self.batch > 1 and fields_of(self.url):
            raise ValueError("a URL with fields is that of one record: say `batch: 1`")
        if self.delete_url is not None and not fields_of(self.delete_url):
            raise ValueError("`delete_url` has no {field}, so each DELETE would be of the same thing")
        if self.delete_url is not None and _origin(self.delete_url) != _origin(self.url):
            raise ValueError("`delete_url` is at another host than `url`, where credentials are not sent")
        return self


def plain_headers(headers: Mapping[str, str | SecretStr]) -> list[tuple[str, str]]:
    """As they are sent."""
    return [
        (name, value.get_secret_value() if isinstance(value, SecretStr) else value) for name, value in headers.items()
    ]
