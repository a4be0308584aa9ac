"""Sources of Airbyte that are Python packages: <https://docs.airbyte.com/platform/understanding-airbyte/airbyte-protocol>.

A source is started with a configuration, a *configured catalog* that says which streams are read and how, and the
states that it has said. It says records and states. A state is that of one stream, or a global one, which stands for
all streams that share it; sources of before 2022 have one state without a name. The position holds the latest of each.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from headgate.connectors.api import Context, SourceStream
from headgate.connectors.bridges.child import Program, output_of
from headgate.connectors.bridges.gathered import Gathered
from headgate.connectors.bridges.messages import Shape, Shapes, catalog_in, decoded, encoded_catalog
from headgate.connectors.bridges.options import AirbyteOptions, StreamChoice
from headgate.connectors.bridges.running import DISCOVER_S, Failed, Incomplete, failed, place_of
from headgate.connectors.bridges.said import Said
from headgate.connectors.bridges.singer import CATALOG_BYTES, refuse_absent
from headgate.errors import Cause, ConnectorError
from headgate.hidden import hide
from headgate.text import one_line

# What a source says of its own failure.
CAUSES = {"config_error": Cause.CONFIG, "transient_error": Cause.NETWORK, "system_error": Cause.BUG}
_COMPLETE = ("__ab_full_refresh_sync_complete", "__ab_no_cursor_state_message")
GLOBAL, LEGACY = "global", "legacy"  # Keys of the states that are not of one stream.


class Record(msgspec.Struct):
    """A record, not decoded yet."""

    stream: str
    data: msgspec.Raw
    emitted_at: int | None = None
    namespace: str | None = None


class Log(msgspec.Struct):
    """Something for people."""

    message: str = ""
    level: str = "INFO"


class Descriptor(msgspec.Struct):
    """Which stream."""

    name: str


class TracedError(msgspec.Struct):
    """Why the source failed, or one of its streams."""

    message: str = ""
    internal_message: str | None = None
    failure_type: str | None = None
    stream_descriptor: Descriptor | None = None


class StreamStatus(msgspec.Struct):
    """How far it is with a stream."""

    stream_descriptor: Descriptor
    status: str = ""


class Trace(msgspec.Struct):
    """What happens to the source."""

    type: str = ""
    error: TracedError | None = None
    stream_status: StreamStatus | None = None


class Status(msgspec.Struct):
    """Whether the source could read."""

    status: str
    message: str | None = None


class Message(msgspec.Struct):
    """One line of a source."""

    type: str
    record: Record | None = None
    state: msgspec.Raw = msgspec.Raw(b"")
    log: Log | None = None
    trace: Trace | None = None
    catalog: msgspec.Raw = msgspec.Raw(b"")
    status: Status | None = msgspec.field(default=None, name="connectionStatus")


_MESSAGE = msgspec.json.Decoder(Message)


class AirbyteSource:
    """A source that is installed here."""

    def __init__(self, options: AirbyteOptions, context: Context) -> None:
        self._options = options
        self._log = context.log
        self._context = context
        self._place = place_of(options, context)
        self._shapes = Shapes[tuple[str | None, str]]()
        self._states: dict[str, Any] = {}

    @property
    def runs(self) -> Path:
        """Where programs have their folders."""
        return self._place.runs

    @property
    def streams(self) -> list[SourceStream]:
        """Those that it has named."""
        return self._shapes.streams

    async def check(self) -> None:
        """Ask the source itself."""
        async for message in self._asked("check"):
            if message.type == "CONNECTION_STATUS" and message.status is not None:
                if message.status.status == "SUCCEEDED":
                    return
                said = Said(self._log, self._options.source)
                said.note((message.status.message or "").encode())
                cause = said.cause() or Cause.CONFIG
                raise ConnectorError(f"{self._options.source} cannot read: {said.last()}", cause=cause)
        raise ConnectorError(f"{self._options.source} does not say whether it can read", cause=Cause.BUG)

    async def program(self, state: Any) -> Program:
        """With the streams that it has now."""
        self._place = place_of(self._options, self._context)  # Another version may have taken its place since.
        streams = await self._streams()
        self._states = dict(state) if isinstance(state, dict) else {}
        self._shapes = Shapes()
        for one in streams:
            key = [".".join(map(str, path)) for path in one["primary_key"]]
            name, namespace = one["stream"]["name"], one["stream"].get("namespace")
            meta = {"stream": name, "key": key, **({"namespace": namespace} if namespace else {})}
            self._shapes[namespace, name] = Shape(one["stream"].get("json_schema"), meta)
            await asyncio.sleep(0)  # There may be thousands.
        files = {"config": self._config(), "catalog": await encoded_catalog({"streams": streams})}
        command = [self._place.executable, "read", "--config", "{config}", "--catalog", "{catalog}"]
        begun = {name: one for name, one in self._states.items() if isinstance(one, dict) and not _is_complete(one)}
        if begun:
            legacy = begun.get(LEGACY)
            known = [one for name, one in begun.items() if name != LEGACY]
            files["state"] = msgspec.json.encode(legacy.get("data") if legacy is not None and not known else known)
            command += ["--state", "{state}"]
        return self._made(command, files)

    def take(self, line: bytes, into: Gathered, said: Said) -> None:
        """One line."""
        try:
            message = _MESSAGE.decode(line)
        except (msgspec.MsgspecError, UnicodeError):
            self._take_other(line, into, said)
            return
        match message.type:
            case "RECORD" if message.record is not None:
                self._take_record(message.record, line, into)
            case "STATE":
                self._take_state(message.state, into)
            case "LOG" if message.log is not None:
                said.note(f"{message.log.level} {message.log.message}".encode())
            case "TRACE" if message.trace is not None:
                self._take_trace(message.trace, said)
            case "CONTROL":
                said.note(b"the source has changed its configuration, which is not kept: set the secret again")
            case _:
                pass

    def _take_trace(self, trace: Trace, said: Said) -> None:
        """An error that names a stream is that stream's: the source goes on with the others, and fails in the end."""
        source, status = self._options.source, trace.stream_status
        if trace.error is not None:
            raise _traced(source, trace.error, said)
        if status is not None and status.status == "INCOMPLETE":
            text = f"{source} could not read stream {one_line(status.stream_descriptor.name, 200)!r} to its end"
            raise Incomplete(text, cause=said.cause() or Cause.BUG)

    def _take_record(self, record: Record, line: bytes, into: Gathered) -> None:
        shape = self._shapes.get((record.namespace, record.stream)) or self._add_shape(record)
        try:
            found = shape.record(record.data)
        except (ValueError, RecursionError):
            into.add_unreadable(line, "the record is not JSON", len(line))
            return
        meta = shape.meta if record.emitted_at is None else {**shape.meta, "emitted_at": record.emitted_at / 1000}
        into.add(found, meta, len(line))

    def _add_shape(self, record: Record) -> Shape:
        """Of a stream that the catalog does not have, or not with this namespace. Two namespaces may have records of
        one key."""
        known = self._shapes.get((None, record.stream)) or Shape(None, {"stream": record.stream, "key": []})
        if record.namespace:
            known = Shape(known.schema, {**known.meta, "namespace": record.namespace})
        self._shapes[record.namespace, record.stream] = known
        return known

    def _take_state(self, raw: msgspec.Raw, into: Gathered) -> None:
        try:
            state = decoded(raw)
            name = _key_of(state)
        except (ValueError, RecursionError, TypeError, KeyError, AttributeError):
            raise Failed(f"{self._options.source} says a state that nobody understands", cause=Cause.BUG) from None
        # The counts in it are for a platform that compares them; they would make each position longer.
        kept = {word: value for word, value in state.items() if word not in ("sourceStats", "destinationStats")}
        self._states = {**self._states, name: kept}
        into.mark(self._states)

    def _take_other(self, line: bytes, into: Gathered, said: Said) -> None:
        stripped = line.strip()
        if stripped.startswith(b"{") and b'"RECORD"' in stripped[:200]:
            into.add_unreadable(line, "the line is not JSON", len(line))
        elif stripped:
            said.note(stripped[:1000])

    # Asking.

    def _config(self) -> bytes:
        return msgspec.json.encode(self._options.whole())

    def _made(self, command: list[str], files: Mapping[str, bytes]) -> Program:
        options, environment = self._options, self._place.environment
        return Program(options.source, command, environment, files, options.memory_mb, options.max_line_bytes)

    async def _asked(self, command: str) -> Any:
        """The messages with which it answers."""
        program = self._made([self._place.executable, command, "--config", "{config}"], {"config": self._config()})
        try:
            code, lines, said = await output_of(program, self.runs, self._log, DISCOVER_S, CATALOG_BYTES)
        except TimeoutError:
            raise ConnectorError(f"{self._options.source} did not answer", cause=Cause.NETWORK) from None
        for message in _messages(lines):
            if message.trace is not None and message.trace.error is not None:
                raise _traced(self._options.source, message.trace.error, said)
            yield message
        if code != 0:
            raise failed(self._options.source, code, said)

    async def _streams(self) -> list[dict[str, Any]]:
        """The configured catalog."""
        async for message in self._asked("discover"):
            if message.type == "CATALOG":
                try:
                    found = [one for one in (await catalog_in(message.catalog))["streams"] if one["name"]]
                except (ValueError, RecursionError, TypeError, KeyError):
                    break
                return configured(found, self._options.choices, self._options.source)
        raise ConnectorError(f"{self._options.source} says no catalog", cause=Cause.BUG)


