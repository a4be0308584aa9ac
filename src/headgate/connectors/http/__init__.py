"""HTTP: a source that polls a URL, and a sink that sends records to one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from headgate.connectors.api import Connector, Context, Position, Sink, SinkKind, Source, SourceKind
from headgate.connectors.guard import Guard
from headgate.connectors.http.options import HttpOptions, HttpSinkOptions, HttpSourceOptions
from headgate.connectors.places import Place, place_of_path, places_in, places_of_url


def _source(options: HttpSourceOptions, context: Context) -> Source:
    from headgate.connectors.http.source import HttpSource

    return HttpSource(options, context)


def _sink(options: HttpSinkOptions, context: Context) -> Sink:
    from headgate.connectors.http.sink import HttpSink

    return HttpSink(options, context)


def _tell_move(before: Position, after: Position) -> str:
    from headgate.connectors.http.source import tell_move

    return tell_move(before, after)


def _reaches(options: HttpOptions) -> Sequence[Place]:
    authority = [place_of_path(options.ca_file, "ca_file")] if options.ca_file is not None else []
    return [*places_in(options), *authority]


async def _probe(options: HttpSourceOptions | HttpSinkOptions, guard: Guard) -> None:
    """Its own server, not that of its tokens. Nothing is asked: a question may cost something there."""
    await guard.knock(places_of_url(options.url))


async def post(
    url: str, headers: Mapping[str, str], body: bytes, guard: Guard, timeout_s: float, ca_file: str | None = None
) -> None:
    """Send one request with a body, for others than streams. Raises ConnectorError unless it was taken."""
    from headgate.connectors.http.posts import post

    await post(url, headers, body, guard, timeout_s, ca_file)


def check_url(url: str) -> None:
    """Whether a request can be sent there. Raises ValueError."""
    from headgate.connectors.http.targets import target_of

    target_of(url)


CONNECTOR = Connector(
    name="http",
    summary="Poll a URL for records, or send records to one",
    source=SourceKind(
        HttpSourceOptions,
        _source,
        tell_move=_tell_move,
        reaches=_reaches,
        probe=_probe,
        promise="each page exactly once into a transactional sink",
    ),
    sink=SinkKind(
        HttpSinkOptions,
        _sink,
        can_delete=lambda options: options.delete_url is not None,
        reaches=_reaches,
        probe=_probe,
        promise="deduplicated by a server that honours Idempotency-Key, else at least once",
    ),
)
