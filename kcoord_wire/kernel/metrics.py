"""Metrics in Prometheus's text format.

Laws:

* prometheus-client, of the extra ``serve``, is imported at the first scrape.
* Each exporter has its own registry, and samples are made at a scrape, in the scraping thread.
* The port is `kcoord_wire.kernel.scrapes`, which is imported when it is opened.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

from kcoord_wire.extras import require

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from prometheus_client.metrics_core import Metric

    from kcoord_wire.kernel.scrapes import Scrapes

Value = float | tuple[Sequence[tuple[str, float]], float]
"""A sample: a number; for a histogram its cumulative buckets and its sum."""


def family(kind: str, name: str, text: str, values: Mapping[Any, Value], *labels: str) -> Metric:
    """Return a metric with its samples.

    :param kind: ``Counter``, ``Gauge`` or ``Histogram``
    :param name: without the prefix ``kcoord_``, and of a counter without the suffix ``_total``
    :param values: by the values of `labels`
    :raises MissingLibraryError: prometheus-client is not installed
    """
    metric: Any = getattr(_prometheus("metrics_core"), f"{kind}MetricFamily")(f"kcoord_{name}", text, labels=labels)
    for label_values, value in values.items():
        metric.add_metric(label_values, *(value if isinstance(value, tuple) else (value,)))
    made: Metric = metric
    return made


class Exporter:
    """Something whose samples are scraped; a subclass has `collect`."""

    def collect(self) -> Iterable[Metric]:
        """Yield the current samples; called in the scraping thread."""
        raise NotImplementedError

    def describe(self) -> list[Metric]:
        """Return no names in advance: `collect` has them all, and must not run before there is something to show."""
        return []

    @cached_property
    def registry(self) -> CollectorRegistry:
        """A registry of these metrics only.

        :raises MissingLibraryError: prometheus-client is not installed
        """
        registry: CollectorRegistry = _prometheus("registry").CollectorRegistry()
        registry.register(self)
        return registry

    def exposition(self) -> bytes:
        """Return all samples in Prometheus's text format."""
        text: bytes = _prometheus("exposition").generate_latest(self.registry)
        return text

    def serve(self, host: str = "127.0.0.1", port: int = 0, *, known: Iterable[str] = ()) -> Scrapes:
        """Answer scrapes over HTTP until the server is stopped. Every client that reaches the port can read them.

        :param port: 0 takes a free one
        :param known: names by which clients reach this machine, besides `host`, its own and ``localhost``
        :raises OSError: the port cannot be opened
        """
        expose = _prometheus("exposition").make_wsgi_app(self.registry)
        from kcoord_wire.kernel.scrapes import Scrapes

        try:
            return Scrapes(expose, host, port, known)
        except OSError as error:
            raise OSError(error.errno, f"port {port} for metrics: {error.strerror}") from error


def _prometheus(module: str) -> Any:
    require("prometheus_client", "serve", "the metrics port")
    return require(f"prometheus_client.{module}", "serve", "the metrics port")