def configured(
    streams: list[dict[str, Any]], choices: Mapping[str, StreamChoice] | None, source: str
) -> list[dict[str, Any]]:
    """The streams that are wanted, and how each is read: by what is new, where the source can."""
    refuse_absent(source, choices, [str(one["name"]) for one in streams])
    found = []
    for one in streams:
        choice = None if choices is None else choices.get(one["name"])
        if choices is not None and choice is None:
            continue
        modes = one.get("supported_sync_modes") or ["full_refresh"]
        cursor = [choice.cursor] if choice is not None and choice.cursor else one.get("default_cursor_field") or []
        is_able = "incremental" in modes and bool(cursor or one.get("source_defined_cursor"))
        wanted = choice.replication if choice is not None else None
        if wanted in ("incremental", "log") and not is_able:
            said = f"{source} cannot read {one['name']!r} by what is new"
            raise ConnectorError(said, cause=Cause.CONFIG, hint="replication: full, or name a `cursor`")
        mode = "incremental" if is_able and wanted != "full" else "full_refresh"
        configured_stream = {
            "stream": one,
            "sync_mode": mode,
            "destination_sync_mode": "append",
            "cursor_field": cursor,
            "primary_key": one.get("source_defined_primary_key") or [],
        }
        found.append(configured_stream)
    return found


