"""Spans and metrics for a collector of OpenTelemetry, by OTLP over HTTP: the extra `otel`.

Off unless `HEADGATE_OTLP`, or one of the standard variables, says where the collector is. Spans are sent by a thread
in batches; if the collector is away they are dropped, which is said once and never holds anything up. The metrics are
those of `/metrics`, made from the same figures every minute.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import threading
import time
from typing import TYPE_CHECKING, Any

import structlog

from headgate import __version__
from headgate.errors import ConfigError, Problem
from headgate.spans import Attribute, spans
from headgate.telemetry.points import metrics_of

if TYPE_CHECKING:
    from headgate.config import Settings
    from headgate.telemetry.metrics import NodeCollector

STANDARD = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT")
EVERY = "OTEL_METRIC_EXPORT_INTERVAL"  # In milliseconds.
USUAL_S, SHORTEST_S = 60.0, 0.1
PART_S = 1.0  # Of a busy stream one batch in this time is told.
SEND_S = 5.0
CLOSE_S = 3.0  # A node that stops does not wait for a collector.

log = structlog.get_logger()


class Begun:
    """A span that has begun."""

    def __init__(self, tracer: Any, name: str, attributes: dict[str, Attribute]) -> None:
        self._tracer = tracer
        self._span = _started(tracer, name, attributes)
        self._names = attributes
        self._told_s = 0.0

    def fail(self, cause: str) -> None:
        """It does not end well."""
        _failed(self._span, cause)

    def part(self, name: str, took_s: float, **attributes: Attribute) -> None:
        """A trace of its own that leads here: a run may go on for months."""
        from opentelemetry.trace import Link

        now_s = time.monotonic()
        if now_s - self._told_s < PART_S:
            return
        self._told_s = now_s
        links = [Link(self._span.get_span_context())]
        _past(self._tracer, name, took_s, {**self._names, **attributes}, links).end()

    def end(self) -> None:
        """It is over."""
        self._span.end()


class Traces:
    """Keeps the spans of this process."""

    def __init__(self, provider: Any) -> None:
        self._tracer = provider.get_tracer("headgate", __version__)

    def begin(self, name: str, attributes: dict[str, Attribute]) -> Begun:
        """Something begins."""
        return Begun(self._tracer, name, attributes)

    def tell(self, name: str, took_s: float, attributes: dict[str, Attribute], cause: str) -> None:
        """Something has just ended."""
        span = _past(self._tracer, name, took_s, attributes)
        if cause:
            _failed(span, cause)
        span.end()


def _started(tracer: Any, name: str, attributes: dict[str, Attribute], **more: Any) -> Any:
    """A span without a parent: what happens to run in the same task is none."""
    from opentelemetry.context import Context

    named = {f"headgate.{key}" if "." not in key else key: value for key, value in attributes.items()}
    return tracer.start_span(name, context=Context(), attributes=named, **more)


def _past(tracer: Any, name: str, took_s: float, attributes: dict[str, Attribute], links: Any = ()) -> Any:
    began_ns = time.time_ns() - int(max(took_s, 0.0) * 1e9)
    return _started(tracer, name, attributes, links=links, start_time=began_ns)


def _failed(span: Any, cause: str) -> None:
    from opentelemetry.trace import StatusCode

    span.set_status(StatusCode.ERROR)
    span.set_attribute("error.type", cause)


class Noting:
    """An exporter that says once that nothing gets through, and once that it does again."""

    def __init__(self, inner: Any, what: str, ok: Any) -> None:
        self._inner = inner
        self._what = what
        self._ok = ok
        self._is_away = False

    def export(self, *given: Any, **more: Any) -> Any:
        """Send it."""
        try:
            result = self._inner.export(*given, **more)
        except Exception as error:  # A library's own fault must not end the thread that sends.
            result, said = None, type(error).__name__
        else:
            said = "the collector does not take it"
        is_away = result is not self._ok
        if is_away != self._is_away:
            self._is_away = is_away
            if is_away:
                log.warning(f"{self._what} do not get through, and are dropped", error=said)
            else:
                log.info(f"{self._what} get through again")
        return result

    def shutdown(self, *given: Any, **more: Any) -> None:
        """Send nothing more."""
        self._inner.shutdown()

    def force_flush(self, *given: Any, **more: Any) -> bool:
        """There is nothing that waits here."""
        return True


def is_wanted(settings: Settings) -> bool:
    """Whether anybody has said where to send it. Standard variables may be meant for other programs: they are no
    reason not to start."""
    if os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return False
    if not settings.otlp and not any(os.environ.get(name) for name in STANDARD):
        return False
    try:
        import opentelemetry.exporter.otlp.proto.http
        import opentelemetry.sdk.trace  # noqa: F401
    except ImportError:
        if settings.otlp:
            raise ConfigError(
                [Problem("HEADGATE_OTLP", "needs OpenTelemetry", "pip install 'headgate[otel]'")]
            ) from None
        log.warning("OTEL_EXPORTER_OTLP_ENDPOINT is set, and headgate[otel] is not installed: nothing is sent")
        return False
    return True


def _every_s() -> float:
    """How often metrics are sent. The variable may be meant for other programs: what it cannot mean is not taken."""
    text = os.environ.get(EVERY, "").strip()
    return max(SHORTEST_S, int(text) / 1000) if text.isdecimal() and len(text) < 12 else USUAL_S


class Telemetry:
    """What is sent to a collector while a node runs."""

    def __init__(self, settings: Settings, node: str, installation: str) -> None:
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.metrics.export import MetricExportResult
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExportResult

        logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)  # It would say the same every few seconds.
        named = {
            "service.name": os.environ.get("OTEL_SERVICE_NAME") or "headgate",
            "service.version": __version__,
            "service.instance.id": node,
            "headgate.installation": installation,
        }
        self._resource = Resource.create(named)
        at = settings.otlp.rstrip("/") if settings.otlp else None
        exporter: Any = OTLPSpanExporter(endpoint=at and f"{at}/v1/traces", timeout=SEND_S)
        self._provider = TracerProvider(resource=self._resource, shutdown_on_exit=False)
        noting: Any = Noting(exporter, "traces", SpanExportResult.SUCCESS)
        self._provider.add_span_processor(BatchSpanProcessor(noting))
        sender: Any = OTLPMetricExporter(endpoint=at and f"{at}/v1/metrics", timeout=SEND_S)
        self._metrics = Noting(sender, "metrics", MetricExportResult.SUCCESS)
        self._began_ns = time.time_ns()
        spans.use(Traces(self._provider))

    async def run(self, collector: NodeCollector) -> None:
        """Send the metrics every now and then, until cancelled."""
        every_s = _every_s()
        while True:
            await asyncio.sleep(every_s)
            with contextlib.suppress(Exception):  # A database that is away: what it alone knows is missing.
                await collector.refresh()
            try:
                for data in await metrics_of(await collector.families(), self._resource, self._began_ns):
                    await asyncio.to_thread(self._metrics.export, data)
            except Exception:  # Nobody awaits this loop: metrics would stop without a word.
                log.exception("metrics could not be sent")

    async def close(self) -> None:
        """Send what waits, if that is quick."""
        spans.use(None)
        closing = threading.Thread(target=self._provider.shutdown, daemon=True)
        closing.start()
        await asyncio.to_thread(closing.join, CLOSE_S)
