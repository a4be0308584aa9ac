"""The metrics of a node as OpenTelemetry wants them, made from the families that Prometheus reads.

Names are the same without `_total`, which a collector adds again for those who read Prometheus.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from headgate import __version__
from headgate.telemetry.exposition import Family

if TYPE_CHECKING:
    from opentelemetry.sdk.metrics.export import MetricsData

_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_ESCAPES = {"\\\\": "\\", '\\"': '"', "\\n": "\n"}
AT_ONCE = 1000  # Points that go in one request.


def labels_of(rest: str) -> dict[str, str]:
    """What follows a name, taken apart."""
    return {
        name: re.sub(r"\\.", lambda found: _ESCAPES.get(found[0], found[0]), value)
        for name, value in _LABEL.findall(rest)
    }


async def metrics_of(families: Iterable[Family], resource: Any, began_ns: int) -> list[MetricsData]:
    """All of them, in pieces that a collector takes. Others have the loop after each."""
    found: list[MetricsData] = []
    for family in families:
        samples = list(family.samples)
        if family.kind == "histogram":
            found.append(_data(_histogram(family, dict(samples), began_ns), resource))
        else:
            for start in range(0, len(samples), AT_ONCE):
                found.append(_data(_numbers(family, samples[start : start + AT_ONCE], began_ns), resource))
                await asyncio.sleep(0)
        await asyncio.sleep(0)
    return found


def _numbers(family: Family, samples: list[tuple[str, float]], began_ns: int) -> Any:
    from opentelemetry.sdk.metrics.export import AggregationTemporality, Gauge, Metric, NumberDataPoint, Sum

    now_ns = time.time_ns()
    points = [NumberDataPoint(labels_of(rest), began_ns, now_ns, float(value)) for rest, value in samples]
    if family.kind == "counter":
        data: Any = Sum(points, AggregationTemporality.CUMULATIVE, is_monotonic=True)
        return Metric(family.name.removesuffix("_total"), family.help, "", data)
    return Metric(family.name, family.help, "", Gauge(points))


def _histogram(family: Family, samples: Mapping[str, float], began_ns: int) -> Any:
    from opentelemetry.sdk.metrics.export import AggregationTemporality, Histogram, HistogramDataPoint, Metric

    upto = {labels_of(rest)["le"]: int(value) for rest, value in samples.items() if rest.startswith("_bucket")}
    counts = [count - before for count, before in zip(upto.values(), [0, *upto.values()], strict=False)]
    bounds = [float(bound) for bound in upto if bound != "+Inf"]
    point = HistogramDataPoint(
        {}, began_ns, time.time_ns(), int(samples["_count"]), samples["_sum"], counts, bounds, min=0.0, max=0.0
    )
    return Metric(family.name, family.help, "", Histogram([point], AggregationTemporality.CUMULATIVE))


def _data(metric: Any, resource: Any) -> MetricsData:
    from opentelemetry.sdk.metrics.export import MetricsData, ResourceMetrics, ScopeMetrics
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope

    scope = ScopeMetrics(InstrumentationScope("headgate", __version__), [metric], "")
    return MetricsData([ResourceMetrics(resource, [scope], "")])