def _messages(lines: list[bytes]) -> Iterator[Message]:
    for line in lines:
        try:
            yield _MESSAGE.decode(line)
        except (msgspec.MsgspecError, UnicodeError, RecursionError):
            continue


def _key_of(state: dict[str, Any]) -> str:
    """Which of the states this one takes the place of."""
    match state.get("type", "LEGACY"):
        case "STREAM":
            of = state["stream"]["stream_descriptor"]
            return f"stream {of.get('namespace') or ''}/{of['name']}"
        case "GLOBAL":
            return GLOBAL
        case _:
            if "data" not in state:
                raise KeyError("data")
            return LEGACY


def _is_complete(state: dict[str, Any]) -> bool:
    """Whether it says that a stream was read in full: then the next run reads it in full again."""
    of = state.get("stream")
    inner = of.get("stream_state") if isinstance(of, dict) else None
    return isinstance(inner, dict) and any(inner.get(word) for word in _COMPLETE)


def _traced(source: str, error: TracedError, said: Said) -> Failed:
    text = ": ".join(filter(None, (error.message, error.internal_message)))
    said.note(text.encode())
    cause = CAUSES.get(error.failure_type or "", Cause.BUG)
    if cause is not Cause.NETWORK:
        told = said.cause()
        cause = told if told is Cause.AUTH or (told is not None and cause is Cause.BUG) else cause
    stream = error.stream_descriptor
    what = f"{source} fails" if stream is None else f"{source} fails with stream {one_line(stream.name, 200)!r}"
    kind = Failed if stream is None else Incomplete
    return kind(f"{what}: {one_line(hide(text), 500) or said.last()}", cause=cause)
