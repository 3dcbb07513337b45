"""Metrics in Prometheus's text format, and the port at which they are scraped.

Laws:

* prometheus-client, of the extra ``serve``, is imported at the first scrape.
* Each exporter has its own registry, and samples are made at a scrape, in the scraping thread.
* A client that sends nothing for `SCRAPE_SECONDS` is disconnected, since it takes a thread and an open file.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

from kcoord_wire.extras import require

if TYPE_CHECKING:
    from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

    from prometheus_client import CollectorRegistry
    from prometheus_client.metrics_core import Metric

SCRAPE_SECONDS: Final = 10.0

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

    def serve(self, host: str = "127.0.0.1", port: int = 0) -> MetricsServer:
        """Answer scrapes over HTTP until the server is stopped. Every client that reaches the port can read them.

        :param port: 0 takes a free one
        :raises OSError: the port cannot be opened
        """
        try:
            server, thread = _prometheus("exposition").start_http_server(port, host, self.registry)
        except OSError as error:
            raise OSError(error.errno, f"port {port} for metrics: {error.strerror}") from error
        server.RequestHandlerClass = _with_timeout(server.RequestHandlerClass)
        return MetricsServer(server, thread)


class MetricsServer:
    """The HTTP server of `Exporter.serve`, in its own thread.

    :ivar port: the port it listens on
    """

    def __init__(self, server: WSGIServer, thread: threading.Thread) -> None:
        self._server = server
        self._thread = thread
        self.port: int = server.server_port

    def stop(self) -> None:
        """Stop listening, and wait until it has ended."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()


def _with_timeout(handler: type[WSGIRequestHandler]) -> type[WSGIRequestHandler]:
    class WithTimeout(handler):  # type: ignore[valid-type,misc]  # a class of prometheus-client
        timeout = SCRAPE_SECONDS

        def handle(self) -> None:
            with suppress(OSError):  # TimeoutError among them; socketserver would print a traceback
                super().handle()

    return WithTimeout


def _prometheus(module: str) -> Any:
    require("prometheus_client", "serve", "the metrics port")
    return require(f"prometheus_client.{module}", "serve", "the metrics port")
